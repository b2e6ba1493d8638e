// Gathers rows of a matrix, such as the embeddings of tokens: one block of threads a row.
#include "kernels/cuda/layer/eight.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// vector: all rows of w and of out are 16-byte aligned and have a multiple of 8 columns.
__global__ void __launch_bounds__(kThreads)
    weight_rows_kernel(Matrix w, const int32_t* rows, void* out, WType out_type, bool vector) {
  const int64_t to = static_cast<int64_t>(blockIdx.x) * w.cols, row = rows[blockIdx.x];
  if (vector) {
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * kEight; c < w.cols;
         c += kThreads * kEight) {
      float v[kEight];
      load8(w, row, c, v);
      store8(out, out_type, to + c, v);
    }
    return;
  }
  for (int64_t c = threadIdx.x; c < w.cols; c += kThreads)
    store_f32_as(out, out_type, to + c, weight_at(w, row, c));
}

}  // namespace

Status weight_rows(const Matrix& w, const int32_t* rows, int64_t n, void* out, WType out_type,
                   cudaStream_t stream) {
  if (is_quantised(out_type) || n < 1 || w.cols < 1) return cudaErrorInvalidValue;
  const bool vector =
      w.cols % kEight == 0 && vector_aligned(w.data, 0, 1) && vector_aligned(out, 0, 1);
  weight_rows_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(w, rows, out, out_type,
                                                                        vector);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
