// Twilight on the device (arXiv 2502.02770; select/twilight.cpp is the twin): the weights of the base's tokens are
// estimated from their INT4 keys, and of each head the fewest tokens that hold a share of them are kept. No KV is read
// but the tails' keys.
//
// token_scores_kernel estimates scores; for psa's base, stop_kernel makes its test on the blocks' estimated masses.
// Then weights_kernel turns scores into weights and sums them up by their leading bits, threshold_kernel finds the
// weight from which each head keeps tokens, and mark_kernel unites the heads' tokens and lists the blocks that hold
// any. Scores and weights have the bits of the CPU's vector kernels (the tail's scores but for the order of a sum),
// weights are summed in units of 2^-30, and a set is bounded by a weight alone: so the tokens are the CPU's, and depend
// on no order of work.
#include "kernels/int4_mma.cuh"
#include "kernels/launch.cuh"
#include "kernels/rank.cuh"

namespace riffle::cuda {
namespace {

constexpr int kScoreThreads = 256, kStopThreads = 32 * kMaxGroup, kWeightThreads = 512, kChooseThreads = 1024,
              kMarkThreads = 512;
constexpr float kLargestDigits = 32639;  // as kernels/cpu/int4.h
constexpr int kMarked = 3;  // a row's counter (beside those of attend.cuh): CTAs that have marked their tokens

struct TopPArgs {
  DecodeStep step;
  DecodeScratch scratch;
  int g;
  int n_parts;  // CTAs of a row's scores
  bool ranked;  // the base's order is in scratch.order; else the candidates follow in token order
  float scale;  // 1 / sqrt(d)
};

__device__ inline int base_block(const TopPArgs& a, const RowGeometry& r, int row, int p) {
  if (p < r.n_forced) return forced_block(r, p);
  return a.ranked ? __ldcg(a.scratch.order + int64_t(row) * a.step.max_blocks + p) : r.first + p - r.n_forced;
}
__device__ inline float* scores_of(const TopPArgs& a, int row, int h) {
  return a.scratch.token_scores + (int64_t(row) * a.g + h) * a.step.max_blocks * a.step.layout.block_size;
}

// exp(score - top) as kernels/cpu/simd_avx2.h has it, bit for bit; top: the largest score.
__device__ inline float weight_below(float score, float top) {
  const float x = __fsub_rn(score, fmaxf(-3e38f, top));
  const float n = rintf(__fmul_rn(fmaxf(x, -87.0f), 0x1.715476p+0f));
  const float f = __fmaf_rn(-n, -0x1.05c61p-29f, __fmaf_rn(-n, 0x1.62e43p-1f, fmaxf(x, -87.0f)));
  float y = __fmaf_rn(0x1.106284p-7f, f, 0x1.5729fp-5f);
  y = __fmaf_rn(y, f, 0x1.5557aep-3f);
  y = __fmaf_rn(y, f, 0x1.fffdfcp-2f);
  y = __fmaf_rn(y, f, 1.0f);
  y = __fmaf_rn(y, f, 1.0f);
  y = __int_as_float(__float_as_int(y) + (static_cast<int>(n) << 23));
  return x >= -87.0f ? y : 0.0f;  // false for NaN
}
// A weight in units of 2^-30.
__device__ inline uint32_t fixed_weight(float w) { return __float2uint_rn(w * 0x1p30f); }

// ---- scores --------------------------------------------------------------------------------------------------------

// Queries as the CPU prepares them: digits [word][nibble][digit][head], four dimensions a word.
struct TokenQuery {
  float q[kMaxGroup][256];
  uint32_t digits[256 / 8][2][2][kMaxGroup];
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
  const float step = __fdiv_rn(largest, kLargestDigits), inverse = step > 0 ? __fdiv_rn(kLargestDigits, largest) : 0;
  __syncwarp();
  for (int at = lane; at < 2 * words; at += 32) {
    uint32_t high = 0, low = 0;
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * at + i;
      const float x = h < a.g && j < d ? __fmul_rn(query.q[h][j], inverse) : 0;
      const float inside = fminf(fmaxf(x, -kLargestDigits), kLargestDigits);
      const int value = static_cast<int>(inside < 0 ? __fsub_rn(inside, 0.5f) : __fadd_rn(inside, 0.5f));
      const int lower = static_cast<int8_t>(value & 0xff);
      low |= static_cast<uint32_t>(lower & 0xff) << (8 * i);
      high |= static_cast<uint32_t>(((value - lower) / 256) & 0xff) << (8 * i);
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

// A warp has a block at a time, of Groups groups of 16 tokens; Steps: of 32 dimensions. Afterwards lane i has head i /
// 4, tokens 2 (i % 4) + {0, 1} of every 8.
template <int Steps, int Groups>
__global__ __launch_bounds__(kScoreThreads) void token_scores_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ alignas(16) TokenQuery query;
  constexpr int kAtOnce = Groups == 1 || Steps == 8 ? 1 : 2,
                kTiles = 2 * kAtOnce;  // groups whose codes are in registers
  const int row = blockIdx.y, head = row % a.step.n_kv_heads, d = a.step.layout.head_dim, words = int4_words(d);
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  constexpr int kBlock = 16 * Groups;
  const RowGeometry r = row_geometry(a.step.ranked, sequence.n_tokens, kBlock);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = lane / 4, part = lane % 4;
  const int64_t group_bytes = int4_group_bytes(d), head_index = int64_t(a.step.layer) * a.step.n_kv_heads + head;
  const std::byte* codes = sequence.codes + head_index * sequence.max_blocks * Groups * group_bytes;
  const int warps = gridDim.x * (kScoreThreads / 32), tail = r.n_forced - 1, n = r.n_total - 1;
  // Positions but the tail's.
  int i = blockIdx.x * (kScoreThreads / 32) + warp;
  const auto position = [&](int index) { return index < tail ? index : index + 1; };
  uint32_t code[kTiles][Steps];
  __half2 zeros[kTiles], scales[kTiles];
  const std::byte* block = nullptr;
  const auto find = [&] { block = codes + int64_t(base_block(a, r, row, position(i))) * Groups * group_bytes; };
  const auto load = [&](int group) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::byte* base = block + (group + tile / 2) * group_bytes;
      const auto* word = reinterpret_cast<const uint32_t*>(base) + part * kInt4Tokens + h + tile % 2 * 8;
      const auto* pair = reinterpret_cast<const __half2*>(base + words * 64) + part + tile % 2 * 4;
#pragma unroll
      for (int step = 0; step < Steps; ++step)
        code[tile][step] = 4 * step + part < words ? __ldg(word + step * 4 * kInt4Tokens) : 0;
      zeros[tile] = __ldg(pair);
      scales[tile] = __ldg(pair + kInt4Tokens / 2);
    }
  };
  // Codes were written before this step began, so they need not wait for the queries; but for an order they must.
  if (!a.ranked && i < n) find(), load(0);
  allow_next();
  wait_for_earlier();
  if (a.ranked && i < n) find(), load(0);
  if (blockIdx.x == 0 && threadIdx.x < kCounterStride) a.scratch.counters[row * kCounterStride + threadIdx.x] = 0;
  const int n_tail = sequence.n_tokens - r.n_full * kBlock;
  for (int p = blockIdx.x * kScoreThreads + threadIdx.x; p < r.n_total; p += gridDim.x * kScoreThreads)
    a.scratch.masks[int64_t(row) * a.step.max_blocks + base_block(a, r, row, p)] =
        p >= r.n_forced ? 0 : ~uint64_t(0) >> (64 - (p == tail ? n_tail : kBlock));
  auto* sums = a.scratch.weight_sums + int64_t(row) * a.g * kWeightBins;
  for (int i0 = blockIdx.x * kScoreThreads + threadIdx.x; i0 < a.g * kWeightBins; i0 += gridDim.x * kScoreThreads)
    sums[i0] = 0;
  prepare_query(a, row, query);
  __syncthreads();
  uint32_t q[Steps][4];
#pragma unroll
  for (int step = 0; step < Steps; ++step)
#pragma unroll
    for (int j = 0; j < 4; ++j) q[step][j] = query.digits[4 * step + part][j / 2][j % 2][h];
  const float q_step = query.step[h], q_sum = query.sum[h];
  const bool masses = a.step.ranked.progressive;

