// One warp attends to one block of f16 keys and values in shared memory with the tensor cores
// (compute capability 8.0 and later), for up to 8 query heads at once, about as exactly as f32
// arithmetic: queries and probabilities are split into two f16 each, and a product's 16 rows are
// the 8 heads' high parts and their low parts. Results of one head land in the same lanes: lane i
// has head i / 4. Fragment layouts: mma.cuh. Exponentials and logarithms are to base 2.
#pragma once
#include <type_traits>

#include "kernels/cuda/attend/attend_io.cuh"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/softmax_state.cuh"
#include "kernels/cuda/head_dims.h"

namespace riffle::cuda {

#if __CUDA_ARCH__ >= 800

// Splits a query, of which 16 neighbouring lanes have every 16th value each, into two f16: calls
// store(j, high, low) for raw[j]. Returns the factor that undoes the scaling.
template <int D, class Store>
__device__ inline float split_query(const float (&raw)[D / 16], Store&& store) {
  float largest = 0;
#pragma unroll
  for (int j = 0; j < D / 16; ++j) largest = fmaxf(largest, fabsf(raw[j]));
#pragma unroll
  for (int o = 8; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, o));
  // Scaled by a power of two that brings the largest one to 2^14 to 2^15. Low parts that underflow
  // are then at most 2^-38 of it.
  const int exponent = max(-100, min(100, static_cast<int>(__float_as_uint(largest) >> 23) - 127));
  const float up = __uint_as_float(static_cast<uint32_t>(127 + 14 - exponent) << 23);
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    const float x = raw[j] * up;
    const __half high = __float2half_rn(x);
    store(j, high, __float2half_rn(x - __half2float(high)));
  }
  return __uint_as_float(static_cast<uint32_t>(127 - 14 + exponent) << 23);
}

// Probabilities are at most 2^kHeadroom, so that their low parts do not underflow.
inline constexpr float kHeadroom = 14;

// Turns a lane's scores of its head (-inf for a token that does not count) into probabilities p, in
// two f16 each, and into the softmax m_b, s_b of the block. Four lanes have a head.
template <int kK>
__device__ inline void weigh_scores(const float (&x)[2 * kK][2], uint32_t (*p)[4], float& m_b,
                                    float& s_b) {
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < 2 * kK; ++i) top = fmaxf(top, fmaxf(x[i][0], x[i][1]));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
  m_b = __fsub_rn(top, kHeadroom);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2 * kK; ++i) {
    const float p0 = exp2_approx(__fsub_rn(x[i][0], m_b)),
                p1 = exp2_approx(__fsub_rn(x[i][1], m_b));
    sum = __fadd_rn(sum, __fadd_rn(p0, p1));
    const __half2 high = __floats2half2_rn(p0, p1);
    const float2 wide = __half22float2(high);
    p[i / 2][i % 2 * 2] = reinterpret_cast<const uint32_t&>(high);
    p[i / 2][i % 2 * 2 + 1] = pack_f16(__fsub_rn(p0, wide.x), __fsub_rn(p1, wide.y));
  }
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
  s_b = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
}

// Returns the address of chunk c + 2 * step of a token's row in a stage, given that of chunk c < 2.
__device__ inline uint32_t skip_chunks(uint32_t address, int step) {
  return (address ^ ((2 * step & 7) << 4)) + ((2 * step & ~7) << 4);
}

template <int D>
struct MmaBlock {
  // Steps of 16 dimensions of keys; tiles of 8 dimensions of values.
  static constexpr int kHeads = 8, kSteps = D / 16, kTiles = kValueDim<D> / 8, kRowBytes = 2 * D,
                       kChunks = D / 8;
  static constexpr bool kKeepQ = D <= 64;  // in registers; else from shared memory for every block
  // Registers cannot hold two copies of a wide head's output. So each block is added to the sum
  // immediately, and its result cannot be dropped later.
  static constexpr bool kMergesAtOnce = D > kMaxNarrowDim;
  static constexpr int kValues = 2 * kTiles;

