// Which instruction set this machine offers, and the table of kernels for it.
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

// Linux grants a process the AMX tile registers only on request (arch_prctl ARCH_REQ_XCOMP_PERM,
// XTILEDATA).
static bool amx_permission() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kReqXcompPerm = 0x1023, kXtileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kXtileData) == 0;
#else
  return false;
#endif
}

static bool cpu_has_amx() {
#if defined(__x86_64__)
  unsigned a = 7, b = 0, c = 0, d = 0;  // leaf 7.0: EDX bit 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);
#else
  return false;
#endif
}

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  switch (isa) {
    case Isa::Scalar: return true;
    case Isa::Avx2: return avx2;
    case Isa::Avx512: return avx512;
    case Isa::Amx: {
      static const bool amx =
          avx512 && __builtin_cpu_supports("avx512bf16") && cpu_has_amx() && amx_permission();
      return amx;
    }
  }
  return false;
#else
  return isa == Isa::Scalar;
#endif
}

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
#if defined(__x86_64__)
  // Even the functions that fill in pointers are compiled for their set: an older CPU must not
  // enter them.
  const auto has = [isa](Isa part) { return isa >= part && isa_available(part); };
  if (has(Isa::Avx2)) linear_avx2(&k.linear), attention_avx2(&k.attention), select_avx2(&k.select);
  if (has(Isa::Avx512))
    linear_avx512(&k.linear), attention_avx512(&k.attention), select_avx512(&k.select);
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