  float* out = scores_of(a, row, h < a.g ? h : 0) + 2 * part;
  float top = -INFINITY;
  while (i < n) {
    const int p = position(i);
    float score[2 * Groups][2];
#pragma unroll
    for (int group = 0; group < Groups; group += kAtOnce) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        int32_t c[4] = {};
#pragma unroll
        for (int step = 0; step < Steps; ++step)
          mma_16832(c, q[step], code[tile][step] & 0x0f0f0f0f, code[tile][step] >> 4 & 0x0f0f0f0f);
        const float2 zero = __half22float2(zeros[tile]), scale = __half22float2(scales[tile]);
        float* to = score[2 * group + tile];
        to[0] = __fadd_rn(__fmul_rn(scale.x, __fmul_rn(q_step, static_cast<float>(256 * c[0] + c[2]))),
                          __fmul_rn(zero.x, q_sum));
        to[1] = __fadd_rn(__fmul_rn(scale.y, __fmul_rn(q_step, static_cast<float>(256 * c[1] + c[3]))),
                          __fmul_rn(zero.y, q_sum));
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
        *reinterpret_cast<float2*>(out + int64_t(p) * kBlock + 8 * tile) = make_float2(score[tile][0], score[tile][1]);
    }
    top = fmaxf(top, largest);
    if (!masses) continue;
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    unsigned long long sum = 0;
#pragma unroll
    for (int tile = 0; tile < 2 * Groups; ++tile)
      sum += static_cast<unsigned long long>(fixed_weight(weight_below(score[tile][0], largest))) +
             fixed_weight(weight_below(score[tile][1], largest));
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (part == 0 && h < a.g) {
      const int64_t at = (int64_t(row) * a.g + h) * a.step.max_blocks + p;
      a.scratch.head_scores[at] = __fadd_rn(largest, logf(__ull2float_rn(sum) * 0x1p-30f));
      a.scratch.bounds[at] = largest;
    }
  }
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));

  // The tail has no codes: its keys themselves, a token of a head a warp. What is no token weighs nothing.
  const std::byte* keys = sequence.tail + head_index * a.step.layout.block_bytes;
  for (int item = blockIdx.x * (kScoreThreads / 32) + warp; item < kBlock * a.g; item += warps) {
    const int t = item / a.g, one = item % a.g;
    float sum = 0;
    for (int j = lane; j < d && t < n_tail; j += 32) {
      const float key = a.step.layout.type == KvType::F16
                            ? __half2float(reinterpret_cast<const __half*>(keys)[t * d + j])
                            : reinterpret_cast<const float*>(keys)[t * d + j];
      sum = fmaf(query.q[one][j], key, sum);
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (t >= n_tail) sum = -INFINITY;
    if (lane == 0) scores_of(a, row, one)[int64_t(tail) * kBlock + t] = sum;
    if (h == one) top = fmaxf(top, sum);
  }
  if (part == 0) query.top[warp][h] = top;
  __syncthreads();
  if (threadIdx.x >= a.g) return;
  for (int w = 1; w < kScoreThreads / 32; ++w)
    top = fmaxf(w == 1 ? query.top[0][threadIdx.x] : top, query.top[w][threadIdx.x]);
  auto* parts = reinterpret_cast<float*>(a.scratch.sorted) + (int64_t(row) * a.g + threadIdx.x) * a.step.max_blocks;
  parts[blockIdx.x] = top;
}

