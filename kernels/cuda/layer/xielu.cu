// The activation of Apertus: xIELU (Huang and Schlag, arXiv 2411.13010), elementwise.
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/ungated.cuh"

namespace riffle::cuda {
namespace {

struct OfFactors {
  XieluFactors factors;
  __device__ float operator()(float x) const { return riffle::xielu(x, factors); }
};

}  // namespace

Status xielu(const void* x, int64_t count, WType in_type, void* out, WType out_type,
             const XieluFactors& factors, cudaStream_t stream, const float* bias, int64_t width) {
  return ungated(x, count, in_type, out, out_type, stream, bias, width, OfFactors{factors});
}

}  // namespace riffle::cuda
