// Linear kernels for NEON: f32 arithmetic, except decode products of quantised weights
// (linear_blocks.h).
#include "kernels/cpu/linear/arm/linear_blocks.h"
#include "kernels/cpu/linear/linear_simd.h"

namespace riffle::cpu {

void linear_neon(LinearKernels* t) {
  set_simd_entries<Neon, 6, 2>(t);
  ArmGemv<Widening>::set(t);
}

}  // namespace riffle::cpu
