// Twilight's estimate on the device (arXiv 2502.02770; select/papers/twilight.cpp is the twin): the
// scores of the base's tokens by their INT4 keys. No KV is read except the tails' keys. Scores have
// the bits of the CPU's vector kernels (the tail's except for the order of a sum).
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/select/int4_mma.cuh"
#include "kernels/cuda/select/papers/top_p.cuh"

namespace riffle::cuda {
namespace {

// Queries as the CPU prepares them.
struct TokenQuery {
  float q[kMaxGroup][kMaxNarrowDim];
  QueryDigits<kMaxNarrowDim / 32> digits;
  float step[kMaxGroup], sum[kMaxGroup], top[kScoreThreads / 32][kMaxGroup];
};

// A warp a head.
__device__ inline void prepare_query(const TopPArgs& a, int row, TokenQuery& query) {
  const int d = a.step.layout.head_dim, words = (int4_words(d) + 3) / 4 * 4, h = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  const float* q = a.step.q + (int64_t(row) * a.g + h) * d;
  float largest = 0;
  for (int j = lane; j < d && h < a.g; j += 32) {
    const float x = __fmul_rn(q[j], a.scale);
    query.q[h][j] = x;
    largest = fmaxf(largest, fabsf(x));
  }
  for (int o = 16; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, o));
  const float step = __fdiv_rn(largest, kLargestDigits),
              inverse = step > 0 ? __fdiv_rn(kLargestDigits, largest) : 0;
  __syncwarp();
  for (int at = lane; at < 2 * words; at += 32) {
    uint32_t high = 0, low = 0;
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * at + i;
      const float x = h < a.g && j < d ? __fmul_rn(query.q[h][j], inverse) : 0;
      const float inside = fminf(fmaxf(x, -kLargestDigits), kLargestDigits);
      put_digits(static_cast<int>(inside < 0 ? __fsub_rn(inside, 0.5f) : __fadd_rn(inside, 0.5f)),
                 i, high, low);
    }
    query.digits[at / 2][at % 2][0][h] = high;
    query.digits[at / 2][at % 2][1][h] = low;
  }
  if (lane == 0) {
    double sum = 0;  // one after the other: the CPU's bits
    for (int j = 0; j < d && h < a.g; ++j) sum += double(query.q[h][j]);
    query.step[h] = step;
    query.sum[h] = static_cast<float>(sum);
  }
}

// A tile's scores of two tokens of the lane's head.
template <int Steps>
__device__ inline void score_tile(const uint32_t (&q)[Steps][4], const uint32_t (&code)[Steps],
                                  __half2 zeros, __half2 scales, float q_step, float q_sum,
                                  float (&to)[2]) {
  int32_t c[4] = {};
  mma_codes(c, q, code);
  const float2 zero = __half22float2(zeros), scale = __half22float2(scales);
  to[0] = __fadd_rn(__fmul_rn(scale.x, __fmul_rn(q_step, static_cast<float>(256 * c[0] + c[2]))),
                    __fmul_rn(zero.x, q_sum));
  to[1] = __fadd_rn(__fmul_rn(scale.y, __fmul_rn(q_step, static_cast<float>(256 * c[1] + c[3]))),
                    __fmul_rn(zero.y, q_sum));
}

// For a base with a test: stores the log mass of the block at a position to scratch.head_scores,
// and its largest score to scratch.bounds. largest: of this lane's tokens.
template <int N>
__device__ inline void keep_mass(const TopPArgs& a, int row, int h, int part, int p,
                                 const float (&score)[N][2], float largest) {
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  unsigned long long sum = 0;
#pragma unroll
  for (int tile = 0; tile < N; ++tile)
    sum += static_cast<unsigned long long>(fixed_weight(weight_below(score[tile][0], largest))) +
           fixed_weight(weight_below(score[tile][1], largest));
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (part != 0 || h >= a.g) return;
  const int64_t at = (int64_t(row) * a.g + h) * a.step.max_blocks + p;
  a.scratch.head_scores[at] = __fadd_rn(largest, logf(__ull2float_rn(sum) * 0x1p-30f));
  a.scratch.bounds[at] = largest;
}

