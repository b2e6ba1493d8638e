// The table of kernels of each instruction set.
#include <initializer_list>

#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

Isa best_isa() {
  for (Isa isa : {Isa::Amx, Isa::Avx512, Isa::Avx2})
    if (isa_available(isa)) return isa;
  return Isa::Scalar;
}

static Kernels make(Isa isa, const char* name) {
  Kernels k{};
  k.isa = isa;
  k.name = name;
  linear_scalar(&k.linear);
  attention_scalar(&k.attention);
  select_scalar(&k.select);
  recurrent_scalar(&k.recurrent);
#if defined(__x86_64__)
  // Even the functions that fill in pointers are compiled for their set: an older CPU must not
  // enter them.
  const auto has = [isa](Isa part) { return isa >= part && isa_available(part); };
  if (has(Isa::Avx2)) {
    linear_avx2(&k.linear), attention_avx2(&k.attention);
    select_avx2(&k.select), recurrent_avx2(&k.recurrent);
  }
  if (has(Isa::Avx512)) {
    linear_avx512(&k.linear), attention_avx512(&k.attention);
    select_avx512(&k.select), recurrent_avx512(&k.recurrent);
  }
  if (has(Isa::Amx)) linear_amx(&k.linear), attention_amx(&k.attention);
#endif
  return k;
}

const Kernels* kernels(Isa isa) {
  static const Kernels tables[] = {make(Isa::Scalar, "scalar"), make(Isa::Avx2, "avx2"),
                                   make(Isa::Avx512, "avx512"), make(Isa::Amx, "amx")};
  return &tables[static_cast<int>(isa)];
}

}  // namespace riffle::cpu