// ---- psa's test on estimated masses
// ----------------------------------------------------------------------------------

struct Mass {
  float m = -INFINITY, s = 0;  // s e^m
  __device__ void join(float m2, float s2) {
    const float top = fmaxf(m, m2);
    if (top == -INFINITY) return;
    s = s * expf(m - top) + s2 * expf(m2 - top);
    m = top;
  }
  __device__ void join_lanes() {
    for (int o = 16; o > 0; o /= 2) join(__shfl_xor_sync(kAllLanes, m, o), __shfl_xor_sync(kAllLanes, s, o));
  }
};

// A warp a head; 32 tests between two meetings of the heads, which all must pass. Ends with ranks[row].ranked.
__global__ __launch_bounds__(kStopThreads) void stop_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ uint32_t passed[kMaxGroup];
  const int row = blockIdx.x, h = threadIdx.x / 32, lane = threadIdx.x % 32, block_size = a.step.layout.block_size;
  wait_for_earlier();
  const Ranked& ranked = a.step.ranked;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(ranked, sequence.n_tokens, block_size);
  const float* masses = a.scratch.head_scores + (int64_t(row) * a.g + h) * a.step.max_blocks;
  Mass all;
  float smallest = INFINITY;
  if (h < a.g) {
    for (int p = lane; p < r.n_forced - 1; p += 32) all.join(__ldcg(masses + p), 1);
    const float* tail = scores_of(a, row, h) + int64_t(r.n_forced - 1) * block_size;
    for (int t = lane; t < block_size; t += 32) all.join(__ldcg(tail + t), 1);
    all.join_lanes();
  }
  int stop = r.n_total;
  for (int begin = r.n_forced; begin < r.n_total; begin += 32 * ranked.microbatch) {
    uint32_t pass = 0;
    for (int i = 0; i < 32 && h < a.g; ++i) {
      const int first = min(begin + i * ranked.microbatch, r.n_total), end = min(first + ranked.microbatch, r.n_total);
      Mass some;
      float least = INFINITY, largest = -INFINITY;
      for (int p = first + lane; p < end; p += 32) {
        const float mass = __ldcg(masses + p);
        some.join(mass, 1);
        least = fminf(least, mass);
        largest = fmaxf(largest, mass);
      }
      some.join_lanes();
      for (int o = 16; o > 0; o /= 2) {
        least = fminf(least, __shfl_xor_sync(kAllLanes, least, o));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, o));
      }
      all.join(some.m, some.s);
      smallest = fminf(smallest, least);
      const double limit = double(all.m + logf(all.s)) + ranked.slack, left = log(double(max(r.n_total - end, 1)));
      const bool ends = end == r.n_total || double(ranked.stop == Stop::Window ? largest : smallest) + left < limit;
      pass |= static_cast<uint32_t>(ends) << i;
    }
    if (lane == 0) passed[h] = pass;
    __syncthreads();
    uint32_t both = ~0u;
    for (int other = 0; other < a.g; ++other) both &= passed[other];
    if (both != 0) {
      stop = min(begin + __ffs(static_cast<int>(both)) * ranked.microbatch, r.n_total);
      break;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) a.scratch.ranks[row].ranked = stop - r.n_forced;
}