// Sets the state that later kernels expect: counters and sums at 0, masks of only the forced
// blocks.
template <int kBlock>
__device__ inline void clear_row(const TopPArgs& a, const RowGeometry& r, int row, int n_tail) {
  if (blockIdx.x == 0 && threadIdx.x < kCounterStride)
    a.scratch.counters[row * kCounterStride + threadIdx.x] = 0;
  const int tail = r.n_forced - 1;
  for (int p = blockIdx.x * kScoreThreads + threadIdx.x; p < r.n_total;
       p += gridDim.x * kScoreThreads)
    a.scratch.masks[int64_t(row) * a.step.max_blocks + base_block(a, r, row, p)] =
        p >= r.n_forced ? 0 : ~uint64_t(0) >> (64 - (p == tail ? n_tail : kBlock));
  auto* sums = a.scratch.weight_sums + int64_t(row) * a.g * kWeightBins;
  for (int i = blockIdx.x * kScoreThreads + threadIdx.x; i < a.g * kWeightBins;
       i += gridDim.x * kScoreThreads)
    sums[i] = 0;
}

// The tail has no codes, so its keys themselves are read: each warp takes one token of one head.
// Places after the last token weigh nothing. Returns the largest score of head h, if this warp has
// any of it.
template <int kBlock>
__device__ inline float score_tail(const TopPArgs& a, const TokenQuery& query, int row, int h,
                                   int tail, int n_tail, float top) {
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const int d = a.step.layout.head_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::byte* keys = tail_of(a.step, sequence, row);
  for (int item = blockIdx.x * (kScoreThreads / 32) + warp; item < kBlock * a.g;
       item += gridDim.x * (kScoreThreads / 32)) {
    const int t = item / a.g, one = item % a.g;
    float sum = 0;
    for (int j = lane; j < d && t < n_tail; j += 32) {
      const float key = kv_at(a.step.layout.type, keys, d, t, j);
      sum = fmaf(query.q[one][j], key, sum);
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (t >= n_tail) sum = -INFINITY;
    if (lane == 0) scores_of(a, row, one)[int64_t(tail) * kBlock + t] = sum;
    if (h == one) top = fmaxf(top, sum);
  }
  return top;
}

// Stores the CTA's part of each head's largest score to scratch.sorted.
__device__ inline void store_top(const TopPArgs& a, TokenQuery& query, int row, int h, float top) {
  const int part = threadIdx.x % 4, warp = threadIdx.x / 32;
  if (part == 0) query.top[warp][h] = top;
  __syncthreads();
  if (threadIdx.x >= a.g) return;
  for (int w = 1; w < kScoreThreads / 32; ++w)
    top = fmaxf(w == 1 ? query.top[0][threadIdx.x] : top, query.top[w][threadIdx.x]);
  auto* parts = reinterpret_cast<float*>(a.scratch.sorted) +
                (int64_t(row) * a.g + threadIdx.x) * a.step.max_blocks;
  parts[blockIdx.x] = top;
}

// A warp has a block at a time, of Groups groups of 16 tokens; Steps: of 32 dimensions. Afterwards
// lane i has head i / 4, tokens 2 (i % 4) + {0, 1} of every 8.
template <int Steps, int Groups>
__global__ __launch_bounds__(kScoreThreads) void token_scores_kernel(
    const __grid_constant__ TopPArgs a) {
  __shared__ alignas(16) TokenQuery query;
  constexpr int kAtOnce = Groups == 1 || Steps == 8 ? 1 : 2,
                kTiles = 2 * kAtOnce;  // groups whose codes are in registers
  const int row = blockIdx.y, d = a.step.layout.head_dim, words = int4_words(d);
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  constexpr int kBlock = 16 * Groups;
  const RowGeometry r = base_geometry(a, sequence.n_tokens, kBlock);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = lane / 4, part = lane % 4;
  const int64_t group_bytes = int4_group_bytes(d);
  const std::byte* codes =
      sequence.codes + index_row(a.step, row) * sequence.max_blocks * Groups * group_bytes;
  const int warps = gridDim.x * (kScoreThreads / 32), tail = r.n_forced - 1, n = r.n_total - 1;
  // Positions, without the tail's.
  int i = blockIdx.x * (kScoreThreads / 32) + warp;
  const auto position = [&](int index) { return index < tail ? index : index + 1; };
  uint32_t code[kTiles][Steps];
  __half2 zeros[kTiles], scales[kTiles];
  const std::byte* block = nullptr;
  const auto find = [&] {
    block = codes + int64_t(base_block(a, r, row, position(i))) * Groups * group_bytes;
  };
  const auto load = [&](int group) {
    load_codes(block, group, group_bytes, words, part, h, code, zeros, scales);
  };
  // Codes were written before this step began, so they need not wait for the queries. But if the
  // base has an order, they must wait for it.
  if (!a.ranked && i < n) find(), load(0);
  allow_next();
  wait_for_earlier();
  if (a.ranked && i < n) find(), load(0);
  const int n_tail = sequence.n_tokens - r.n_full * kBlock;
  clear_row<kBlock>(a, r, row, n_tail);
  prepare_query(a, row, query);
  __syncthreads();
  uint32_t q[Steps][4];
  load_digits(query.digits, part, h, q);
  const float q_step = query.step[h], q_sum = query.sum[h];
  const bool masses = a.rule.base.progressive();

  float* out = scores_of(a, row, h < a.g ? h : 0) + 2 * part;
  float top = -INFINITY;
  while (i < n) {
    const int p = position(i);
    float score[2 * Groups][2];
#pragma unroll
    for (int group = 0; group < Groups; group += kAtOnce) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        score_tile(q, code[tile], zeros[tile], scales[tile], q_step, q_sum,
                   score[2 * group + tile]);
      }
      if (group + kAtOnce < Groups) {
        load(group + kAtOnce);
      } else {
        i += warps;
        if (i < n) find(), load(0);
      }
    }
    float largest = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < 2 * Groups; ++tile) {
      largest = fmaxf(largest, fmaxf(score[tile][0], score[tile][1]));
      if (h < a.g)
        *reinterpret_cast<float2*>(out + int64_t(p) * kBlock + 8 * tile) =
            make_float2(score[tile][0], score[tile][1]);
    }
    top = fmaxf(top, largest);
    if (masses) keep_mass(a, row, h, part, p, score, largest);
  }
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));

  top = score_tail<kBlock>(a, query, row, h, tail, n_tail, top);
  store_top(a, query, row, h, top);
}

}  // namespace

Status score_tokens(const DecodeStep& step, const TopPRule& rule, const PaperScratch& scratch,
                    int n_sm, cudaStream_t stream) {
  const TopPArgs a = top_p_arguments(step, rule, scratch, n_sm);
  const dim3 grid(static_cast<unsigned>(a.n_parts),
                  static_cast<unsigned>(step.n * step.n_kv_heads));
  const auto run = [&](auto kernel) {
    return launch(kernel, a, grid, kScoreThreads, step.overlap, stream);
  };
  const auto sized = [&](auto one, auto two, auto four) {
    return step.layout.block_size == 16   ? run(one)
           : step.layout.block_size == 32 ? run(two)
                                          : run(four);
  };
  return with_narrow_dim(step.layout.head_dim, [&](auto dim) {
    constexpr int kSteps = dim() / 32;
    return sized(token_scores_kernel<kSteps, 1>, token_scores_kernel<kSteps, 2>,
                 token_scores_kernel<kSteps, 4>);
  });
}

}  // namespace riffle::cuda
