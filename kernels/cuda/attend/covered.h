// Attention without samples, to measure how much weight lies in the blocks that share selects.
#pragma once
#include "kernels/cuda/attend/decode_parts.h"

namespace riffle::cuda {

// Attends again to the rows of attend_share, whose choice is still in the scratch, without their
// samples. So step.lse becomes the log-sum-exp of the blocks that were selected. No later call may
// use the samples of this choice.
Status attend_selected(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream);

// choose_share.cu: all rows lose their samples.
Status drop_samples(const DecodeStep& step, const DecodeScratch& scratch, cudaStream_t stream);

}  // namespace riffle::cuda
