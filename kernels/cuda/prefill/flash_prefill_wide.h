// Prompt attention for wide heads; flash_prefill (prefill.h) calls it.
#pragma once
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {

struct FlashParams;

// Tells whether the kernels below run this head size.
bool wide_head_dim(int head_dim);

// Runs f16 blocks of wide heads on tensor cores (compute capability 8.0 and later). Returns
// cudaErrorNotSupported if the device lacks shared memory.
Status flash_prefill_wide(const FlashParams& params, int head_dim, int n_heads,
                          const DeviceLimits& limits, cudaStream_t stream);

}  // namespace riffle::cuda
