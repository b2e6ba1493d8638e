// Keys and values of multi-head latent attention, computed from latents by wgmma.
#include "kernels/cuda/prefill/expand_latents_hopper.h"

#ifdef RIFFLE_SM90A

#include "kernels/cuda/prefill/expand_latents.cuh"
#include "kernels/cuda/tile_product_hopper.cuh"

namespace riffle::cuda {

Status expand_latents_hopper(const ExpandLatents& args, const DeviceLimits& limits,
                             cudaStream_t stream) {
  if (limits.compute != 90) return cudaErrorNotSupported;
  return expand_latents_parts::launch<HopperProduct>(args, stream);
}

}  // namespace riffle::cuda

#else

namespace riffle::cuda {

Status expand_latents_hopper(const ExpandLatents&, const DeviceLimits&, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace riffle::cuda

#endif