// ---- the smallest sets that hold top_p
// ---------------------------------------------------------------------------------

// The threshold is found digit by digit: sums of the weights by the leading bits of their floats (which order as the
// weights do), from the largest on until the target is reached; then the same inside that bin. Only weights of 2^-31
// and more sum to anything; their bits take 28, as digits of 11, 11 and 6.
constexpr uint32_t kLeastBits = 0x30000000u;                                // 2^-31
constexpr int kBins = kWeightBins, kFirst = 17, kSecond = 6, kList = 4096;  // bits behind the first two digits

struct ChooseMemory {
  uint32_t low[kBins], high[kBins];  // a bin's sum
  uint32_t list[kList];              // bits of the weights in the first digit's bin, if they are so few
  unsigned long long warp_sums[32], above;
  int bin, n_list;
};

__device__ inline void add_to_bin(uint32_t* low, uint32_t* high, int bin, uint32_t fixed) {
  const uint32_t before = atomicAdd(low + bin, fixed);
  if (before + fixed < before) atomicAdd(high + bin, 1u);
}
__device__ inline void clear_bins(ChooseMemory& memory) {
  for (int b = threadIdx.x; b < kBins; b += kChooseThreads) memory.low[b] = memory.high[b] = 0;
  __syncthreads();
}
// The bin in which the sums from the largest bin on reach the target; memory.bin, and memory.above: the sum of those
// before it. target 0: a share `p` of all, which is returned (0: there is nothing). Begins and ends with a barrier.
__device__ inline unsigned long long find_bin(ChooseMemory& memory, unsigned long long target, double p) {
  __syncthreads();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  constexpr int kMine = kBins / kChooseThreads;
  unsigned long long mine[kMine], total = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int bin = kBins - 1 - (kMine * thread + i);
    total += mine[i] = static_cast<unsigned long long>(memory.high[bin]) << 32 | memory.low[bin];
  }
  unsigned long long sum = total;
  for (int o = 1; o < 32; o *= 2) {
    const unsigned long long below = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += below;
  }
  if (lane == 31) memory.warp_sums[warp] = sum;
  __syncthreads();
  unsigned long long before = sum - total, all = 0;
  for (int w = 0; w < kChooseThreads / 32; ++w) {
    if (w < warp) before += memory.warp_sums[w];
    all += memory.warp_sums[w];
  }
  if (target == 0) {
    const auto share = static_cast<unsigned long long>(ceil(p * __ull2double_rn(all)));
    target = min(max(share, 1ull), all);
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (before < target && before + mine[i] >= target) {
      memory.bin = kBins - 1 - (kMine * thread + i);
      memory.above = before;
    }
    before += mine[i];
  }
  __syncthreads();
  return target;
}

