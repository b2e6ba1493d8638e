// The product of a prompt's rows with the matrices of their experts, many experts in one launch. A
// chunk of a prompt gives each of many experts few rows; a launch for each would leave the device
// waiting for the host. On compute capability 9.0 prompt_product_hopper.cu does the same by wgmma.
#include "kernels/cuda/experts/prompt_product.cuh"
#include "kernels/cuda/experts/prompt_product_hopper.h"

namespace riffle::cuda {

bool prompt_product_supported(WType type, int64_t rows, int64_t cols, const DeviceLimits& limits) {
  return (type == WType::F16 || type == WType::BF16) && limits.compute >= 80 &&
         limits.smem_per_block >= TileProduct::kSharedBytes && rows % 2 == 0 && cols % 8 == 0;
}

Status prompt_product(const PromptProduct& a, const DeviceLimits& limits, cudaStream_t stream) {
  if (!prompt_product_supported(a.w.type, a.rows, a.w.cols, limits)) return cudaErrorNotSupported;
  if (a.n_tiles < 1 || a.n_tiles > 65535 || a.rows < 1 || a.w.cols < 1 || a.out_type > WType::BF16)
    return cudaErrorInvalidValue;
  const Status hopper = prompt_product_hopper(a, limits, stream);
  if (hopper != cudaErrorNotSupported) return hopper;
  return prompt_product_parts::launch<TileProduct>(a, stream);
}

}  // namespace riffle::cuda
