// y = W x of quantised weights of 2 to 6 bits, for gemv.cu.
#pragma once
#include "kernels/cuda/gemv/gemv_launch.cuh"

namespace riffle::cuda::gemv_quant {

// All outputs are of one such type, x, norm and parts of W 16-byte aligned. cudaErrorNotSupported,
// and nothing launched, if the device has too little shared memory.
Status launch(const Gemv& args, const GemvDevice& device, cudaStream_t stream);

// The same for Q8_0, where fits_q8(): rows of whole 256 columns, 16-byte aligned scales, and shared
// memory for one row of x. The same bits for every n, so the test does not look at n.
bool fits_q8(const Gemv& args, const GemvDevice& device);
Status launch_q8(const Gemv& args, const GemvDevice& device, cudaStream_t stream);

// The same bits from int8 tensor cores, for up to kGemvMaxRows rows. cudaErrorNotSupported, and
// nothing launched, on a device without clusters of blocks (compute capability 9.0).
Status launch_tensor(const Gemv& args, const GemvDevice& device, cudaStream_t stream);

}  // namespace riffle::cuda::gemv_quant
