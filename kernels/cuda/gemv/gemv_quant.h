// y = W x of quantised weights of 2 to 6 bits, for gemv.cu.
#pragma once
#include "kernels/cuda/gemv/gemv_launch.cuh"

namespace riffle::cuda::gemv_quant {

// Requires: all outputs are of one such type; x, norm and parts of W are 16-byte aligned. Returns
// cudaErrorNotSupported, and launches nothing, if the device has too little shared memory.
Status launch(const Gemv& args, const GemvDevice& device, cudaStream_t stream);

// The same for Q8_0, if fits_q8() holds: rows of a multiple of 256 columns, 16-byte aligned scales,
// and shared memory for one row of x. The bits are the same for every n, so the test ignores n.
bool fits_q8(const Gemv& args, const GemvDevice& device);
Status launch_q8(const Gemv& args, const GemvDevice& device, cudaStream_t stream);

// The same bits from int8 tensor cores, for up to kGemvMaxRows rows. Returns cudaErrorNotSupported,
// and launches nothing, on a device without clusters of blocks (compute capability 9.0).
Status launch_tensor(const Gemv& args, const GemvDevice& device, cudaStream_t stream);

}  // namespace riffle::cuda::gemv_quant
