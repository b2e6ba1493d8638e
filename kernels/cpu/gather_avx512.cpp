// Gathered keys for AVX-512.
#include "kernels/cpu/gather_simd.h"
#include "kernels/cpu/simd_avx512.h"

namespace riffle::cpu {
const GatherKernels kGatherAvx512 = {gather_dot<Avx512>, softmax<Avx512>, combine<Avx512>, gather_values<Avx512>};
}  // namespace riffle::cpu
