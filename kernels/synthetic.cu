// Fills a matrix with synthetic weights: see model/synthetic.h.
#include "kernels/convert.cuh"
#include "src/model/synthetic.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 4096;

__global__ void __launch_bounds__(kThreads) fill_kernel(Matrix w, uint64_t seed, float scale) {
  const int64_t count = w.rows * w.cols, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  void* data = const_cast<void*>(w.data);
  auto* scales = static_cast<uint16_t*>(const_cast<void*>(w.scales));
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    if (w.type == WType::Q8_0) {
      static_cast<int8_t*>(data)[i] = synthetic::quant(seed, i);
      if (i % kQ8Group == 0) scales[i / kQ8Group] = f32_to_f16_saturating(synthetic::q8_scale(scale));
    } else {
      store_f32_as(data, w.type, i, synthetic::weight(seed, i, scale));
    }
  }
}

}  // namespace

Status fill_synthetic(Matrix w, uint64_t seed, float scale, cudaStream_t stream) {
  if (w.rows < 1 || w.cols < 1 || (w.type == WType::Q8_0 && w.cols % kQ8Group != 0)) return cudaErrorInvalidValue;
  const int64_t blocks = (w.rows * w.cols + kThreads - 1) / kThreads;
  fill_kernel<<<static_cast<unsigned>(blocks < kBlocks ? blocks : kBlocks), kThreads, 0, stream>>>(w, seed, scale);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
