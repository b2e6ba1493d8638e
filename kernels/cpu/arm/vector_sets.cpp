// The vector instruction sets of 64-bit ARM.
#include <sys/auxv.h>

#include "kernels/cpu/kernels.h"

namespace riffle::cpu {
namespace {

// Bits of AT_HWCAP and AT_HWCAP2 (Linux, arm64/elf_hwcaps).
constexpr unsigned long kAsimdHp = 1ul << 10, kAsimdDp = 1ul << 20;  // AT_HWCAP
constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;        // AT_HWCAP2

bool has_neon() { return true; }  // a part of the architecture

bool has_dotprod() {
  const unsigned long both = kAsimdHp | kAsimdDp;
  return (getauxval(AT_HWCAP) & both) == both;
}

bool has_i8mm() {
  const unsigned long both = kI8mm | kBf16;
  return has_dotprod() && (getauxval(AT_HWCAP2) & both) == both;
}

void fill_neon(Kernels* k) {
  linear_neon(&k->linear);
  attention_neon(&k->attention);
  select_neon(&k->select);
  recurrent_neon(&k->recurrent);
  k->gather = &kGatherNeon;
}

void fill_dotprod(Kernels* k) {
  linear_dotprod(&k->linear);
  select_dotprod(&k->select);
}

void fill_i8mm(Kernels* k) { linear_i8mm(&k->linear); }

constexpr VectorSet kSets[] = {{Isa::Neon, has_neon, fill_neon},
                               {Isa::DotProd, has_dotprod, fill_dotprod},
                               {Isa::I8mm, has_i8mm, fill_i8mm}};

}  // namespace

std::span<const VectorSet> vector_sets() { return kSets; }

}  // namespace riffle::cpu
