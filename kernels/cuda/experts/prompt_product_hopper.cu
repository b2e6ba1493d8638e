// The product of a prompt's rows with the matrices of their experts, by wgmma.
#include "kernels/cuda/experts/prompt_product_hopper.h"

#ifdef RIFFLE_SM90A

#include "kernels/cuda/experts/prompt_product.cuh"
#include "kernels/cuda/tile_product_hopper.cuh"

namespace riffle::cuda {

Status prompt_product_hopper(const PromptProduct& args, const DeviceLimits& limits,
                             cudaStream_t stream) {
  if (limits.compute != 90) return cudaErrorNotSupported;
  return prompt_product_parts::launch<HopperProduct>(args, stream);
}

}  // namespace riffle::cuda

#else

namespace riffle::cuda {

Status prompt_product_hopper(const PromptProduct&, const DeviceLimits&, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace riffle::cuda

#endif
