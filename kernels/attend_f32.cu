// The attention kernel for f32 KV; a file of its own only to be compiled beside attend.cu.
#include "kernels/attend.cuh"

namespace riffle::cuda {

Status attend_f32(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  return launch_dim<float>(args, limits, stream);
}

}  // namespace riffle::cuda
