// The choice of the key tiles that a prompt's queries read (ChooseTiles). A CTA takes a query tile
// of one head and goes through the mean keys twice. First it computes each query's total weight.
// Then it marks the key tiles that have more than the share for some query.
#include <cmath>

#include "kernels/common/agreed.h"
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/prefill/flash_rows.cuh"
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

struct Params {
  const float* q;
  const __half* means;
  uint64_t* tiles;
  unsigned long long* counts;
  int64_t ldq, tile_words, stride;
  int n, pos0, offset, group, whole_begin, whole_end;
  float scale;  // log2(e) / sqrt(d): scores are exponents of two
  float share;  // log2 of the share
};

// Rows lie in shared memory padded by 16 bytes, so that the eight rows that ldmatrix takes at once
// fall into different banks.
template <int kD>
struct Tile {
  static constexpr int kRow = 2 * kD + 16, kQBytes = kQueryTile * kRow,
                       kSharedBytes = kQBytes + kKeyTile * kRow;
};

#if __CUDA_ARCH__ >= 800

template <int kD>
__device__ void load_queries(const Params& p, int first, int head, unsigned char* to) {
  const bool aligned = p.ldq % 4 == 0;
  for (int i = static_cast<int>(threadIdx.x); i < kQueryTile * (kD / 8); i += kThreads) {
    const int row = i / (kD / 8), c = 8 * (i % (kD / 8));
    const float* q = p.q + (first + row) * p.ldq + static_cast<int64_t>(head) * kD + c;
    *reinterpret_cast<uint4*>(to + row * Tile<kD>::kRow + 2 * c) = load_query(q, aligned, p.scale);
  }
}

// Loads kKeyTile rows of kD values; those from row n on are zeros.
template <int kD>
__device__ __forceinline__ void load_rows(unsigned char* to, const __half* from, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < kKeyTile * (kD / 8); i += kThreads) {
    const int row = i / (kD / 8), c = 8 * (i % (kD / 8));
    *reinterpret_cast<uint4*>(to + row * Tile<kD>::kRow + 2 * c) =
        row < n ? *reinterpret_cast<const uint4*>(from + row * kD + c) : make_uint4(0, 0, 0, 0);
  }
}

static_assert(kKeyTile == 64);  // a word has a bit for each column of scores
using Scores = float[2][kKeyTile / 8][4];

