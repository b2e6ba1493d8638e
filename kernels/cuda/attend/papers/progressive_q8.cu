// The attention kernel with tests for KV in 8 bits; a file of its own only to be compiled in
// parallel.
#include "kernels/cuda/attend/papers/progressive.cuh"

namespace riffle::cuda {

Status progressive_q8(const ProgressiveArgs& args, const DeviceLimits& limits,
                      cudaStream_t stream) {
  switch (padded_dim(args.step.layout.head_dim)) {
    case 32: return launch_progressive<Q8Kv, 32, kMaxGroup>(args, limits, stream);
    case 64: return launch_progressive<Q8Kv, 64, kMaxGroup>(args, limits, stream);
    case 128: return launch_progressive<Q8Kv, 128, kMaxGroup>(args, limits, stream);
    default: return launch_progressive<Q8Kv, 256, kMaxGroup>(args, limits, stream);
  }
}

Status progressive_fits_q8(const KvLayout& layout, const DeviceLimits& limits) {
  switch (padded_dim(layout.head_dim)) {
    case 32: return progressive_fits<Q8Kv, 32, kMaxGroup>(layout, limits);
    case 64: return progressive_fits<Q8Kv, 64, kMaxGroup>(layout, limits);
    case 128: return progressive_fits<Q8Kv, 128, kMaxGroup>(layout, limits);
    default: return progressive_fits<Q8Kv, 256, kMaxGroup>(layout, limits);
  }
}

}  // namespace riffle::cuda
