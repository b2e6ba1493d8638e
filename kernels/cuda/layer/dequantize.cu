// Converts weights to the operands of prefill. Memory is the limit: a group of eight values is 16
// bytes of output and about 4 of input, for which a multiprocessor has a cycle. So each type has a
// kernel of its own, and a thread divides once to find its row.
#include "kernels/cuda/layer/eight.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kGroups = 4;  // groups of eight values a thread
constexpr int64_t kBlockGroups = kThreads * kGroups;

struct Params {
  Matrix w;
  void* out;
  WType out_type;
  uint32_t count, row_groups;         // groups in all, and in a row
  uint32_t rows_ahead, groups_ahead;  // kThreads groups further
};

template <WType T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const __grid_constant__ Params p) {
  const uint32_t first = blockIdx.x * static_cast<uint32_t>(kBlockGroups) + threadIdx.x;
  uint32_t row = first / p.row_groups, group = first % p.row_groups;
  float v[kGroups][kEight];
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    if (first + k * kThreads < p.count)
      load8<T>(p.w, row, static_cast<int64_t>(group) * kEight, v[k]);
    row += p.rows_ahead, group += p.groups_ahead;
    if (group >= p.row_groups) group -= p.row_groups, ++row;
  }
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const uint32_t i = first + k * kThreads;
    if (i < p.count) store8(p.out, p.out_type, static_cast<int64_t>(i) * kEight, v[k]);
  }
}

// Rows whose values do not come in groups.
__global__ void __launch_bounds__(kThreads)
    dequantize_any_kernel(const __grid_constant__ Params p) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < p.w.cols; c += kThreads)
    store_f32_as(p.out, p.out_type, row * p.w.cols + c, weight_at(p.w, row, c));
}

}  // namespace

Status dequantize(const Matrix& w, int64_t first, int64_t n, void* out, WType out_type,
                  cudaStream_t stream) {
  const int64_t row_groups = w.cols / kEight, count = n * row_groups;
  if (is_quantised(out_type) || first < 0 || n < 1 || first + n > w.rows || w.cols < 1 ||
      count > INT32_MAX)
    return cudaErrorInvalidValue;
  Params p;
  p.w = rows_of(w, first, n), p.out = out, p.out_type = out_type;
  if (w.cols % kEight != 0 || !vector_aligned(p.w.data, 0, 1) || !vector_aligned(out, 0, 1)) {
    dequantize_any_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  p.count = static_cast<uint32_t>(count), p.row_groups = static_cast<uint32_t>(row_groups);
  p.rows_ahead = kThreads / p.row_groups, p.groups_ahead = kThreads % p.row_groups;
  const auto blocks = static_cast<unsigned>((count + kBlockGroups - 1) / kBlockGroups);
  with_type(w.type, [&]<WType T>() { dequantize_kernel<T><<<blocks, kThreads, 0, stream>>>(p); });
  return cudaGetLastError();
}

}  // namespace riffle::cuda
