// The first kernel of delta_chunk.cuh: convolution and SiLU of queries, keys and values, and the
// norm of queries and keys. A CTA has a chunk of one head of these.
#include "kernels/cuda/recurrent/delta_chunk.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kStrip = 8;  // kStrip: tokens of a thread, and of a warp in the norm
static_assert(kThreads / 32 * kStrip == kChunk);

template <int kDim>
__global__ void __launch_bounds__(kThreads) chunk_mix_kernel(const ChunkPiece p) {
#if __CUDA_ARCH__ >= 800
  constexpr int kLine = kDim + 8;  // rows begin in different banks
  __shared__ __align__(16) float rows[kChunk][kLine];
  const Layer<GatedDelta>& layer = p.layer;
  const Inputs in = p.inputs();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t chunk = blockIdx.x, number = blockIdx.y, keys = layer.keys();
  const bool is_value = number >= 2 * keys, is_query = number < keys;
  const Span span = is_value   ? layer.value(number - 2 * keys)
                    : is_query ? layer.query(number)
                               : layer.key(number - keys);
  const int64_t left = p.n - chunk * kChunk, token = p.first + chunk * kChunk;
  float* const values = is_value ? p.values(chunk, number - 2 * keys) : nullptr;
  for (int i = thread; i < span.width * (kChunk / kStrip); i += kThreads) {
    const int c = i % span.width, begin = i / span.width * kStrip;
    const int count = static_cast<int>(max(int64_t{0}, min(int64_t{kStrip}, left - begin)));
    float y[kStrip] = {};
    if (count > 0) convolve(layer, in, span.channel + c, span.at + c, token + begin, count, y);
#pragma unroll
    for (int t = 0; t < kStrip; t++) {
      if (is_value) values[(begin + t) * span.width + c] = y[t];
      else rows[begin + t][c] = y[t];
    }
  }
  if (is_value) return;
  __syncthreads();
  const int row = warp * kStrip + lane / 4;
  float scale = 0;
  for (int t = 0; t < kStrip; t++) {
    float squares = 0;
    for (int c = lane; c < kDim; c += 32)
      squares = fmaf(rows[warp * kStrip + t][c], rows[warp * kStrip + t][c], squares);
    const float found = unit_scale(squares, is_query, kDim);
    if (t == lane / 4) scale = found;
  }
  auto* const tile =
      reinterpret_cast<uint32_t*>(is_query ? p.query(chunk, number) : p.key(chunk, number - keys));
#pragma unroll
  for (int pair = lane % 4; pair < kDim / 2; pair += 4) {
    float x = __fmul_rn(rows[row][2 * pair], scale), y = __fmul_rn(rows[row][2 * pair + 1], scale);
    tile[tile_word<kDim>(0, row, pair)] = split_bf16(&x, &y);
    tile[tile_word<kDim>(1, row, pair)] = split_bf16(&x, &y);
  }
#endif
}

}  // namespace

Status launch_chunk_mix(const ChunkPiece& piece, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(piece.chunks()),
                  static_cast<unsigned>(2 * piece.layer.keys() + piece.layer.heads()));
  if (piece.layer.k_dim() == 64) chunk_mix_kernel<64><<<grid, kThreads, 0, stream>>>(piece);
  else chunk_mix_kernel<128><<<grid, kThreads, 0, stream>>>(piece);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
