// The instruction sets that riffle_tests uses: those of the machine, up to RIFFLE_TEST_ISA
// ("scalar", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm") where that is set, as if the
// processor had no more.
#pragma once
#include <vector>

#include "kernels/cpu/kernels.h"

namespace riffle::test {

// Scalar and the vector instruction sets of this architecture.
std::vector<cpu::Isa> arch_isas();
// Returns the kernels of those that may be used.
std::vector<const cpu::Kernels*> usable_isas();

// Returns true if RIFFLE_TEST_ISA is unset or names a set of this machine.
bool isa_limit_valid();

}  // namespace riffle::test
