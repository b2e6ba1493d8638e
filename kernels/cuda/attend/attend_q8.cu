// The attention kernel for KV in 8 bits; a file of its own, so that it is compiled in parallel with
// attend.cu.
#include "kernels/cuda/attend/attend.cuh"

namespace riffle::cuda {

Status attend_q8(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  return with_padded_dim(args.step.layout.head_dim, [&](auto dim) {
    return launch_attend<Q8Kv, dim(), kMaxGroup>(args, limits, stream);
  });
}

Status attend_fits_q8(const KvLayout& layout, const DeviceLimits& limits) {
  return with_padded_dim(layout.head_dim, [&](auto dim) {
    return attend_fits<Q8Kv, dim(), kMaxGroup>(layout, limits);
  });
}

}  // namespace riffle::cuda