  struct Shared {
    alignas(16)
        __half q[2 * kHeads][D + 8];  // high parts, low parts; the padding avoids bank conflicts
    float scale[kHeads];
  };

  // A softmax over some tokens: its values are sum 2^(score - m) v, and s is sum 2^(score - m).
  float o[kTiles][2], m, s;  // merged so far; columns 8 tile + 2 (lane % 4) + {0, 1}
  float local[kMergesAtOnce ? 1 : kTiles][2], m_b, s_b;  // the last block's own
  float before, now;  // factors of the values merged so far and of the last block's
  uint32_t q[kKeepQ ? kSteps : 1][4];
  uint32_t p[4][4];   // probabilities of 16 tokens each
  float raw[D / 16];  // q on its way to shared memory: 16 threads a head
  float scale;        // factor of products
  uint32_t q_at;
  int lane;

  __device__ int head() const { return lane / 4; }
  __device__ bool leads() const { return lane % 4 == 0; }
  // Counts the last block 2^log2_times times.
  __device__ void count_times(float log2_times) { m_b += log2_times; }
  __device__ float mass() const { return __fadd_rn(m_b, log2f(s_b)); }  // log2 of the last block's

  // All threads of the CTA call load_q and split_q; q: [g][d]. load_q only requests q. split_q and,
  // after a barrier, begin do the rest.
  __device__ void load_q(const float* from, int g, int d) {
    lane = threadIdx.x % 32;
    const int h = threadIdx.x / 16, sub = threadIdx.x % 16;
#pragma unroll
    for (int j = 0; j < D / 16; ++j)
      raw[j] = h < g && sub + 16 * j < d ? from[h * d + sub + 16 * j] : 0.0f;
  }
  __device__ void split_q(Shared& shared, float score_scale) {
    split_q_to(shared, score_scale, [](int x) { return x; });
  }
  // place: where dimension x of a head lies in shared memory.
  template <class Place>
  __device__ void split_q_to(Shared& shared, float score_scale, Place place) {
    const int h = threadIdx.x / 16, sub = threadIdx.x % 16;
    const float down = split_query<D>(raw, [&](int j, __half high, __half low) {
      const int at = place(sub + 16 * j);
      shared.q[h][at] = high;
      shared.q[h + kHeads][at] = low;
    });
    if (sub == 0) shared.scale[h] = score_scale * down;
  }
  __device__ void begin(const Shared& shared) {
    q_at = shared_address(&shared.q[lane % 8 + (lane / 8 & 1) * 8][lane / 16 * 8]);
    if constexpr (kKeepQ)
#pragma unroll
      for (int step = 0; step < kSteps; ++step) ldmatrix4(q[step], q_at + 32 * step);
    scale = shared.scale[head()];
    m = -INFINITY;
    s = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) o[i][0] = o[i][1] = 0;
  }

  // Computes p, m_b and s_b. k: [16 kK tokens][D] in a stage. Only tokens with a bit in mask count.
  template <int kK>
  __device__ void scores_of(const uint4* k, uint64_t mask) {
    using Bits = std::conditional_t<kK <= 2, uint32_t, uint64_t>;
    const Bits counts = static_cast<Bits>(mask) >> 2 * (lane % 4);
    constexpr int kChains = kK <= 2 ? 2 : 1;  // enough independent products
    const int t = lane % 8 + lane / 16 * 8;
    const uint32_t k_at = shared_address(k + stage_chunk<kChunks>(t, lane / 8 & 1));
    float c[2 * kK][kChains][4];
#pragma unroll
    for (int i = 0; i < 2 * kK; ++i)
#pragma unroll
      for (int j = 0; j < kChains; ++j) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
        // Not unrolled where possible: code that other kernels have pushed out of the instruction
        // cache costs more than the loop.
#pragma unroll(kKeepQ ? kSteps : 2)
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (!kKeepQ) ldmatrix4(q[0], q_at + 32 * step);
#pragma unroll
      for (int i = 0; i < kK; ++i) {
        uint32_t b[4];
        ldmatrix4(b, skip_chunks(k_at, step) + i * 16 * kRowBytes);
        mma_16816(c[2 * i][step % kChains], q[kKeepQ ? step : 0], b[0], b[1]);
        mma_16816(c[2 * i + 1][step % kChains], q[kKeepQ ? step : 0], b[2], b[3]);
      }
    }
    float x[2 * kK][2];
