// The attention kernel with tests for f32 KV; a file of its own, so that it is compiled in parallel
// with progressive.cu.
#include "kernels/cuda/attend/papers/progressive.cuh"

namespace riffle::cuda {

Status progressive_f32(const ProgressiveArgs& args, const DeviceLimits& limits,
                       cudaStream_t stream) {
  return with_narrow_dim(args.step.layout.head_dim, [&](auto dim) {
    return args.group <= 4 ? launch_progressive<float, dim(), 4>(args, limits, stream)
                           : launch_progressive<float, dim(), 8>(args, limits, stream);
  });
}

Status progressive_fits_f32(const KvLayout& layout, int group, const DeviceLimits& limits) {
  return with_narrow_dim(layout.head_dim, [&](auto dim) {
    return group <= 4 ? progressive_fits<float, dim(), 4>(layout, limits)
                      : progressive_fits<float, dim(), 8>(layout, limits);
  });
}

}  // namespace riffle::cuda
