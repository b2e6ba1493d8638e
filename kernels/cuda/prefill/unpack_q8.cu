// Converts blocks in 8 bits to blocks in f16, exactly, for flash_prefill.
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {
namespace {

constexpr int kUnpackThreads = 256;

// Block (b, h) of the grid: block first + b of head h. A thread has 8 numbers at a time.
__global__ __launch_bounds__(kUnpackThreads) void unpack_kernel(
    const __grid_constant__ UnpackQ8 a) {
  const int d = a.layout.head_dim, chunks = d / 8,
            rows = (a.layout.value_offset > 0 ? 2 : 1) * a.layout.block_size;
  const int64_t block = blockIdx.y * a.n_blocks + a.first + blockIdx.x, row = q8_row_bytes(d);
  const std::byte* from = a.blocks + block * a.layout.block_bytes;
  auto* to = reinterpret_cast<uint4*>(a.out + block * rows * d * 2);
  for (int i = threadIdx.x; i < rows * chunks; i += kUnpackThreads)
    to[i] = q8_unpack_chunk(from + i / chunks * row, d, i % chunks);
}

}  // namespace

Status unpack_q8(const UnpackQ8& a, cudaStream_t stream) {
  if (a.layout.type != KvType::Q8 || a.layout.head_dim % 8 != 0) return cudaErrorInvalidValue;
  if (a.first >= a.last) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(a.last - a.first), static_cast<unsigned>(a.n_kv_heads));
  unpack_kernel<<<grid, kUnpackThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