__device__ inline int bin_of(float weight) {
  return static_cast<int>((__float_as_uint(weight) - kLeastBits) >> kFirst);
}

// Blocks of a row's base.
__device__ inline int base_blocks(const TopPArgs& a, const RowGeometry& r, int row) {
  return a.step.ranked.progressive ? r.n_forced + __ldcg(&a.scratch.ranks[row].ranked) : r.n_total;
}

// A head's largest score. All lanes of a warp.
__device__ inline float top_of(const TopPArgs& a, const RowGeometry& r, int row, int h, int n_base) {
  const int lane = threadIdx.x % 32, block_size = a.step.layout.block_size;
  const int64_t at = (int64_t(row) * a.g + h) * a.step.max_blocks;
  float top = -INFINITY;
  if (a.step.ranked.progressive) {
    // Of the base alone, which is less than what was scored.
    for (int p = lane; p < n_base; p += 32)
      if (p != r.n_forced - 1) top = fmaxf(top, __ldcg(a.scratch.bounds + at + p));
    const float* tail = scores_of(a, row, h) + int64_t(r.n_forced - 1) * block_size;
    for (int t = lane; t < block_size; t += 32) top = fmaxf(top, __ldcg(tail + t));
  } else {
    const float* parts = reinterpret_cast<const float*>(a.scratch.sorted) + at;
    for (int i = lane; i < a.n_parts; i += 32) top = fmaxf(top, __ldcg(parts + i));
  }
  for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, o));
  return top;
}

