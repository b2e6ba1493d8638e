// One warp attends to one block in shared memory on CUDA cores, for the query heads of a row:
// scores, softmax and values in f32. It serves f32 keys and values, and all types on devices before
// 8.0. A token's K (and V) is spread over kLanes lanes in 16-byte chunks, kTokens tokens a pass.
// Scores are summed over the lanes by exchanges that also distribute them, so that each lane ends
// up with scores of its own. Exponentials and logarithms are to base 2.
#pragma once
#include "kernels/cuda/attend/attend_io.cuh"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/softmax_state.cuh"
#include "kernels/cuda/kv_q8.cuh"

namespace riffle::cuda {

// Layout of a block in a stage and over a warp. T: element of K and V; D: head_dim padded (chunks
// beyond it are zero).
template <class T, int D>
struct BlockShape {
  static constexpr int kChunk = 16 / sizeof(T),
                       kChunks = D / kChunk;  // values a chunk, chunks a token
  static constexpr int kLanes = kChunks < 32 ? kChunks : 32,
                       kPerLane = (kChunks + kLanes - 1) / kLanes;
  static constexpr int kTokens = 32 / kLanes, kValues = kChunk * kPerLane;
};

// Blocks in 8 bits are computed in f16.
template <int D>
struct BlockShape<Q8Kv, D> : BlockShape<__half, D> {};

// Access to chunk c of token t's row in a stage. d: dimensions; counts: whether the token counts.
template <class T, int D>
struct StagedRows {
  __device__ static uint4 chunk(const uint4* rows, int t, int c, int, bool) {
    using Shape = BlockShape<T, D>;
    if (Shape::kChunks % Shape::kLanes != 0 && c >= Shape::kChunks) return make_uint4(0, 0, 0, 0);
    return rows[stage_chunk<Shape::kChunks>(t, c)];
  }
};
template <int D>
struct StagedRows<Q8Kv, D> {
  __device__ static uint4 chunk(const uint4* rows, int t, int c, int d, bool counts) {
    if (8 * c >= d || !counts) return make_uint4(0, 0, 0, 0);
    return q8_unpack_chunk(reinterpret_cast<const std::byte*>(rows) + t * q8_row_bytes(d), d, c);
  }
};

// G: heads, padded. A lane holds the values of its chunk for all heads, summed over the tokens of
// its token group only (the groups are summed at the end). It also holds the largest score and the
// sum of head lane % G.
template <class T, int D, int G>
struct CoreBlock {
  using Shape = BlockShape<T, D>;
  static constexpr int kLanes = Shape::kLanes, kTokens = Shape::kTokens, kValues = Shape::kValues;
  // Passes whose scores are summed together: one score for each lane, if the smallest block (16
  // tokens) allows it.
  static constexpr int kWanted = kLanes / G < 1 ? 1 : kLanes / G;
  static constexpr int kPasses = kWanted < 16 / kTokens ? kWanted : 16 / kTokens;
  static constexpr int kSums = kPasses * G;

  struct Shared {
    alignas(16) float p[kCtaWarps][64 * G];
  };

  float q[G][kValues];                // times log2(e) / sqrt(d)
  float o[G][kValues], m, s;          // merged so far
  float local[G][kValues], m_b, s_b;  // the last block's own
  int lane, dims;
  uint64_t counting;  // tokens of the last block that count

  __device__ int head() const { return lane % G; }
  __device__ bool leads() const { return lane < G; }
  // Counts the last block 2^log2_times times.
  __device__ void count_times(float log2_times) { m_b += log2_times; }
  __device__ float mass() const { return __fadd_rn(m_b, log2f(s_b)); }
  __device__ static int value_at(int sub, int j) {
    return (sub + j / Shape::kChunk * kLanes) * Shape::kChunk + j % Shape::kChunk;
  }

