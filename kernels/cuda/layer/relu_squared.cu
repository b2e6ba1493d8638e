// The activation of FFNs without a gate: max(0, x)^2 (So et al., arXiv 2109.08668), elementwise.
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/ungated.cuh"

namespace riffle::cuda {
namespace {

struct ReluSquared {
  __device__ float operator()(float x) const { return relu_squared(x); }
};

}  // namespace

Status relu_squared(const void* x, int64_t count, WType in_type, void* out, WType out_type,
                    cudaStream_t stream, const float* bias, int64_t width) {
  return ungated(x, count, in_type, out, out_type, stream, bias, width, ReluSquared{});
}

}  // namespace riffle::cuda
