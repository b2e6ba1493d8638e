// Prompt attention for compute capability 9.0; flash_prefill (prefill.h) calls it where it can.
#pragma once
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {

// args: as flash_prefill has checked them. Returns cudaErrorNotSupported, having done nothing, if
// the device, the type, the head size or the build has no kernel here.
Status flash_prefill_hopper(const FlashPrefill& args, const DeviceLimits& limits,
                            cudaStream_t stream);

}  // namespace riffle::cuda
