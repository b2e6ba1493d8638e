// Linear kernels for NEON with dot products of bytes.
#include "kernels/cpu/linear/arm/linear_blocks.h"
#include "kernels/cpu/linear/linear_simd.h"

namespace riffle::cpu {

void linear_dotprod(LinearKernels* t) { ArmGemv<Dotting>::set(t); }

}  // namespace riffle::cpu
