// The vector instruction sets of x86-64.
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/kernels.h"

namespace riffle::cpu {
namespace {

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// Linux grants a process the AMX tile registers only on request (arch_prctl ARCH_REQ_XCOMP_PERM,
// XTILEDATA).
bool amx_permission() {
#if defined(__linux__)
  constexpr long kReqXcompPerm = 0x1023, kXtileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kXtileData) == 0;
#else
  return false;
#endif
}

bool cpu_has_amx() {
  unsigned a = 7, b = 0, c = 0, d = 0;  // leaf 7.0: EDX bit 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);
}

bool has_amx() {
  static const bool amx =
      has_avx512() && __builtin_cpu_supports("avx512bf16") && cpu_has_amx() && amx_permission();
  return amx;
}

void fill_avx2(Kernels* k) {
  linear_avx2(&k->linear);
  attention_avx2(&k->attention);
  select_avx2(&k->select);
  recurrent_avx2(&k->recurrent);
  k->gather = &kGatherAvx2;
}

void fill_avx512(Kernels* k) {
  linear_avx512(&k->linear);
  attention_avx512(&k->attention);
  select_avx512(&k->select);
  recurrent_avx512(&k->recurrent);
  k->gather = &kGatherAvx512;
}

void fill_amx(Kernels* k) {
  linear_amx(&k->linear);
  attention_amx(&k->attention);
}

constexpr VectorSet kSets[] = {{Isa::Avx2, has_avx2, fill_avx2},
                               {Isa::Avx512, has_avx512, fill_avx512},
                               {Isa::Amx, has_amx, fill_amx}};

}  // namespace

std::span<const VectorSet> vector_sets() { return kSets; }

}  // namespace riffle::cpu
