// The attention kernel for f32 KV; a file of its own, so that it is compiled in parallel with
// attend.cu.
#include "kernels/cuda/attend/attend.cuh"

namespace riffle::cuda {

template <int D>
static Status launch_f32(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  return args.group <= 4 ? launch_attend<float, D, 4>(args, limits, stream)
                         : launch_attend<float, D, 8>(args, limits, stream);
}

Status attend_f32(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  switch (padded_dim(args.step.layout.head_dim)) {
    case 32: return launch_f32<32>(args, limits, stream);
    case 64: return launch_f32<64>(args, limits, stream);
    case 128: return launch_f32<128>(args, limits, stream);
    default: return launch_f32<256>(args, limits, stream);
  }
}

template <int D>
static Status fits(const KvLayout& layout, int group, const DeviceLimits& limits) {
  return group <= 4 ? attend_fits<float, D, 4>(layout, limits)
                    : attend_fits<float, D, 8>(layout, limits);
}

Status attend_fits_f32(const KvLayout& layout, int group, const DeviceLimits& limits) {
  switch (padded_dim(layout.head_dim)) {
    case 32: return fits<32>(layout, group, limits);
    case 64: return fits<64>(layout, group, limits);
    case 128: return fits<128>(layout, group, limits);
    default: return fits<256>(layout, group, limits);
  }
}

}  // namespace riffle::cuda