// Scores become weights; their sums by the first digit go to scratch.weight_sums.
__global__ __launch_bounds__(kWeightThreads) void weights_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ uint32_t low[kBins], high[kBins];
  __shared__ float all_top;
  const int h = blockIdx.y, row = blockIdx.z, thread = threadIdx.x;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(a.step.ranked, sequence.n_tokens, a.step.layout.block_size);
  const int n_base = base_blocks(a, r, row), n = n_base * a.step.layout.block_size;
  if (static_cast<int>(blockIdx.x) * kWeightThreads * 4 >= n) return;
  for (int b = thread; b < kBins; b += kWeightThreads) low[b] = high[b] = 0;
  if (thread < 32) {
    const float top = top_of(a, r, row, h, n_base);
    if (thread == 0) all_top = top;
  }
  __syncthreads();
  const float top = all_top;
  auto* weights = reinterpret_cast<float4*>(scores_of(a, row, h));
  for (int i = blockIdx.x * kWeightThreads + thread; i < n / 4; i += gridDim.x * kWeightThreads) {
    const float4 s = __ldcg(weights + i);
    const float w[4] = {weight_below(s.x, top), weight_below(s.y, top), weight_below(s.z, top), weight_below(s.w, top)};
    __stcg(weights + i, make_float4(w[0], w[1], w[2], w[3]));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (const uint32_t fixed = fixed_weight(w[j]); fixed > 0) add_to_bin(low, high, bin_of(w[j]), fixed);
  }
  __syncthreads();
  auto* sums = a.scratch.weight_sums + (int64_t(row) * a.g + h) * kWeightBins;
  for (int b = thread; b < kBins; b += kWeightThreads)
    if (const unsigned long long sum = static_cast<unsigned long long>(high[b]) << 32 | low[b]; sum != 0)
      atomicAdd(sums + b, sum);
}

// A CTA a head: the weight that tokens have at least to be kept (0: all are), to scratch.top.
__global__ __launch_bounds__(kChooseThreads) void threshold_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ ChooseMemory memory;
  const int h = blockIdx.x, row = blockIdx.y;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(a.step.ranked, sequence.n_tokens, a.step.layout.block_size);
  const int n = base_blocks(a, r, row) * a.step.layout.block_size;
  const auto* weights = reinterpret_cast<const float4*>(scores_of(a, row, h));
  float* out = a.scratch.top + int64_t(row) * kMaxGroup + h;

  const auto* sums = a.scratch.weight_sums + (int64_t(row) * a.g + h) * kWeightBins;
  for (int b = threadIdx.x; b < kBins; b += kChooseThreads) {
    const unsigned long long sum = __ldcg(sums + b);
    memory.low[b] = static_cast<uint32_t>(sum), memory.high[b] = static_cast<uint32_t>(sum >> 32);
  }
  if (threadIdx.x == 0) memory.n_list = 0;
  unsigned long long target = find_bin(memory, 0, a.step.ranked.top_p);
  if (target == 0) {
    if (threadIdx.x == 0) *out = 0;
    return;
  }
  const int first = memory.bin;
  uint32_t bits = static_cast<uint32_t>(first) << kFirst;
  target -= memory.above;

  clear_bins(memory);
#pragma unroll 4
  for (int i = threadIdx.x; i < n / 4; i += kChooseThreads) {
    const float4 w4 = __ldcg(weights + i);
    const float w[4] = {w4.x, w4.y, w4.z, w4.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (bin_of(w[j]) != first) continue;  // what is below 2^-31 has none of the bins
      const uint32_t x = __float_as_uint(w[j]) - kLeastBits;
      add_to_bin(memory.low, memory.high, static_cast<int>(x >> kSecond & (kBins - 1)), fixed_weight(w[j]));
      if (const int at = atomicAdd(&memory.n_list, 1); at < kList) memory.list[at] = x;
    }
  }
  find_bin(memory, target, 0);
  bits |= static_cast<uint32_t>(memory.bin) << kSecond;
  target -= memory.above;

  clear_bins(memory);
  const int listed = memory.n_list;
  const auto add = [&](uint32_t x) {
    if (x >> kSecond == bits >> kSecond)
      add_to_bin(memory.low, memory.high, static_cast<int>(x & 63), fixed_weight(__uint_as_float(x + kLeastBits)));
  };
  if (listed <= kList) {
    for (int i = threadIdx.x; i < listed; i += kChooseThreads) add(memory.list[i]);
  } else {
    for (int i = threadIdx.x; i < n; i += kChooseThreads)
      add(__float_as_uint(__ldcg(reinterpret_cast<const float*>(weights) + i)) - kLeastBits);
  }
  find_bin(memory, target, 0);
  if (threadIdx.x == 0) *out = __uint_as_float(kLeastBits + (bits | static_cast<uint32_t>(memory.bin)));
}

