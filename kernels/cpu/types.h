// Types that all families of CPU kernels share: instruction sets and the types of weights, of a KV
// cache and of digests.
//
// Rules of all kernels below this folder. Raw pointers and sizes in; nothing allocated, nothing
// thrown, no threads (callers split the work), no state. Every entry of a table has a scalar twin
// that tests compare against. A result depends only on the inputs that belong to it: never on how
// rows, queries or blocks were split into calls, so that any thread count, chunk or batch gives the
// same bits.
//
// Files for one architecture are in folders called x86 and arm. A file whose name ends with an
// instruction set (*_avx2.cpp, *_dotprod.cpp) is compiled for it. It includes no header with inline
// functions of the standard library, since the linker might keep its copy for all files.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/kv_q8.h"
#include "kernels/common/rope_pairs.h"

namespace riffle::cpu {

// DotProd: NEON, dot product (FEAT_DotProd) and f16 arithmetic (FEAT_FP16). I8mm: also int8 matrix
// multiply (FEAT_I8MM) and bf16 (FEAT_BF16).
enum class Isa : uint8_t { Scalar, Avx2, Avx512, Amx, Neon, DotProd, I8mm };
inline constexpr int kNumIsas = 7;

using WType = DType;
// Mirrors KvKind (src/util/options.h) without its header. A static_assert in
// src/backend/cpu/cpu_device.cpp checks the equality.
enum class KvType : uint8_t { F16 = 0, F32 = 1, Q8 = 2 };
// Returns the bytes of a row, one token's key or value of d numbers. Q8: kernels/common/kv_q8.h.
constexpr int64_t kv_row_bytes(KvType type, int64_t d) {
  return type == KvType::Q8 ? q8_row_bytes(d) : type == KvType::F16 ? 2 * d : 4 * d;
}

// A block's digest, see src/select/README.md: centre and radius vectors, score = q.centre + sum_j
// |q_j| radius_j.
enum class DigestKind : uint8_t { Mean = 0, Quest = 1, CuboidMean = 2 };

}  // namespace riffle::cpu
