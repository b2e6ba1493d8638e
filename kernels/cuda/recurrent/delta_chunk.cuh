// Prompts of the gated delta rule in chunks of 64 tokens, on tensor cores (Yang et al., arXiv
// 2412.06464). For a chunk of queries Q, keys K and values V (row i is token i), the matrix S
// before it, and c_i, the sum of the logarithms of the chunk's decays up to token i:
//   A_ij = beta_i e^(c_i - c_j) K_i K_j for j < i;   T = (I + A)^-1
//   P_ij = e^(c_i - c_j) Q_i K_j for j <= i
//   U = T X with X_i = beta_i (V_i - e^(c_i) S K_i): the values that the tokens add for their keys
//   O_i = e^(c_i) S Q_i + (P U)_i;   S <- e^(c_last) S + sum over i of e^(c_last - c_i) U_i K_i^T
// Exponents are at most 0. Three kernels process a piece of chunks: the first makes Q, K and V, the
// second T and P, of all chunks at once; the third takes blocks of S's rows from chunk to chunk.
// Rows beyond the prompt's end are zeros and add zeros.
//
// Operands of products are sums of two bf16 (split_bf16), and the product of the two smaller parts
// is left out: about 2^-17 of a term is lost.
#pragma once
#include "kernels/cuda/attend/attend_io.cuh"
#include "kernels/cuda/recurrent/layer.cuh"

namespace riffle::cuda {

inline constexpr int kChunk = kRecurChunk;
inline constexpr int kPieceChunks = 16;  // a piece's scratch memory is near the L2 cache's size

// Blocks of 16 x 16 in the lower triangle of a chunk's matrix.
inline constexpr int kTriangle = 10;
RIFFLE_HOST_DEVICE constexpr int triangle_block(int row, int col) {
  return row * (row + 1) / 2 + col;
}
// Part 0 is the sum of the larger bf16s, 1 that of the smaller ones. A lane's 16 bytes are its
// operands of mma_bf16's b for rows 0 to 7 of the block (k = 0, 8), and then for rows 8 to 15.
using Triangle = uint4[kTriangle][2][32];

// A head's part of a chunk.
struct ChunkOfHead {
  double log_decay[kChunk];  // c, as a logarithm to base 2
  float decay[kChunk];       // e^(c_i)
  float rest[kChunk];        // e^(c_last - c_i)
  float strength[kChunk];    // beta
  Triangle solve, attend;    // T, P
};

// 64 queries or keys: two parts, each of matrices of 8 tokens and 8 columns, as ldmatrix takes
// them. Returns the place of a token's columns from 2 * pair on, which are one word. Places add up:
// that of (part, token + 8 i, pair + 4 j) is that of (0, token, pair) plus that of (part, 8 i, 4
// j).
template <int kDim>
RIFFLE_HOST_DEVICE constexpr int tile_word(int part, int token, int pair) {
  return ((part * (kChunk / 8) + token / 8) * (kDim / 8) + pair / 4) * 32 + token % 8 * 4 +
         pair % 4;
}
RIFFLE_HOST_DEVICE constexpr int64_t tile_bytes(int k_dim) { return 4 * kChunk * k_dim; }

// Chunks of a prompt, from row `first` on, and their scratch memory.
struct ChunkPiece {
  Layer<GatedDelta> layer;
  RecurPrompt prompt;
  int64_t first, n;  // rows
  std::byte* scratch;
  int64_t most_chunks;

