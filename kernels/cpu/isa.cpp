// The instruction sets of this machine. This is a separate file so that riffle_tests can replace
// isa_available and act as an older processor (tests/isa_limit.cpp).
#include <sys/syscall.h>
#include <unistd.h>

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

}  // namespace riffle::cpu
