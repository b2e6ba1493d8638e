// expand_latents for compute capability 9.0; expand_latents (prefill.h) calls it where it can.
#pragma once
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {

// args: as expand_latents has checked them. Returns cudaErrorNotSupported, having done nothing, if
// the device or the build has no kernel here.
Status expand_latents_hopper(const ExpandLatents& args, const DeviceLimits& limits,
                             cudaStream_t stream);

}  // namespace riffle::cuda
