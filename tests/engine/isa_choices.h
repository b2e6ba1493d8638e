// The instruction sets that this CPU has.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/engine/test_model.h"
#include "tests/isa_limit.h"

namespace riffle::test {

// Returns scalar and the vector instruction sets of this architecture.
inline std::vector<IsaChoice> arch_choices() {
  std::vector<IsaChoice> all;
  for (const cpu::Isa isa : arch_isas())
    all.push_back(static_cast<IsaChoice>(int(isa) + int(IsaChoice::SCALAR)));
  return all;
}

// Tells whether this CPU has the instruction set. Loads a model.
inline bool choice_usable(IsaChoice isa) {
  ContextOptions o = options();
  o.isa = isa;
  o.n_ctx = 64;
  riffle_model* m;
  MemoryPlan plan{};
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &m, nullptr, 0) == RIFFLE_OK);
  const riffle_status s = plan_memory(m, &o, &plan, nullptr, 0);
  riffle_model_free(m);
  return s != RIFFLE_UNSUPPORTED;
}

// Returns the instruction sets of this CPU, and warns of the others. Each is tried once, since that
// loads a model and a case with sections begins again for each one.
inline std::vector<IsaChoice> isa_choices() {
  static const std::vector<IsaChoice> usable = [&] {
    std::vector<IsaChoice> out;
    for (const IsaChoice isa : arch_choices())
      if (choice_usable(isa)) out.push_back(isa);
    return out;
  }();
  for (const IsaChoice isa : arch_choices())
    if (std::find(usable.begin(), usable.end(), isa) == usable.end())
      WARN("SKIPPED: this CPU lacks "
           << cpu::kernels(static_cast<cpu::Isa>(int(isa) - int(IsaChoice::SCALAR)))->name);
  return usable;
}

}  // namespace riffle::test
