// The attention kernel (attend.cuh) for f16 blocks.
#include "kernels/cuda/attend/attend.cuh"
#include "kernels/cuda/attend/attend_latent.h"

namespace riffle::cuda {

Status attend_f16(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  if (args.step.layout.head_dim == kLatentDim)
    if (Status status = attend_latent(args, limits, stream); status != cudaErrorNotSupported)
      return status;
  return with_padded_dim(args.step.layout.head_dim, [&](auto dim) {
    return launch_attend<__half, dim(), kMaxGroup>(args, limits, stream);
  });
}

Status attend_fits_f16(const KvLayout& layout, const DeviceLimits& limits) {
  return with_padded_dim(layout.head_dim, [&](auto dim) {
    return attend_fits<__half, dim(), kMaxGroup>(layout, limits);
  });
}

}  // namespace riffle::cuda
