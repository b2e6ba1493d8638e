// Runs a test with the kernels of several instruction sets, those that this machine has.
#pragma once
#include <catch2/catch.hpp>
#include <initializer_list>

#include "kernels/cpu/kernels.h"

namespace riffle::test {

inline constexpr std::initializer_list<cpu::Isa> kVectorIsas = {cpu::Isa::Scalar, cpu::Isa::Avx2,
                                                                cpu::Isa::Avx512};
inline constexpr std::initializer_list<cpu::Isa> kAllIsas = {cpu::Isa::Scalar, cpu::Isa::Avx2,
                                                             cpu::Isa::Avx512, cpu::Isa::Amx};

// run(const cpu::Kernels&); sets that the machine lacks are skipped aloud.
template <class F>
void for_isas(std::initializer_list<cpu::Isa> isas, F run) {
  for (const cpu::Isa isa : isas) {
    const cpu::Kernels& kernels = *cpu::kernels(isa);
    if (!cpu::isa_available(isa)) {
      WARN("SKIPPED: this machine cannot run the kernels of " << kernels.name);
      continue;
    }
    INFO("isa " << kernels.name);
    run(kernels);
  }
}

}  // namespace riffle::test
