// Parts of the tensor-core kernels of prompt attention (flash_prefill.cu, flash_prefill_wide.cu):
// arguments, the key tiles that a query tile reads, tiles in shared memory, the masks and the
// softmax of a tile's scores in a warp's fragments.
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/prefill/flash_rows.cuh"
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {

struct FlashParams {
  const float* q;
  const float* sinks;
  const std::byte* blocks;
  const uint64_t* tiles;  // words of query tile 0; null: all keys are read
  void* out;
  int64_t ldq, ldo, n_blocks, block_bytes, value_offset, tile_words, head_words;
  int n, pos0;
  int offset;       // rows of query tile 0 before the chunk, if keys are chosen
  int window;       // keys that a query sees, its own included
  int group;        // heads of a KV head
  int block_shift;  // log2(block_size)
  float scale;      // log2(e) / sqrt(d): scores are exponents of two
  WType out_type;
};

// Query tiles with the most keys start first, so that the last CTAs to run are short ones. Heads
// are the fast index: those of a group run side by side and find each other's keys in L2.
__device__ __forceinline__ int query_tile() { return static_cast<int>(gridDim.y - 1 - blockIdx.y); }

// Words that say which key tiles the queries of rows first.. of the chunk read; null: all.
__device__ __forceinline__ const uint64_t* chosen_tiles(const FlashParams& p, int head, int first) {
  if (p.tiles == nullptr) return nullptr;
  return p.tiles + head * p.head_words + (first + p.offset) / kQueryTile * p.tile_words;
}

// Returns the first of the tiles [tile, end) of kKeys keys that is read; end: none.
template <int kKeys>
__device__ __forceinline__ int next_tile(const uint64_t* chosen, int tile, int end) {
  constexpr int kEach = kKeyTile / kKeys;  // tiles with one bit
  static_assert(kKeyTile % kKeys == 0);
  while (chosen != nullptr && tile < end) {
    const int bit = tile / kEach;
    const uint64_t rest = chosen[bit / 64] >> bit % 64;
    if (rest & 1) break;
    tile =
        (rest == 0 ? (bit / 64 + 1) * 64 : bit + __ffsll(static_cast<int64_t>(rest)) - 1) * kEach;
  }
  return min(tile, end);
}

// Returns the address of chunk c + 2 * pair of a row, given that of chunk c < 2.
__device__ __forceinline__ uint32_t skip_chunk_pairs(uint32_t address, int pair) {
  return (address ^ ((2 * pair & 7) << 4)) + ((2 * pair & ~7) << 4);
}

// Loads queries [first, first + kRows) of the head, scaled, as f16 (saturating), into shared
// memory; zeros after the last. T: the kernel's tile.
template <int kD, class T>
__device__ __forceinline__ void load_queries(const FlashParams& p, int first, int head,
                                             unsigned char* q_shared) {
  const bool aligned = p.ldq % 4 == 0;
  for (int i = static_cast<int>(threadIdx.x); i < T::kRows * T::kChunks; i += T::kThreads) {
    const int row = i / T::kChunks, c = i % T::kChunks;
    const bool valid = first + row >= 0 && first + row < p.n;
    const float* q =
        p.q + static_cast<int64_t>(first + row) * p.ldq + static_cast<int64_t>(head) * kD + 8 * c;
    *reinterpret_cast<uint4*>(q_shared + swizzled<T::kRowBytes>(row, c)) =
        load_query(valid ? q : nullptr, aligned, p.scale);
  }
}

// Masks a tile's scores: a warp's fragments of kM times 16 queries, from position warp_first on,
// and of 8 kNk keys from tile_first on. seen_first, seen_last: where the windows of the warp's
// first and last query begin.
template <int kM, int kNk>
__device__ __forceinline__ void mask_tile(float (&s)[kM][kNk][4], int tile_first, int warp_first,
                                          int seen_first, int seen_last) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (tile_first + 8 * kNk - 1 > warp_first) {  // on the diagonal: some key lies after some query
#pragma unroll
    for (int m = 0; m < kM; m++) {
      // Key tile_first + i lies after the query of this lane's row if i > limit.
      const int limit = warp_first - tile_first + 16 * m + lane / 4;
#pragma unroll
      for (int j = 0; j < kNk; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (8 * j + 2 * (lane & 3) + (e & 1) > limit + 8 * (e >> 1)) s[m][j][e] = -INFINITY;
        }
      }
    }
  }

  if (tile_first < seen_last) {  // on the window's edge: some key lies before some query's window
#pragma unroll
    for (int m = 0; m < kM; m++) {
      const int limit = seen_first - tile_first + 16 * m + lane / 4;
#pragma unroll
      for (int j = 0; j < kNk; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (8 * j + 2 * (lane & 3) + (e & 1) < limit + 8 * (e >> 1)) s[m][j][e] = -INFINITY;
        }
      }
    }
  }
}

// Takes a tile's scores into the online softmax of a warp's rows: o is scaled to the new maxima,
// and prob gets the probabilities as f16 pairs of rows lane / 4 and lane / 4 + 8. row_sum: of this
// lane's columns.
template <int kM, int kNk, int kNd>
__device__ __forceinline__ void take_scores(const float (&s)[kM][kNk][4], float (&row_max)[kM][2],
                                            float (&row_sum)[kM][2], float (&o)[kM][kNd][4],
                                            uint32_t (&prob)[kM][kNk][2]) {
  // Online softmax. A row's maximum is finite once its window has begun.
  float keep[kM][2];
  bool moved = false;
#pragma unroll
  for (int m = 0; m < kM; m++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top = row_max[m][r];
#pragma unroll
      for (int j = 0; j < kNk; j++) top = fmaxf(top, fmaxf(s[m][j][2 * r], s[m][j][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      keep[m][r] = exp2_approx(row_max[m][r] - reference(top));
      row_max[m][r] = top;
      row_sum[m][r] *= keep[m][r];
      moved |= keep[m][r] != 1.0f;
    }
  }
  // Far into a document maxima seldom move. Leaving out a product with 1 is exact, whatever the
  // other rows do.
  if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
    for (int m = 0; m < kM; m++) {
#pragma unroll
      for (int j = 0; j < kNd; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) o[m][j][e] *= keep[m][e >> 1];
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kM; m++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float top = reference(row_max[m][r]);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kNk; j++) {
        const float x = exp2_approx(s[m][j][2 * r] - top);
        const float y = exp2_approx(s[m][j][2 * r + 1] - top);
        sum += x + y;
        prob[m][j][r] = pack_f16(x, y);
      }
      row_sum[m][r] += sum;
    }
  }
}

}  // namespace riffle::cuda
