// The instruction sets that riffle_tests uses: those of the machine, up to RIFFLE_TEST_ISA
// ("scalar", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm") if that is set. The tests then run
// as on a processor that lacks the larger sets.
#pragma once
#include <vector>

#include "kernels/cpu/kernels.h"

namespace riffle::test {

// Returns scalar and the vector instruction sets of this architecture, the smallest first.
std::vector<cpu::Isa> arch_isas();
// Returns the kernels of the sets that the tests may use.
std::vector<const cpu::Kernels*> usable_isas();

// Returns the kernels of all sets of this machine, whatever RIFFLE_TEST_ISA is.
std::vector<const cpu::Kernels*> machine_isas();

// Returns true if RIFFLE_TEST_ISA is unset or names a set of this machine.
bool isa_limit_valid();

}  // namespace riffle::test
