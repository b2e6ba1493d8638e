// The table of kernels of each instruction set.
#include "kernels/cpu/kernels.h"

namespace riffle::cpu {
namespace {

constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm"};
static_assert(sizeof kNames / sizeof kNames[0] == kNumIsas);

Kernels make(Isa isa) {
  Kernels k{};
  k.isa = isa;
  k.name = kNames[static_cast<int>(isa)];
  linear_scalar(&k.linear);
  attention_scalar(&k.attention);
  select_scalar(&k.select);
  recurrent_scalar(&k.recurrent);
  k.gather = &kGatherScalar;
  for (const VectorSet& set : vector_sets())
    if (set.isa <= isa && isa_available(set.isa)) set.fill(&k);
  return k;
}

struct Tables {
  Kernels of[kNumIsas];
  Tables() {
    for (int i = 0; i < kNumIsas; i++) of[i] = make(static_cast<Isa>(i));
  }
};

}  // namespace

Isa best_isa() {
  Isa best = Isa::Scalar;
  for (const VectorSet& set : vector_sets())
    if (isa_available(set.isa)) best = set.isa;
  return best;
}

const Kernels* kernels(Isa isa) {
  static const Tables tables;
  return &tables.of[static_cast<int>(isa)];
}

}  // namespace riffle::cpu
