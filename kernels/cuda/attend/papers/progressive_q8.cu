// The attention kernel with tests for KV in 8 bits; a file of its own, so that it is compiled in
// parallel with progressive.cu.
#include "kernels/cuda/attend/papers/progressive.cuh"

namespace riffle::cuda {

Status progressive_q8(const ProgressiveArgs& args, const DeviceLimits& limits,
                      cudaStream_t stream) {
  return with_narrow_dim(args.step.layout.head_dim, [&](auto dim) {
    return launch_progressive<Q8Kv, dim(), kMaxGroup>(args, limits, stream);
  });
}

Status progressive_fits_q8(const KvLayout& layout, const DeviceLimits& limits) {
  return with_narrow_dim(layout.head_dim, [&](auto dim) {
    return progressive_fits<Q8Kv, dim(), kMaxGroup>(layout, limits);
  });
}

}  // namespace riffle::cuda
