// The attention kernel for KV in 8 bits; a file of its own, so that it is compiled in parallel with
// attend.cu.
#include "kernels/cuda/attend/attend.cuh"

namespace riffle::cuda {

Status attend_q8(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  switch (padded_dim(args.step.layout.head_dim)) {
    case 32: return launch_attend<Q8Kv, 32, kMaxGroup>(args, limits, stream);
    case 64: return launch_attend<Q8Kv, 64, kMaxGroup>(args, limits, stream);
    case 128: return launch_attend<Q8Kv, 128, kMaxGroup>(args, limits, stream);
    default: return launch_attend<Q8Kv, 256, kMaxGroup>(args, limits, stream);
  }
}

Status attend_fits_q8(const KvLayout& layout, const DeviceLimits& limits) {
  switch (padded_dim(layout.head_dim)) {
    case 32: return attend_fits<Q8Kv, 32, kMaxGroup>(layout, limits);
    case 64: return attend_fits<Q8Kv, 64, kMaxGroup>(layout, limits);
    case 128: return attend_fits<Q8Kv, 128, kMaxGroup>(layout, limits);
    default: return attend_fits<Q8Kv, 256, kMaxGroup>(layout, limits);
  }
}

}  // namespace riffle::cuda
