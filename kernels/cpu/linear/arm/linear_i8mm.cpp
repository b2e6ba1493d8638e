// Linear kernels for NEON with products of matrices of bytes.
#include "kernels/cpu/linear/linear.h"

namespace riffle::cpu {

void linear_i8mm(LinearKernels*) {}

}  // namespace riffle::cpu
