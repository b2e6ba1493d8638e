// The attention kernel for f32 KV; a file of its own, so that it is compiled in parallel with
// attend.cu.
#include "kernels/cuda/attend/attend.cuh"

namespace riffle::cuda {

Status attend_f32(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  return with_padded_dim(args.step.layout.head_dim, [&](auto dim) {
    return args.group <= 4 ? launch_attend<float, dim(), 4>(args, limits, stream)
                           : launch_attend<float, dim(), 8>(args, limits, stream);
  });
}

Status attend_fits_f32(const KvLayout& layout, int group, const DeviceLimits& limits) {
  return with_padded_dim(layout.head_dim, [&](auto dim) {
    return group <= 4 ? attend_fits<float, dim(), 4>(layout, limits)
                      : attend_fits<float, dim(), 8>(layout, limits);
  });
}

}  // namespace riffle::cuda
