// Gathered keys for NEON.
#include "kernels/cpu/attention/gather_simd.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {
const GatherKernels kGatherNeon = {gather_dot<Neon>,    softmax<Neon>, combine<Neon>,
                                   gather_values<Neon>, count_scalar,  pack_scalar,
                                   pack_sum_scalar};
}  // namespace riffle::cpu