// Scores of the warp's 32 queries and the 64 rows in shared memory. A lane has rows lane / 4 and
// lane / 4 + 8 of both halves, and columns 8 j + 2 (lane % 4) and the next.
template <int kD>
__device__ __forceinline__ void multiply(uint32_t q, uint32_t k, Scores& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t by_rows = q + (32 * warp + (lane & 15)) * Tile<kD>::kRow + (lane >> 4) * 16,
                 by_columns =
                     k + ((lane & 7) + (lane >> 4 << 3)) * Tile<kD>::kRow + (lane >> 3 & 1) * 16;
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int j = 0; j < kKeyTile / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[m][j][e] = 0;
#pragma unroll 2
  for (int c = 0; c < kD / 16; c++) {
    uint32_t a[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++) ldmatrix4(a[m], by_rows + m * 16 * Tile<kD>::kRow + 32 * c);
#pragma unroll
    for (int j = 0; j < kKeyTile / 16; j++) {
      uint32_t b[4];
      ldmatrix4(b, by_columns + j * 16 * Tile<kD>::kRow + 32 * c);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        mma_16816(s[m][2 * j], a[m], b[0], b[1]);
        mma_16816(s[m][2 * j + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// A lane's rows: maximum and sum of this lane's columns.
struct Weights {
  float top[2][2], sum[2][2];

  // Adds the weights of the first n columns.
  __device__ __forceinline__ void add(const Scores& s, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float x[kKeyTile / 4], most = top[m][r];
#pragma unroll
        for (int i = 0; i < kKeyTile / 4; i++) {
          const int column = 8 * (i / 2) + 2 * (lane & 3) + i % 2;
          x[i] = column < n ? s[m][i / 2][2 * r + i % 2] : -INFINITY;
          most = fmaxf(most, x[i]);
        }
        sum[m][r] *= exp2_approx(top[m][r] - reference(most));
        top[m][r] = most;
#pragma unroll
        for (int i = 0; i < kKeyTile / 4; i++) sum[m][r] += exp2_approx(x[i] - reference(most));
      }
  }
};

#endif

template <int kD>
__global__ void __launch_bounds__(kThreads) choose_kernel(const Params p) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const rows = shared + Tile<kD>::kQBytes;
  const uint32_t q_shared = shared_address(shared), k_shared = q_shared + Tile<kD>::kQBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x);
  // Query tiles with the most keys start first, so that the last CTAs to run are short ones.
  const int number = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int first = number * kQueryTile - p.offset, position = p.pos0 + first;
  const int kv_head = head / p.group;
  uint64_t* words = p.tiles + (static_cast<int64_t>(head) * gridDim.y + number) * p.tile_words;
  const int end = min(position + kQueryTile, p.pos0 + p.n), n_tiles = (end - 1) / kKeyTile + 1;
  const int near = max(1, position / kKeyTile - kNearTiles);
  const bool whole = first >= 0 && first + kQueryTile <= p.n && position >= p.whole_begin &&
                     position + kQueryTile <= p.whole_end;
  const auto all_below = [](int tile, int word) {
    const int n = tile - 64 * word;
    return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1;
  };
  if (!whole || near <= 1) {
    for (int i = static_cast<int>(threadIdx.x); i < p.tile_words; i += kThreads)
      words[i] = all_below(n_tiles, i);
    if (whole && p.counts != nullptr && threadIdx.x == 0) {
      atomicAdd(&p.counts[0], static_cast<unsigned long long>(n_tiles));
      atomicAdd(&p.counts[1], static_cast<unsigned long long>(n_tiles));
    }
    return;
  }
  load_queries<kD>(p, first, head, shared);

  Scores s;
  Weights weights;
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) weights.top[m][r] = -INFINITY, weights.sum[m][r] = 0;
  const __half* means = p.means + kv_head * p.stride * kD;
  const int n_means = position / kKeyTile, n_words = (n_means + 63) / 64;
  const auto score_means = [&](int word) {
    __syncthreads();
    load_rows<kD>(rows, means + static_cast<int64_t>(word) * 64 * kD, n_means - 64 * word);
    __syncthreads();
    multiply<kD>(q_shared, k_shared, s);
  };
  for (int word = 0; word < n_words; word++) {
    score_means(word);
    weights.add(s, n_means - 64 * word);
  }
  float least[2][2];  // the score at which a tile has just the share
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top = weights.top[m][r], sum = weights.sum[m][r];
#pragma unroll
      for (int apart = 1; apart < 4; apart *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, top, apart),
                    others = __shfl_xor_sync(0xffffffffu, sum, apart);
        const float most = fmaxf(top, other);
        sum = sum * exp2_approx(top - reference(most)) +
              others * exp2_approx(other - reference(most));
        top = most;
      }
      least[m][r] = top + log2f(sum) + p.share;
    }
  unsigned read = 0;
  for (int word = 0; word < p.tile_words; word++) {
    uint64_t bits = 0;
    if (word < n_words) {
      if (n_words > 1 || word > 0) score_means(word);  // else the scores are still there
      uint64_t mine = 0;
#pragma unroll
      for (int i = 0; i < kKeyTile / 4; i++) {
        const int column = 8 * (i / 2) + 2 * (lane & 3) + i % 2;
        bool any = false;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int r = 0; r < 2; r++) any |= least[m][r] < s[m][i / 2][2 * r + i % 2];
        mine |= static_cast<uint64_t>(any) << column;
      }
      const uint64_t low = __reduce_or_sync(0xffffffffu, static_cast<uint32_t>(mine)),
                     high = __reduce_or_sync(0xffffffffu, static_cast<uint32_t>(mine >> 32));
      // The padding of the first rows holds the warps' bits: with a head size of 256, an RTX 30 or
      // 40 has no other byte of shared memory left.
      const auto of_warp = [&](int w) {
        return reinterpret_cast<uint64_t*>(shared + w * Tile<kD>::kRow + 2 * kD);
      };
      if (lane == 0) *of_warp(static_cast<int>(threadIdx.x) / 32) = high << 32 | low;
      __syncthreads();
      for (int w = 0; w < kWarps; w++) bits |= *of_warp(w);
      bits &= all_below(near, word);
    }
    if (word == 0) bits |= 1;
    bits |= all_below(n_tiles, word) & ~all_below(near, word);
    if (threadIdx.x == 0) words[word] = bits;
    read += __popcll(bits);
  }
  if (p.counts != nullptr && threadIdx.x == 0) {
    atomicAdd(&p.counts[0], static_cast<unsigned long long>(n_tiles));
    atomicAdd(&p.counts[1], static_cast<unsigned long long>(read));
  }
#endif
}

template <int kD>
Status launch_choice(dim3 grid, const Params& p, const DeviceLimits& limits, cudaStream_t stream) {
  constexpr int kBytes = Tile<kD>::kSharedBytes;
  if (kBytes > limits.smem_per_block) return cudaErrorNotSupported;
  const auto kernel = choose_kernel<kD>;
  if (Status status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess)
    return status;
  kernel<<<grid, kThreads, kBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

Status choose_tiles(const FlashPrefill& of, const ChooseTiles& a, const DeviceLimits& limits,
                    cudaStream_t stream) {
  if (limits.compute < 80) return cudaErrorNotSupported;
  const int64_t end = of.pos0 + of.n;
  if (of.n <= 0 || end > 1 << 30 || of.window > 0 || of.layout.type == KvType::Q8 ||
      of.tile_words * 64 * kKeyTile < end || !(a.share > 0))
    return cudaErrorInvalidValue;
  Params p;
  p.q = of.q;
  p.means = static_cast<const __half*>(a.means), p.tiles = a.tiles, p.counts = a.counts;
  p.ldq = of.ldq;
  p.tile_words = of.tile_words, p.stride = a.stride;
  p.n = static_cast<int>(of.n), p.pos0 = static_cast<int>(of.pos0);
  p.offset = p.pos0 % kQueryTile, p.group = of.n_heads / of.n_kv_heads;
  p.whole_begin = static_cast<int>(a.whole_begin), p.whole_end = static_cast<int>(a.whole_end);
  p.scale = query_scale(of.layout.head_dim);
  p.share = std::log2(a.share);
  const dim3 grid(of.n_heads,
                  static_cast<unsigned>((p.offset + of.n + kQueryTile - 1) / kQueryTile));
  return with_head_dim(of.layout.head_dim, [&](auto dim) {
    return launch_choice<decltype(dim)::value>(grid, p, limits, stream);
  });
}

}  // namespace riffle::cuda
