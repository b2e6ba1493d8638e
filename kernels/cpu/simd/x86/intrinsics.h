// The intrinsics of the x86 instruction sets. GCC 12 warns about its own AVX-512 headers where they
// leave unused lanes undefined (PR 105593).
#pragma once
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
