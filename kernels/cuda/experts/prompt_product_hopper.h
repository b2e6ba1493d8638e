// prompt_product for compute capability 9.0; prompt_product (experts.h) calls it where it can.
#pragma once
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {

// args: as prompt_product has checked them. Returns cudaErrorNotSupported, having done nothing, if
// the device or the build has no kernel here.
Status prompt_product_hopper(const PromptProduct& args, const DeviceLimits& limits,
                             cudaStream_t stream);

}  // namespace riffle::cuda
