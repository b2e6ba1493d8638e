// Gathered keys for AVX2 with FMA and F16C.
#include "kernels/cpu/attention/gather_simd.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {
const GatherKernels kGatherAvx2 = {gather_dot<Avx2>,    softmax<Avx2>, combine<Avx2>,
                                   gather_values<Avx2>, count_scalar,  pack_scalar,
                                   pack_sum_scalar};
}  // namespace riffle::cpu