  __device__ void load_q(const float* from, int g, int d) {
    lane = threadIdx.x % 32;
    dims = d;
    const int sub = lane % kLanes;
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        const int x = value_at(sub, j);
        q[h][j] = h < g && x < d ? from[h * d + x] : 0.0f;
      }
  }
  __device__ void split_q(Shared&, float score_scale) {
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) q[h][j] *= score_scale;
  }
  __device__ void begin(const Shared&) {
    m = -INFINITY;
    s = 0;
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) o[h][j] = 0;
  }

  __device__ void load_values(const uint4* rows, int t, int sub, float (&out)[kValues]) const {
#pragma unroll
    for (int c = 0; c < Shape::kPerLane; ++c) {
      float part[Shape::kChunk];
      widen(StagedRows<T, D>::chunk(rows, t, sub + c * kLanes, dims, counting >> t & 1), part);
#pragma unroll
      for (int j = 0; j < Shape::kChunk; ++j) out[c * Shape::kChunk + j] = part[j];
    }
  }

  // k: [block_size][D]. A token counts if its bit in mask is set.
  __device__ void scores(const uint4* k, int block_size, uint64_t mask, Shared& shared) {
    const int sub = lane % kLanes, token0 = lane / kLanes;
    float* p = shared.p[threadIdx.x / 32];
    counting = mask;
#pragma unroll 2
    for (int t0 = 0; t0 < block_size; t0 += kPasses * kTokens) {
      float sums[kSums];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        float key[kValues];
        load_values(k, t0 + pass * kTokens + token0, sub, key);
#pragma unroll
        for (int h = 0; h < G; ++h) {
          float dot = 0;
#pragma unroll
          for (int j = 0; j < kValues; ++j) dot = __fmaf_rn(q[h][j], key[j], dot);
          sums[pass * G + h] = dot;
        }
      }
      reduce_split<kSums, kLanes>(sums, lane);
      constexpr int kMine = kSums > kLanes ? kSums / kLanes : 1,
                    kCopies = kSums < kLanes ? kLanes / kSums : 1;
      if (sub % kCopies == 0) {
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          const int value = sub / kCopies * kMine + i;
          p[(t0 + value / G * kTokens + token0) * G + value % G] = sums[i];
        }
      }
    }
    __syncwarp();

    // A lane's scores are those of head lane % G: 32 is a multiple of G.
    constexpr int kMost = 64 * G / 32;
    const int n = block_size * G;
    float x[kMost], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      x[i] = -INFINITY;
      if (32 * i < n && mask >> (lane + 32 * i) / G & 1) x[i] = p[lane + 32 * i];
      top = fmaxf(top, x[i]);
    }
#pragma unroll
    for (int w = 16; w >= G; w /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, w));
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (32 * i < n) {
        x[i] = exp2f(__fsub_rn(x[i], top));
        sum = __fadd_rn(sum, x[i]);
        p[lane + 32 * i] = x[i];
      }
#pragma unroll
    for (int w = 16; w >= G; w /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, w));
    m_b = top;
    s_b = sum;
    __syncwarp();
  }

  __device__ void values(const uint4* v, int block_size, const Shared& shared) {
    const int sub = lane % kLanes, token0 = lane / kLanes;
    const float* p = shared.p[threadIdx.x / 32];
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) local[h][j] = 0;
#pragma unroll 4
    for (int t = token0; t < block_size; t += kTokens) {
      float value[kValues];
      load_values(v, t, sub, value);
      float weight[G];
#pragma unroll
      for (int h = 0; h < G; h += 4) {
        const float4 four = *reinterpret_cast<const float4*>(p + t * G + h);
        weight[h] = four.x, weight[h + 1] = four.y, weight[h + 2] = four.z, weight[h + 3] = four.w;
      }
#pragma unroll
      for (int h = 0; h < G; ++h)
#pragma unroll
        for (int j = 0; j < kValues; ++j) local[h][j] = __fmaf_rn(weight[h], value[j], local[h][j]);
    }
    __syncwarp();
  }
  // Merges the last block's own values into those merged so far.
  __device__ void merge() {
    const auto exp2 = [](float x) { return exp2f(x); };
    merge_states(m, s, m_b, s_b, exp2, [&](float before, float now) {
#pragma unroll
      for (int h = 0; h < G; ++h) {
        const float x = __shfl_sync(kAllLanes, before, h), y = __shfl_sync(kAllLanes, now, h);
#pragma unroll
        for (int j = 0; j < kValues; ++j)
          o[h][j] = __fmaf_rn(local[h][j], y, __fmul_rn(o[h][j], x));
      }
    });
  }

  __device__ void store(float* to, int stride, int g) const {
    const int sub = lane % kLanes;
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        float x = o[h][j];
#pragma unroll
        for (int w = kLanes; w < 32; w *= 2) x += __shfl_xor_sync(kAllLanes, x, w);
        if (lane < kLanes && h < g && value_at(sub, j) < D) to[h * stride + value_at(sub, j)] = x;
      }
  }
  __device__ void save(float* at) const {
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) at[32 * (h * kValues + j)] = o[h][j];
  }
  __device__ void load(const float* at) {
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < kValues; ++j) o[h][j] = at[32 * (h * kValues + j)];
  }
};

}  // namespace riffle::cuda
