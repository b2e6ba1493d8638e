// Linear kernels for NEON with products of matrices of bytes.
#include "kernels/cpu/linear/arm/linear_int8.h"

namespace riffle::cpu {

void linear_i8mm(LinearKernels* t) { GemmInt8<DotByPairs>::set(t->gemm); }

}  // namespace riffle::cpu