#pragma unroll
    for (int i = 0; i < 2 * kK; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float high = c[i][0][j], low = c[i][0][j + 2];
        if constexpr (kChains == 2)
          high = __fadd_rn(high, c[i][1][j]), low = __fadd_rn(low, c[i][1][j + 2]);
        x[i][j] = counts >> (8 * i + j) & 1 ? __fmul_rn(__fadd_rn(high, low), scale) : -INFINITY;
      }
    weigh<kK>(x);
  }
  template <int kK>
  __device__ void weigh(const float (&x)[2 * kK][2]) {
    weigh_scores<kK>(x, p, m_b, s_b);
  }
  // Takes column j of a tile of the last block's values.
  __device__ void take_value(int tile, int j, float value) {
    if constexpr (kMergesAtOnce) o[tile][j] = __fmaf_rn(value, now, __fmul_rn(o[tile][j], before));
    else local[tile][j] = value;
  }
  __device__ void begin_values() {
    if constexpr (kMergesAtOnce) merge_factors();
  }
  // v: [16 kK tokens][D], zeros after the tokens held.
  template <int kK>
  __device__ void values_of(const uint4* v) {
    begin_values();
    const int t = lane % 8 + (lane / 8 & 1) * 8;
    const uint32_t v_at = shared_address(v + stage_chunk<kChunks>(t, lane / 16));
#pragma unroll
    for (int step = 0; step < kTiles / 2; ++step) {
      float c[2][4] = {};
#pragma unroll
      for (int i = 0; i < kK; ++i) {
        uint32_t b[4];
        ldmatrix4_trans(b, skip_chunks(v_at, step) + i * 16 * kRowBytes);
        mma_16816(c[0], p[i], b[0], b[1]);
        mma_16816(c[1], p[i], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) take_value(2 * step + i, j, __fadd_rn(c[i][j], c[i][j + 2]));
    }
  }

  __device__ void scores(const uint4* k, int block_size, uint64_t mask, Shared&) {
    if (block_size == 32) scores_of<2>(k, mask);
    else if (block_size == 16) scores_of<1>(k, mask);
    else scores_of<4>(k, mask);
  }
  __device__ void values(const uint4* v, int block_size, const Shared&) {
    if (block_size == 32) values_of<2>(v);
    else if (block_size == 16) values_of<1>(v);
    else values_of<4>(v);
  }
  // Merges the last block's softmax into the one so far, and sets the factors of both's values.
  __device__ void merge_factors() {
    const auto exp2 = [](float x) { return exp2_approx(x); };
    merge_states(m, s, m_b, s_b, exp2, [&](float x, float y) { before = x, now = y; });
  }
  // Merges the last block's own values into those merged so far.
  __device__ void merge() {
    if constexpr (kMergesAtOnce) return;
    merge_factors();
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        o[i][j] = __fmaf_rn(local[kMergesAtOnce ? 0 : i][j], now, __fmul_rn(o[i][j], before));
  }

  // to: [g][stride] floats.
  __device__ void store(float* to, int stride, int g) const {
    if (head() >= g) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      *reinterpret_cast<float2*>(to + head() * stride + 8 * i + 2 * (lane % 4)) =
          make_float2(o[i][0], o[i][1]);
    store_rest(to, stride);
  }
  // Stores zeros in the dimensions that keys have and values do not.
  __device__ void store_rest(float* to, int stride) const {
    for (int x = kValueDim<D> + lane % 4; x < D; x += 4) to[head() * stride + x] = 0;
  }
  // Lane states between launches: value i is at at[32 * i].
  __device__ void save(float* at) const {
#pragma unroll
    for (int i = 0; i < kValues; ++i) at[32 * i] = o[i / 2][i % 2];
  }
  __device__ void load(const float* at) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) o[i / 2][i % 2] = at[32 * i];
  }
};

#endif

}  // namespace riffle::cuda
