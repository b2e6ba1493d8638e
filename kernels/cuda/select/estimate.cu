// Estimates from 2-bit keys the log mass that each full block holds for each query head: for the
// selector share (choose_share.cu), and for others that rank by these keys. In base 2. These
// kernels read no KV except the tails' keys.
//
// The codes of a step are read once, so speed depends on the number of bytes in flight and on the
// number of instructions a block. A warp's ring in shared memory holds the codes of its next
// blocks.
#include <algorithm>

#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/select/int2.cuh"
#include "kernels/cuda/select/int4_mma.cuh"

namespace riffle::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
// Stages of a warp's ring: four, or two if codes are long. Steps: number of steps, of 32 dimensions
// each.
template <int Steps>
constexpr int kStagesOf = 32 * Steps > kMaxNarrowDim ? 2 : 4;
constexpr float kLowest = -1e30f;  // log mass of nothing

struct EstimateArgs {
  DecodeStep step;
  DecodeScratch scratch;
  int g, group;  // query heads of a row; the most of a part (blockIdx.z)
  float scale;   // log2(e) / sqrt(d)
};

// The heads of a row that a CTA has.
struct Part {
  int first, n;
};

template <int Steps>
struct Query {
  QueryDigits<Steps> digits;
  float step[kMaxGroup], sum[kMaxGroup];
};

// Rotates the queries as the codes are, and cuts them into digits. Steps: of 32 dimensions. Digits
// beyond head_dim are 0, so codes beyond it may be anything. rows: scratch, one query a warp.
template <int Steps, int kHeads>
__device__ inline void prepare_query(const EstimateArgs& a, int row, const Part& part,
                                     float (*rows)[32 * Steps], Query<Steps>& query) {
  const int d = a.step.layout.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kFours = (8 * Steps + 31) / 32;
  for (int h = warp; h < kHeads; h += kWarps) {
    const float* q = a.step.q + (int64_t(row) * a.g + part.first + h) * d;
    float x[Steps], largest = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < Steps; ++i)
      x[i] = h < part.n && lane + 32 * i < d ? q[lane + 32 * i] * a.scale : 0;
    if (a.step.layout.type != KvType::Q8) hadamard_warp(x, d);  // Q8 comes rotated
#pragma unroll
    for (int i = 0; i < Steps; ++i) {
      largest = fmaxf(largest, fabsf(x[i])), sum += x[i];
      rows[warp][lane + 32 * i] = x[i];
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, o));
      sum += __shfl_xor_sync(kAllLanes, sum, o);
    }
    const float inverse = largest > 0 ? kLargestDigits / largest : 0;
    __syncwarp();
    int total = 0;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int at = lane + 32 * i;
      if (at >= 8 * Steps) break;
      uint32_t high = 0, low = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float y = rows[warp][4 * at + j] * inverse;
        const int value = __float2int_rn(fminf(fmaxf(y, -kLargestDigits), kLargestDigits));
        put_digits(value, j, high, low);
        total += value;
      }
      query.digits[at / 2][at % 2][0][h] = high;
      query.digits[at / 2][at % 2][1][h] = low;
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) total += __shfl_xor_sync(kAllLanes, total, o);
    // The sum of the digits, so that their rounding cancels. A query that is not finite has none.
    if (lane == 0) {
      query.step[h] = largest / kLargestDigits;
      query.sum[h] = isfinite(sum) ? query.step[h] * static_cast<float>(total) : sum;
    }
    __syncwarp();  // before the row is used again
  }
}

// The tail has no codes, so its keys are read, for one head a warp. The last warps have the fewest
// blocks and come first.
__device__ inline void score_tail(const EstimateArgs& a, int row, const Part& part, int n_full,
                                  int warp, int warps) {
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const int d = a.step.layout.head_dim, lane = threadIdx.x % 32;
  const std::byte* tail = tail_of(a.step, sequence, row);
  const int n_tail = sequence.n_tokens - n_full * a.step.layout.block_size;
#pragma unroll 1
  for (int item = warps - 1 - warp; item < n_tail * part.n; item += warps) {
    const int t = item / part.n, head = part.first + item % part.n;
    const float* q = a.step.q + (int64_t(row) * a.g + head) * d;
    float sum = 0;
    for (int j = lane; j < d; j += 32)
      sum = fmaf(q[j] * a.scale, kv_at(a.step.layout.type, tail, d, t, j), sum);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (lane == 0)
      a.scratch.tail_scores[(int64_t(row) * a.scratch.head_stride + head) * kMaxBlock + t] = sum;
  }
}

