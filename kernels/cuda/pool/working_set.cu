// Counts the blocks of each row that the last steps attended to, from the stamps of attend_row.cuh.
#include "kernels/cuda/attend/decode.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// One CTA a row: x is the layer and KV head, y the sequence.
__global__ __launch_bounds__(kThreads) void count_kernel(const __grid_constant__ WorkingSets a) {
  __shared__ int counts[kWindows][kThreads / 32];
  const StepSequence& s = a.sequences[blockIdx.y];
  const int n_tokens = s.n_tokens, n_blocks = (n_tokens + a.block_size - 1) / a.block_size;
  uint32_t before[kWindows];  // the newest stamp that is too old; 0 always is
#pragma unroll
  for (int w = 0; w < kWindows; ++w)
    before[w] = static_cast<uint32_t>(max(n_tokens - a.windows[w], 0));
  const uint32_t* stamps = s.last_use + (a.first_head + blockIdx.x) * s.max_blocks;
  int count[kWindows] = {};
#pragma unroll 8
  for (int b = threadIdx.x; b < n_blocks; b += kThreads) {
    const uint32_t stamp = __ldg(stamps + b);
#pragma unroll
    for (int w = 0; w < kWindows; ++w) count[w] += stamp > before[w];
  }
#pragma unroll
  for (int w = 0; w < kWindows; ++w) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) count[w] += __shfl_xor_sync(kAllLanes, count[w], o);
    if (threadIdx.x % 32 == 0) counts[w][threadIdx.x / 32] = count[w];
  }
  __syncthreads();
  if (threadIdx.x >= kWindows) return;
  int sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += counts[threadIdx.x][i];
  const int64_t layer = blockIdx.x / a.n_kv_heads, head = blockIdx.x % a.n_kv_heads;
  a.results[(layer * a.n + blockIdx.y) * a.n_kv_heads + head].working_sets[threadIdx.x] = sum;
}

}  // namespace

Status count_working_sets(const WorkingSets& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.n_layers * a.n_kv_heads), static_cast<unsigned>(a.n));
  count_kernel<<<grid, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
