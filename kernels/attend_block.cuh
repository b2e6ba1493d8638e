// One warp attends to one block in shared memory, for the g query heads of a row: scores, softmax and values in f32 on CUDA
// cores. A token's K (and V) lies in 16-byte chunks over kLanes lanes, kTokens tokens a pass; scores are summed over the
// lanes with exchanges that also spread them, so that each lane ends up with scores of its own. All in base 2.
#pragma once
#include "kernels/stop.cuh"

namespace riffle::cuda {

// T: element of K and V; D: head_dim padded (chunks beyond head_dim are zero); G: heads padded.
template <class T, int D, int G>
struct BlockShape {
  static constexpr int kChunk = 16 / sizeof(T), kChunks = D / kChunk;  // values a chunk, chunks a token
  static constexpr int kLanes = kChunks < 32 ? kChunks : 32, kPerLane = kChunks / kLanes;
  static constexpr int kTokens = 32 / kLanes, kValues = kChunk * kPerLane;
  // Passes whose scores are summed together: a score a lane where the smallest block (16 tokens) allows it.
  static constexpr int kWanted = kLanes / G < 1 ? 1 : kLanes / G;
  static constexpr int kPasses = kWanted < 16 / kTokens ? kWanted : 16 / kTokens;
  static constexpr int kSums = kPasses * G;
};

// A warp's online softmax. A lane holds its chunk's values of all heads, for the tokens of its token group only (the groups
// are summed at the end), and the largest score and sum of head lane % G.
template <class T, int D, int G>
struct WarpState {
  using Shape = BlockShape<T, D, G>;
  float q[G][Shape::kValues];  // times log2(e) / sqrt(d)
  float o[G][Shape::kValues];
  float m, s;
};

template <class Shape>
__device__ inline void load_values(const uint4* token, int sub, float (&out)[Shape::kValues]) {
#pragma unroll
  for (int c = 0; c < Shape::kPerLane; ++c) {
    float part[Shape::kChunk];
    widen(token[sub + c * Shape::kLanes], part);
#pragma unroll
    for (int j = 0; j < Shape::kChunk; ++j) out[c * Shape::kChunk + j] = part[j];
  }
}

// k, v: [block_size][D], of which n_valid tokens count (the others are zeros). p: [block_size][G] of this warp. Returns the
// block's own log-sum-exp for head lane % G, natural.
template <class T, int D, int G>
__device__ inline float attend_block(const uint4* k, const uint4* v, float* p, int block_size, int n_valid,
                                     WarpState<T, D, G>& state) {
  using Shape = BlockShape<T, D, G>;
  constexpr int kLanes = Shape::kLanes, kTokens = Shape::kTokens, kPasses = Shape::kPasses, kSums = Shape::kSums;
  const int lane = threadIdx.x % 32, sub = lane % kLanes, token0 = lane / kLanes;

#pragma unroll 2
  for (int t0 = 0; t0 < block_size; t0 += kPasses * kTokens) {
    float sums[kSums];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      float key[Shape::kValues];
      load_values<Shape>(k + (t0 + pass * kTokens + token0) * Shape::kChunks, sub, key);
#pragma unroll
      for (int h = 0; h < G; ++h) {
        float dot = 0;
#pragma unroll
        for (int j = 0; j < Shape::kValues; ++j) dot = fmaf(state.q[h][j], key[j], dot);
        sums[pass * G + h] = dot;
      }
    }
    reduce_split<kSums, kLanes>(sums, lane);
    constexpr int kMine = kSums > kLanes ? kSums / kLanes : 1, kCopies = kSums < kLanes ? kLanes / kSums : 1;
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
  const int n = block_size * G, n_counted = n_valid * G;
  float x[kMost], top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    x[i] = -INFINITY;
    if (32 * i < n && lane + 32 * i < n_counted) x[i] = p[lane + 32 * i];
    top = fmaxf(top, x[i]);
  }
#pragma unroll
  for (int o = 16; o >= G; o /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, o));
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (32 * i < n) sum += x[i] = exp2f(x[i] - top);
#pragma unroll
  for (int o = 16; o >= G; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
  const float m = fmaxf(state.m, top), scale = exp2f(top - m), before = weight2(state.m, m);
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (32 * i < n && lane + 32 * i < n) p[lane + 32 * i] = x[i] * scale;
  if (__any_sync(kAllLanes, m != state.m)) {
#pragma unroll
    for (int h = 0; h < G; ++h) {
      const float w = __shfl_sync(kAllLanes, before, h);
#pragma unroll
      for (int j = 0; j < Shape::kValues; ++j) state.o[h][j] *= w;
    }
  }
  state.s = state.s * before + sum * scale;
  state.m = m;
  __syncwarp();

#pragma unroll 4
  for (int t = token0; t < block_size; t += kTokens) {
    float value[Shape::kValues];
    load_values<Shape>(v + t * Shape::kChunks, sub, value);
    float weight[G];
    if constexpr (G % 4 == 0) {
#pragma unroll
      for (int h = 0; h < G; h += 4) {
        const float4 four = *reinterpret_cast<const float4*>(p + t * G + h);
        weight[h] = four.x, weight[h + 1] = four.y, weight[h + 2] = four.z, weight[h + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int h = 0; h < G; ++h) weight[h] = p[t * G + h];
    }
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < Shape::kValues; ++j) state.o[h][j] = fmaf(weight[h], value[j], state.o[h][j]);
  }
  __syncwarp();
  return (top + log2f(sum)) * kLn2;
}

}  // namespace riffle::cuda