// 16 bytes into shared memory, asynchronously where there are such copies (8.0 and later), in
// groups.
__device__ inline void copy_chunk(uint32_t to, const void* from) {
#if __CUDA_ARCH__ >= 800
  cp_async16(to, from);
#else
  const uint4 x = *static_cast<const uint4*>(from);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
#endif
}
__device__ inline void end_group() {
#if __CUDA_ARCH__ >= 800
  cp_async_commit();
#endif
}
template <int kLeft>
__device__ inline void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  cp_async_wait<kLeft>();
#endif
}
__device__ inline uint32_t load_shared(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
// Keeps the compiler from computing a value again wherever it is used, which took a third of the
// instructions of a block.
template <class T>
__device__ inline T in_register(T x) {
  static_assert(sizeof(T) == 4);
  asm volatile("" : "+r"(x));
  return x;
}
__device__ inline uint4 load_shared_16(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
__device__ inline float2 halves_at(uint32_t shared) {
  const uint32_t word = load_shared(shared);
  return __half22float2(reinterpret_cast<const __half2&>(word));
}

// A warp's codes on their way through shared memory: a stage has one unit (int2.cuh), which lies in
// one piece in global memory. Chunks are 16 bytes.
template <int Steps, int kGroups>
struct Ring {
  // Chunks of the largest unit, rounded up to a multiple of 4: `place` permutes each four.
  static constexpr int kChunks = (int2_unit_bytes(kGroups, 32 * Steps) / 16 + 3) / 4 * 4;
  static constexpr uint32_t kBytes = 16 * kChunks;  // bytes of a stage
  uint32_t to;                                      // where this lane's first chunk of stage 0 goes
  const std::byte* from;                            // this lane's first chunk of the next unit
  int64_t unit_bytes, skipped_bytes;
  int left_of_unit;                // chunks from this lane's first on
  int units, left_of_block, left;  // units of a block, and those that are to be requested

  // Chunks lie so that the lanes of parts 0 and 1 and those of parts 2 and 3, which read words 8
  // chunks apart, read from different banks.
  __device__ static int place(int chunk) { return chunk ^ (chunk >> 2 & 2); }

  // A group of copies, or an empty one if no units are left.
  __device__ void request(uint32_t stage) {
    if (left > 0) {
      const uint32_t at = to + stage * kBytes;
#pragma unroll
      for (int i = 0; i < (kChunks + 31) / 32; ++i)  // place(lane + 32 i) = place(lane) + 32 i
        if (left_of_unit > 32 * i) copy_chunk(at + 512 * i, from + 512 * i);
      from += unit_bytes;
      if (--left_of_block == 0) left_of_block = units, from += skipped_bytes;
      --left;
    }
    end_group();
  }
};

// Log masses that a warp has estimated: lanes of part i keep that of the i-th block of four, and
// the logarithms of four are taken at once.
struct Masses {
  float* to;  // place of the first of the four
  int64_t stride;
  float top, sum;
  int n;

  __device__ void keep(int part, float m, float s) {
    if (part == n) top = m, sum = s;
    ++n;
  }
  __device__ void store(int part, bool valid) {
    if (valid && part < n) to[part * stride] = top + log2f(sum);
    to += 4 * stride;
    n = 0;
  }
};

// For a row that reads everything (RowRule::everything_below): makes no estimates, only the numbers
// that attention needs. It waits for the previous kernel as all other rows do, since the next
// kernel takes the end of this one for the end of both.
__device__ inline void skip_estimates(const EstimateArgs& a, int row) {
  allow_next();
  wait_for_earlier();
  if (blockIdx.x == 0 && threadIdx.x < kCounterStride)
    a.scratch.counters[row * kCounterStride + threadIdx.x] = 0;
}

// Makes a warp's ring for blocks `first`, first + warps, ... of a row. n_units: their units.
template <int Steps, int kGroups>
__device__ inline Ring<Steps, kGroups> ring_of(const EstimateArgs& a, int row, uint32_t stages,
                                               int first, int warps, int units, int n_units) {
  using WarpRing = Ring<Steps, kGroups>;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const int d = a.step.layout.head_dim, lane = threadIdx.x % 32,
            unit_bytes = int2_unit_bytes(kGroups, d);
  const int64_t index = index_row(a.step, row),
                block_bytes = int2_block_bytes(a.step.layout.block_size, d);
  WarpRing ring;
  ring.to = in_register(stages + 16 * WarpRing::place(lane));
  ring.from = sequence.codes + (index * sequence.max_blocks + first) * block_bytes + 16 * lane;
  ring.unit_bytes = unit_bytes;
  ring.skipped_bytes = (warps - 1) * block_bytes;
  ring.left_of_unit = in_register(unit_bytes / 16 - lane);
  ring.units = ring.left_of_block = units;
  ring.left = n_units;
  return ring;
}

// A lane's factors of codes: a head's digits, and the scale of its scores.
template <int Steps>
struct LaneQuery {
  uint32_t digits[Steps][4];
  float step, sum;
};

// Where a lane reads in stage 0: the code words of its token of each tile of 8 tokens; the scales
// of tokens 2 part and 2 part + 1 of its tiles; the mean. Four lanes of a token share the words:
// lane i of them has words i, i + 4, ..., of 16 dimensions each. kShared: there are 4 heads at
// most, and lanes h and h + 4 have the same one. The former has the first half of its tokens, the
// latter (upper) has the others. A head's tokens of one part are summed in the same order either
// way.
template <int Steps, int kGroups, bool kShared>
struct LaneCodes {
  static constexpr int kTiles = 2 * kGroups, kMine = kShared ? kGroups : kTiles;
  uint32_t code_at[kTiles], scale_at[kMine], mean_at[Steps / 2], mean_scale_at;
  bool upper;

  __device__ LaneCodes(uint32_t stages, int words, int lane, bool upper_) : upper(upper_) {
    using WarpRing = Ring<Steps, kGroups>;
    const int token = lane / 4, part = lane % 4, scales = 4 * words * kGroups,
              means = scales + 2 * kGroups;
    const auto at = [&](int chunk) { return stages + 16 * WarpRing::place(chunk); };
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      code_at[tile] = in_register(at(tile / 2 * 4 * words + 4 * part + tile % 2 * 2 + token / 4) +
                                  token % 4 * 4);
#pragma unroll
    for (int j = 0; j < kMine; ++j)
      scale_at[j] = in_register(at(scales + (upper ? j + kTiles - kMine : j)) + 4 * part);
#pragma unroll
    for (int i = 0; i < Steps / 2; ++i) mean_at[i] = in_register(at(means + part + 4 * i));
    mean_scale_at = in_register(at(means + words));
  }

  // Computes the product of the lane's head with the unit's mean. Every column of the product is
  // the same.
  __device__ float of_mean(const LaneQuery<Steps>& q, uint32_t at) const {
    int32_t c[4] = {};
#pragma unroll
    for (int i = 0; i < Steps / 2; ++i) {
      const uint4 mean = load_shared_16(mean_at[i] + at);
      mma_16832(c, q.digits[2 * i], mean.x, mean.y);
      mma_16832(c, q.digits[2 * i + 1], mean.z, mean.w);
    }
    const float joined = fmaf(static_cast<float>(c[0]), 256.0f, static_cast<float>(c[2]));
    return __uint_as_float(load_shared(mean_scale_at + at)) * fmaf(q.step, joined, -128 * q.sum);
  }

  // Computes the scores of the lane's tokens of its head, for the unit in the stage at `at`.
  __device__ void scores(const LaneQuery<Steps>& q, uint32_t at, float (&score)[2 * kMine]) const {
    int32_t c[kTiles][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t from = code_at[tile] + at;
#pragma unroll
      for (int j = 0; j < 4; ++j) c[tile][j] = kMagic;
#pragma unroll
      for (int i = 0; i < Steps / 2; ++i) {
        const uint32_t word = load_shared(from + i * 4 * 64);
        mma_16832(c[tile], q.digits[2 * i], word & 0x03030303, word >> 2 & 0x03030303);
        mma_16832(c[tile], q.digits[2 * i + 1], word >> 4 & 0x03030303, word >> 6 & 0x03030303);
      }
    }
    const float base = of_mean(q, at), centre = -1.5f * q.sum;
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      int32_t sums[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] = upper ? c[j + kTiles - kMine][k] : c[j][k];
      const float2 scale = halves_at(scale_at[j] + at);
      score[2 * j] = fmaf(scale.x, fmaf(q.step, joined_digits(sums[0], sums[2]), centre), base);
      score[2 * j + 1] = fmaf(scale.y, fmaf(q.step, joined_digits(sums[1], sums[3]), centre), base);
    }
  }
};

// Loads the digits of head h in the order in which words of codes meet them: lane part has words
// part, part + 4, ... The words of four lanes hold 64 dimensions, two steps: fields 0 and 1 are the
// first step, 2 and 3 the second.
template <int Steps>
__device__ inline void load_word_digits(const QueryDigits<Steps>& digits, int part, int h,
                                        uint32_t (&q)[Steps][4]) {
#pragma unroll
  for (int step = 0; step < Steps; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      q[step][i] = digits[2 * (4 * (step / 2) + part) + step % 2][i / 2][i % 2][h];
}

// Adds a unit's scores to the block's mass so far, s 2^m. begins: there is none so far.
template <bool kShared, int N>
__device__ inline void add_scores(float (&score)[N], bool begins, int lane, float& m, float& s) {
  float top = m;
#pragma unroll
  for (int j = 0; j < N / 2; ++j) top = fmaxf(top, fmaxf(score[2 * j], score[2 * j + 1]));
  if (kShared) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 16));
#pragma unroll
  for (int j = 0; j < N; ++j) score[j] = exp2_approx(score[j] - top);
  if (!begins) {
    if (kShared) s = __shfl_sync(kAllLanes, s, lane | 16);
    s = fmaf(s, exp2_approx(m - top), score[0]);
  } else {
    s = score[0];
  }
#pragma unroll
  for (int j = 1; j < N; ++j) s += score[j];
  if (kShared) {  // the upper lanes go on where the others end
    s = __shfl_sync(kAllLanes, s, lane & 15);
#pragma unroll
    for (int j = 0; j < N; ++j) s += score[j];
  }
  m = top;
}