  RIFFLE_HOST_DEVICE int64_t chunks() const { return (n + kChunk - 1) / kChunk; }
  RIFFLE_HOST_DEVICE int64_t tiles_bytes() const {
    return 2 * layer.keys() * tile_bytes(layer.k_dim());
  }
  RIFFLE_HOST_DEVICE int64_t values_bytes() const {
    return int64_t{4} * kChunk * layer.heads() * layer.v_dim();
  }
  RIFFLE_HOST_DEVICE int64_t chunk_bytes() const {
    return tiles_bytes() + values_bytes() +
           layer.heads() * static_cast<int64_t>(sizeof(ChunkOfHead));
  }
  __device__ std::byte* query(int64_t chunk, int64_t key) const {
    return scratch + chunk * tiles_bytes() + 2 * key * tile_bytes(layer.k_dim());
  }
  __device__ std::byte* key(int64_t chunk, int64_t key) const {
    return query(chunk, key) + tile_bytes(layer.k_dim());
  }
  // [kChunk][v_dim]
  __device__ float* values(int64_t chunk, int64_t head) const {
    return reinterpret_cast<float*>(scratch + most_chunks * tiles_bytes() +
                                    chunk * values_bytes()) +
           head * kChunk * layer.v_dim();
  }
  __device__ ChunkOfHead& of_head(int64_t chunk, int64_t head) const {
    return reinterpret_cast<ChunkOfHead*>(
        scratch + most_chunks * (tiles_bytes() + values_bytes()))[chunk * layer.heads() + head];
  }
  __device__ Inputs inputs() const {
    return {prompt.from,        nullptr, prompt.in,         layer.s.n_taps - 1, 0,
            layer.s.channels(), 0,       layer.s.in_width()};
  }
};

// Launchers of the three kernels. device: see ask_device.
struct GemvDevice;
Status launch_chunk_mix(const ChunkPiece& piece, cudaStream_t stream);
Status launch_chunk_solve(const ChunkPiece& piece, cudaStream_t stream);
Status launch_chunk_scan(const ChunkPiece& piece, const GemvDevice& device, cudaStream_t stream);
// Tells whether the device's shared memory is large enough.
bool chunk_kernels_fit(const GatedDelta& shape, const GemvDevice& device);

// Copies bytes to shared memory, 16 at a time, by all threads.
__device__ __forceinline__ void copy_tile(void* shared, const void* from, int bytes) {
  for (int i = 16 * static_cast<int>(threadIdx.x); i < bytes;
       i += 16 * static_cast<int>(blockDim.x))
    copy_async(static_cast<std::byte*>(shared) + i, static_cast<const std::byte*>(from) + i);
}

// 2^(a - b) for logarithms a <= b.
__device__ __forceinline__ float decay_between(double a, double b) {
  return exp2_approx(static_cast<float>(a - b));
}

#if __CUDA_ARCH__ >= 800

// An operand a of mma_bf16, in two parts.
struct Split {
  uint32_t high[4], low[4];

  Split() = default;
  // Takes 16 columns of an accumulator: its tiles of 8 columns have the layout of an operand.
  __device__ __forceinline__ Split(const float (&left)[4], const float (&right)[4]) {
    pair(0, left[0], left[1]), pair(1, left[2], left[3]);
    pair(2, right[0], right[1]), pair(3, right[2], right[3]);
  }
  // Reads what `store` wrote.
  __device__ __forceinline__ Split(const uint4 (*at)[32], int lane) {
    const uint4 h = at[0][lane], l = at[1][lane];
    high[0] = h.x, high[1] = h.y, high[2] = h.z, high[3] = h.w;
    low[0] = l.x, low[1] = l.y, low[2] = l.z, low[3] = l.w;
  }
  __device__ __forceinline__ void store(uint4 (*at)[32], int lane) const {
    at[0][lane] = make_uint4(high[0], high[1], high[2], high[3]);
    at[1][lane] = make_uint4(low[0], low[1], low[2], low[3]);
  }
  __device__ __forceinline__ void pair(int i, float x, float y) {
    high[i] = split_bf16(&x, &y);
    low[i] = split_bf16(&x, &y);
  }
};

// acc += a b, for kTiles tiles of 8 columns. high, low: the parts of b, of two tiles each. The
// tiles of a part are independent of each other, so the products of several tiles overlap.
template <int kTiles>
__device__ __forceinline__ void multiply(float (&acc)[kTiles][4], const Split& a,
                                         const uint32_t (&high)[kTiles / 2][4],
                                         const uint32_t (&low)[kTiles / 2][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; i++)
    mma_bf16(acc[i], a.low, high[i / 2][i % 2 * 2], high[i / 2][i % 2 * 2 + 1]);
#pragma unroll
  for (int i = 0; i < kTiles; i++)
    mma_bf16(acc[i], a.high, low[i / 2][i % 2 * 2], low[i / 2][i % 2 * 2 + 1]);
#pragma unroll
  for (int i = 0; i < kTiles; i++)
    mma_bf16(acc[i], a.high, high[i / 2][i % 2 * 2], high[i / 2][i % 2 * 2 + 1]);
}

#endif

}  // namespace riffle::cuda
