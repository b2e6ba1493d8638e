// Linear kernels for NEON with dot products of bytes.
#include "kernels/cpu/linear/arm/linear_blocks.h"
#include "kernels/cpu/linear/arm/linear_int8.h"

namespace riffle::cpu {

void linear_dotprod(LinearKernels* t) {
  ArmGemv<Dotting>::set(t);
  GemmInt8<DotByWord>::set(t->gemm);
}

}  // namespace riffle::cpu