template <int Steps, int kGroups>
struct EstimateMemory {
  uint4 rings[kWarps][kStagesOf<Steps> * Ring<Steps, kGroups>::kChunks];
  alignas(16) Query<Steps> query;
  float rows[kWarps][32 * Steps];
};

// A warp has a block at a time, a unit of kGroups groups of 16 tokens at once. Steps: of 32
// dimensions. A lane of mma_16832's sums has head h = lane / 4.
template <int Steps, int kGroups, bool kShared>
__global__ __launch_bounds__(kThreads) void estimate_kernel(
    const __grid_constant__ EstimateArgs a) {
  using WarpRing = Ring<Steps, kGroups>;
  constexpr int kHeads = kShared ? kMaxGroup / 2 : kMaxGroup, kStages = kStagesOf<Steps>;
  extern __shared__ __align__(16) uint4 dynamic[];
  auto& [rings, query, rows] = *reinterpret_cast<EstimateMemory<Steps, kGroups>*>(dynamic);
  const int row = blockIdx.y, words = int2_words(a.step.layout.head_dim),
            first_head = static_cast<int>(blockIdx.z) * a.group;
  const Part heads = {first_head, min(a.group, a.g - first_head)};
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  if (row_reads_everything(a.step.rule, sequence.n_tokens)) return skip_estimates(a, row);
  const int block_size = a.step.layout.block_size;
  const int n_full = (sequence.n_tokens + block_size - 1) / block_size - 1;
  // The same in all lanes; the shuffle shows this to the compiler.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32, token = lane / 4, part = lane % 4, h = token % kHeads;
  const bool upper = kShared && token >= kHeads;
  const int warps = gridDim.x * kWarps, first = blockIdx.x * kWarps + warp,
            units = block_size / (kGroups * kInt2Tokens),
            n_units = first < n_full ? (n_full - first + warps - 1) / warps * units : 0;
  const uint32_t stages = shared_address(rings[warp]);
  auto ring = ring_of<Steps, kGroups>(a, row, stages, first, warps, units, n_units);
  // Codes were written before this step began, so they need not wait for the queries.
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) ring.request(stage);
  allow_next();
  wait_for_earlier();
  if (blockIdx.x == 0 && threadIdx.x < kCounterStride)
    a.scratch.counters[row * kCounterStride + threadIdx.x] = 0;
  prepare_query<Steps, kHeads>(a, row, heads, rows, query);
  if (a.scratch.tail_scores != nullptr) score_tail(a, row, heads, n_full, first, warps);
  __syncthreads();
  LaneQuery<Steps> q;
  load_word_digits(query.digits, part, h, q.digits);
  q.step = query.step[h], q.sum = query.sum[h];
  const LaneCodes<Steps, kGroups, kShared> codes(stages, words, lane, upper);

  Masses masses = {
      a.scratch.head_scores + (int64_t(row) * a.g + heads.first + h) * a.step.max_blocks + first,
      warps, 0, 1, 0};
  const bool stores = h < heads.n && upper == kShared;
  float m = kLowest, s = 0;  // sum of the current block
  uint32_t stage = 0;
  int unit = 0;  // unit within the block