// The row's order: forced blocks, then those of the base's that hold a token; how many, and their tokens.
__device__ inline void choose_blocks(const TopPArgs& a, const RowGeometry& r, int row, int n_base, uint32_t* sums) {
  const int thread = threadIdx.x;
  const auto* masks = reinterpret_cast<const unsigned long long*>(a.scratch.masks) + int64_t(row) * a.step.max_blocks;
  int32_t* order = a.scratch.order + int64_t(row) * a.step.max_blocks;
  int tokens = 0;
  for (int p = thread; p < r.n_forced; p += kMarkThreads) {
    const int b = forced_block(r, p);
    order[p] = b;
    tokens += __popcll(__ldcg(masks + b));
  }
  constexpr int kEach = 4;  // neighbours that a thread looks at
  int kept = 0;
  for (int first = r.n_forced; first < n_base; first += kEach * kMarkThreads) {
    int block[kEach];
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int p = first + kEach * thread + i;
      block[i] = -1;
      if (p >= n_base) continue;
      const int b = base_block(a, r, row, p);
      const unsigned long long mask = __ldcg(masks + b);
      if (mask == 0) continue;
      block[i] = b;
      tokens += __popcll(mask);
      ++mine;
    }
    // The order may be the base's own: all of this round has been read when any is written, no further than it.
    int at = r.n_forced + kept + static_cast<int>(block_exclusive_sum<kMarkThreads>(mine, sums));
    if (thread == kMarkThreads - 1) sums[0] = at + mine;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (block[i] >= 0) order[at++] = block[i];
    __syncthreads();
    kept = static_cast<int>(sums[0]) - r.n_forced;
    __syncthreads();
  }
  const uint32_t before = block_exclusive_sum<kMarkThreads>(static_cast<uint32_t>(tokens), sums);
  if (thread == kMarkThreads - 1) a.scratch.ranks[row] = {kept, before + static_cast<unsigned long long>(tokens)};
}

// The group reads the union of its heads' tokens. A warp has 32 of them: a block, two of 16 tokens, or half of one.
__global__ __launch_bounds__(kMarkThreads) void mark_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ uint32_t sums[32];
  __shared__ bool last;
  const int row = blockIdx.y, thread = threadIdx.x, lane = thread % 32, block_size = a.step.layout.block_size;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(a.step.ranked, sequence.n_tokens, block_size);
  const int n_base = base_blocks(a, r, row), n = n_base * block_size;
  const bool all = a.step.ranked.top_p >= 1;
  float least[kMaxGroup];
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h)
    least[h] = h < a.g && !all ? __ldcg(a.scratch.top + int64_t(row) * kMaxGroup + h) : 0;
  const float* weights = scores_of(a, row, 0);
  const int64_t stride = a.step.max_blocks * block_size;  // of heads
  auto* masks = reinterpret_cast<unsigned long long*>(a.scratch.masks) + int64_t(row) * a.step.max_blocks;
  const int begin = r.n_forced * block_size, warps = kMarkThreads / 32;
  for (int first = begin + (static_cast<int>(blockIdx.x) * warps + thread / 32) * 32; first < n;
       first += static_cast<int>(gridDim.x) * warps * 32) {
    const int i = first + lane;
    bool keep = all;
#pragma unroll
    for (int h = 0; h < kMaxGroup; ++h)
      if (h < a.g && !all && i < n) keep |= __ldcg(weights + h * stride + i) >= least[h];
    const unsigned bits = __ballot_sync(kAllLanes, keep && i < n);
    if (block_size == 64) {  // two warps, or two turns
      auto* half = reinterpret_cast<uint32_t*>(masks + base_block(a, r, row, first / 64)) + first / 32 % 2;
      if (lane == 0) *half = bits;
    } else if (block_size == 32) {
      if (lane == 0) masks[base_block(a, r, row, first / 32)] = bits;
    } else if (lane < 2 && first + 16 * lane < n) {
      masks[base_block(a, r, row, first / 16 + lane)] = bits >> 16 * lane & 0xffff;
    }
  }

  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(a.scratch.counters + row * kCounterStride + kMarked, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  choose_blocks(a, r, row, n_base, sums);
}

