// Embedding look-up: one block a row.
#include "kernels/convert.cuh"

namespace riffle::cuda {
namespace {

__global__ void embed_kernel(Matrix table, const int32_t* rows, float* x) {
  const int64_t i = blockIdx.x, row = rows[i];
  for (int64_t c = threadIdx.x; c < table.cols; c += blockDim.x) x[i * table.cols + c] = weight_at(table, row, c);
}

}  // namespace

Status embed(const Matrix& table, const int32_t* rows, int64_t n, float* x, cudaStream_t stream) {
  embed_kernel<<<static_cast<unsigned>(n), 512, 0, stream>>>(table, rows, x);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