#pragma unroll 1
  for (int i = 0; i < n_units; ++i) {
    wait_for_groups<kStages - 2>();
    __syncwarp();  // this stage has arrived, and all lanes are done with the one before
    ring.request(stage == 0 ? kStages - 1 : stage - 1);
    const uint32_t at = stage * WarpRing::kBytes;
    if (++stage == kStages) stage = 0;
    float score[2 * LaneCodes<Steps, kGroups, kShared>::kMine];
    codes.scores(q, at, score);
    add_scores<kShared>(score, unit == 0, lane, m, s);
    if (++unit < units) continue;
    float top = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    s *= exp2_approx(m - top);
    s += __shfl_xor_sync(kAllLanes, s, 1);
    s += __shfl_xor_sync(kAllLanes, s, 2);
    masses.keep(part, top, s);
    if (masses.n == 4) masses.store(part, stores);
    m = kLowest;
    unit = 0;
  }
  masses.store(part, stores);
  wait_for_groups<0>();  // no copy may be in flight when the CTA ends
}

}  // namespace

Status estimate_rows(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                     cudaStream_t stream) {
  EstimateArgs a{};
  a.step = step;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  a.group = part_heads(a.g);
  a.scale = kLog2e / sqrtf(float(step.layout.head_dim));
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, parts = row_parts(a.g),
                wanted = (step.max_blocks + kWarps - 1) / kWarps;
  const auto run = [&](auto kernel, size_t smem) {
    if (smem > 48 * 1024)  // more needs an opt-in
      if (Status s = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(smem));
          s != cudaSuccess)
        return s;
    // Launches at most the CTAs that run at once: any further CTA would run after the others.
    int together = 0;
    if (Status s =
            ctas_together(reinterpret_cast<const void*>(kernel), kThreads, smem, n_sm, together);
        s != cudaSuccess)
      return s;
    const int64_t share = std::max<int64_t>(together / (rows * parts), 1);
    const dim3 grid(static_cast<unsigned>(std::min(wanted, share)), static_cast<unsigned>(rows),
                    static_cast<unsigned>(parts));
    return launch(kernel, a, grid, kThreads, step.overlap, stream, smem);
  };
  const auto sized = [&]<int Steps, int kGroups>() {
    constexpr size_t kBytes = sizeof(EstimateMemory<Steps, kGroups>);
    return a.group <= kMaxGroup / 2 ? run(estimate_kernel<Steps, kGroups, true>, kBytes)
                                    : run(estimate_kernel<Steps, kGroups, false>, kBytes);
  };
  return with_padded_dim(step.layout.head_dim, [&](auto dim) {
    constexpr int kSteps = dim() < 64 ? 2 : dim() / 32;
    return int2_unit_groups(step.layout.block_size) == 2 ? sized.template operator()<kSteps, 2>()
                                                         : sized.template operator()<kSteps, 1>();
  });
}

}  // namespace riffle::cuda
