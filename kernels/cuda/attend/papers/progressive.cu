// The attention kernel with tests (progressive.cuh) for f16 blocks.
#include "kernels/cuda/attend/papers/progressive.cuh"

namespace riffle::cuda {

Status progressive_f16(const ProgressiveArgs& args, const DeviceLimits& limits,
                       cudaStream_t stream) {
  return with_narrow_dim(args.step.layout.head_dim, [&](auto dim) {
    return launch_progressive<__half, dim(), kMaxGroup>(args, limits, stream);
  });
}

Status progressive_fits_f16(const KvLayout& layout, const DeviceLimits& limits) {
  return with_narrow_dim(layout.head_dim, [&](auto dim) {
    return progressive_fits<__half, dim(), kMaxGroup>(layout, limits);
  });
}

}  // namespace riffle::cuda
