// Separates queries from the gates that the same product gave, head by head (Qwen3-Next).
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// d: values of a head, in T.
template <class T>
__global__ void __launch_bounds__(kThreads)
    split_heads_kernel(const T* both, int64_t count, int d, T* q, T* gate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t head = i / d, from = head * d + i;
  q[i] = both[from];
  gate[i] = both[from + d];
}

template <class T>
void launch(const float* both, int64_t count, int d, float* q, float* gate, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  split_heads_kernel<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<const T*>(both), count, d,
                                                      reinterpret_cast<T*>(q),
                                                      reinterpret_cast<T*>(gate));
}

}  // namespace

Status split_heads(const float* both, int64_t n, int n_heads, int d, float* q, float* gate,
                   cudaStream_t stream) {
  if (n < 1 || n_heads < 1 || d < 1) return cudaErrorInvalidValue;
  const int64_t count = n * n_heads * d;
  if (d % 4 == 0) launch<float4>(both, count / 4, d / 4, q, gate, stream);
  else launch<float>(both, count, d, q, gate, stream);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
