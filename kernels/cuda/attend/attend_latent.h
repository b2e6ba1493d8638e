// Attention of a decode step over f16 rows of multi-head latent attention, with all query heads of
// a row in one CTA (latent_block.cuh). A row has most_latent_slices slices of kRowCtas CTAs, which
// do not wait for each other. A second kernel merges their states, one CTA for each head.
#pragma once
#include "kernels/cuda/attend/decode_parts.h"

namespace riffle::cuda {

// Returns cudaErrorNotSupported if the device or the block size has no kernel here; the kernel of
// attend.cuh is used then.
Status attend_latent(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);

}  // namespace riffle::cuda