TopPArgs arguments(const DecodeStep& step, const DecodeScratch& scratch, int n_sm) {
  TopPArgs a{};
  a.step = step;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, warps = kScoreThreads / 32;
  const int64_t wanted = (step.max_blocks + warps - 1) / warps, share = 2 * int64_t(n_sm) / rows;
  a.n_parts = static_cast<int>(share < 1 ? 1 : wanted < share ? wanted : share);
  a.ranked = ranks_base(step.ranked);
  a.scale = 1.0f / sqrtf(float(step.layout.head_dim));
  return a;
}

}  // namespace

bool ranks_base(const Ranked& ranked) { return ranked.progressive || ranked.budget != 1; }

Status score_tokens(const DecodeStep& step, const DecodeScratch& scratch, int n_sm, cudaStream_t stream) {
  const TopPArgs a = arguments(step, scratch, n_sm);
  const dim3 grid(static_cast<unsigned>(a.n_parts), static_cast<unsigned>(step.n * step.n_kv_heads));
  const auto run = [&](auto kernel) { return launch(kernel, a, grid, kScoreThreads, step.overlap, stream); };
  const auto sized = [&](auto one, auto two, auto four) {
    return step.layout.block_size == 16 ? run(one) : step.layout.block_size == 32 ? run(two) : run(four);
  };
  switch (padded_dim(step.layout.head_dim)) {
    case 32: return sized(token_scores_kernel<1, 1>, token_scores_kernel<1, 2>, token_scores_kernel<1, 4>);
    case 64: return sized(token_scores_kernel<2, 1>, token_scores_kernel<2, 2>, token_scores_kernel<2, 4>);
    case 128: return sized(token_scores_kernel<4, 1>, token_scores_kernel<4, 2>, token_scores_kernel<4, 4>);
    default: return sized(token_scores_kernel<8, 1>, token_scores_kernel<8, 2>, token_scores_kernel<8, 4>);
  }
}

Status choose_tokens(const DecodeStep& step, const DecodeScratch& scratch, int n_sm, cudaStream_t stream) {
  const TopPArgs a = arguments(step, scratch, n_sm);
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, tokens = step.max_blocks * step.layout.block_size;
  // CTAs of so many tokens for each of n, of which there need be no more than fill the GPU.
  const auto parts = [&](int64_t each, int64_t n) {
    const int64_t wanted = (tokens + each - 1) / each, share = (3 * int64_t(n_sm) + n - 1) / n;
    return static_cast<unsigned>(wanted < share ? wanted : share);
  };
  const auto g = static_cast<unsigned>(a.g), n_rows = static_cast<unsigned>(rows);
  if (step.ranked.progressive)
    if (Status status = launch(stop_kernel, a, dim3(n_rows), kStopThreads, step.overlap, stream); status != cudaSuccess)
      return status;
  if (step.ranked.top_p < 1) {
    const dim3 grid(parts(8 * kWeightThreads, rows * a.g), g, n_rows);
    if (Status status = launch(weights_kernel, a, grid, kWeightThreads, step.overlap, stream); status != cudaSuccess)
      return status;
    if (Status status = launch(threshold_kernel, a, dim3(g, n_rows), kChooseThreads, step.overlap, stream);
        status != cudaSuccess)
      return status;
  }
  return launch(mark_kernel, a, dim3(parts(4 * kMarkThreads, rows), n_rows), kMarkThreads, step.overlap, stream);
}

}  // namespace riffle::cuda
