// Runs a test with the kernels of several instruction sets, those that this machine has.
#pragma once
#include <catch2/catch.hpp>

#include "kernels/cpu/kernels.h"
#include "tests/isa_limit.h"

namespace riffle::test {

// A choice among the sets of this architecture. AMX has no selection kernels of its own.
enum class Sets { All, AllButAmx };

// Calls run(const cpu::Kernels&) for each set. A set that the machine lacks is skipped with a
// warning.
template <class F>
void for_isas(Sets sets, F run) {
  for (const cpu::Isa isa : arch_isas()) {
    if (sets == Sets::AllButAmx && isa == cpu::Isa::Amx) continue;
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
