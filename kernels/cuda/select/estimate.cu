// Selection by INT4 keys (share; psa and topk ranked by codes): estimate_kernel estimates what log
// mass each full block holds for each query head; choose_kernel keeps the candidates that hold at
// least a share of some head's. Both in base 2. No KV is read but the tails' keys.
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/f16_exact.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/select/int4_mma.cuh"

namespace riffle::cuda {
namespace {

constexpr int kEstimateThreads = 256, kChooseThreads = 1024;

struct EstimateArgs {
  DecodeStep step;
  DecodeScratch scratch;
  int g;
  int mean_stride;  // of scratch.mean_value
  float scale;      // log2(e) / sqrt(d)
};

struct Query {
  QueryDigits digits;
  float step[kMaxGroup], sum[kMaxGroup];
};

__device__ inline void prepare_query(const EstimateArgs& a, int row, Query& query) {
  const int d = a.step.layout.head_dim, words = (int4_words(d) + 3) / 4 * 4,
            warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* q = a.step.q + int64_t(row) * a.g * d;
  for (int h = warp; h < kMaxGroup; h += kEstimateThreads / 32) {
    float largest = 0;
    double sum = 0;
    for (int j = lane; j < d && h < a.g; j += 32) {
      const float x = q[h * d + j] * a.scale;
      largest = fmaxf(largest, fabsf(x));
      sum += x;
    }
    for (int o = 16; o > 0; o /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, o));
      sum += __shfl_xor_sync(kAllLanes, sum, o);
    }
    const float inverse = largest > 0 ? kLargestDigits / largest : 0;
    if (lane == 0) query.step[h] = largest / kLargestDigits, query.sum[h] = static_cast<float>(sum);
    for (int at = lane; at < 2 * words; at += 32) {
      uint32_t high = 0, low = 0;
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * at + i;
        const float x = h < a.g && j < d ? q[h * d + j] * a.scale * inverse : 0;
        put_digits(__float2int_rn(fminf(fmaxf(x, -kLargestDigits), kLargestDigits)), i, high, low);
      }
      query.digits[at / 2][at % 2][0][h] = high;
      query.digits[at / 2][at % 2][1][h] = low;
    }
  }
}

// A mass s 2^m joins others: base-2 online softmax. Nothing: m = kLowest, s = 0.
constexpr float kLowest = -1e30f;
__device__ inline void join(float& m, float& s, float m2, float s2) {
  const float top = fmaxf(m, m2);
  s = s * exp2_approx(m - top) + s2 * exp2_approx(m2 - top);
  m = top;
}

// For a row that reads everything (Ranked::everything_below): no estimates, only what attention
// counts with. It waits for the kernel before like all other rows, since the next kernel takes the
// end of this one for the end of both.
__device__ inline void skip_estimates(const EstimateArgs& a, int row) {
  allow_next();
  wait_for_earlier();
  if (blockIdx.x == 0 && threadIdx.x < kCounterStride)
    a.scratch.counters[row * kCounterStride + threadIdx.x] = 0;
}

// A warp has a block at a time, kGroups groups of 16 tokens of it at once. Steps: of 32 dimensions.
// Afterwards lane i has head i / 4.
template <int Steps, int kGroups>
__global__ __launch_bounds__(kEstimateThreads) void estimate_kernel(
    const __grid_constant__ EstimateArgs a) {
  __shared__ alignas(16) Query query;
  const int row = blockIdx.y, d = a.step.layout.head_dim, words = int4_words(d);
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  if (row_reads_everything(a.step.ranked, sequence.n_tokens)) return skip_estimates(a, row);
  const int block_size = a.step.layout.block_size;
  const int n_full = (sequence.n_tokens + block_size - 1) / block_size - 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = lane / 4, part = lane % 4;
  const int64_t group_bytes = int4_group_bytes(d), kv_head = head_index(a.step, row);
  const std::byte* codes =
      sequence.codes + kv_head * sequence.max_blocks * int4_block_bytes(block_size, d);
  const int warps = gridDim.x * (kEstimateThreads / 32), groups = block_size / kInt4Tokens;
  // Tokens of this warp's blocks one after the other, the next ones' codes on their way meanwhile.
  constexpr int kTiles = 2 * kGroups;  // of 8 tokens
  int b = blockIdx.x * (kEstimateThreads / 32) + warp, group = 0;
  uint32_t code[kTiles][Steps];
  __half2 zeros[kTiles], scales[kTiles];  // of two tokens each
  const auto load = [&] {
    load_codes(codes, int64_t(b) * groups + group, group_bytes, words, part, h, code, zeros,
               scales);
  };
  // Codes were written before this step began, so they need not wait for the queries.
  if (b < n_full) load();
  allow_next();
  wait_for_earlier();
  if (blockIdx.x == 0 && threadIdx.x < kCounterStride)
    a.scratch.counters[row * kCounterStride + threadIdx.x] = 0;
  prepare_query(a, row, query);
  __syncthreads();
  uint32_t q[Steps][4];
  load_digits(query.digits, part, h, q);
  const float q_step = query.step[h], q_sum = query.sum[h];

  float* out = a.scratch.head_scores + (int64_t(row) * a.g + h) * a.step.max_blocks;
  float m = kLowest, s = 0;  // of the block under way
  while (b < n_full) {
    float score[2 * kTiles], top = m;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      int32_t c[4] = {};
      mma_codes(c, q, code[tile]);
      const float2 zero = __half22float2(zeros[tile]), scale = __half22float2(scales[tile]);
      score[2 * tile] = scale.x * (q_step * static_cast<float>(256 * c[0] + c[2])) + zero.x * q_sum;
      score[2 * tile + 1] =
          scale.y * (q_step * static_cast<float>(256 * c[1] + c[3])) + zero.y * q_sum;
      top = fmaxf(top, fmaxf(score[2 * tile], score[2 * tile + 1]));
    }
    const int block = b;
    group += kGroups;
    const bool ends = group == groups;
    if (ends) group = 0, b += warps;
    if (b < n_full) load();
    s *= exp2_approx(m - top);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) s += exp2_approx(score[i] - top);
    m = top;
    if (!ends) continue;
    top = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    s *= exp2_approx(m - top);
    s += __shfl_xor_sync(kAllLanes, s, 1);
    s += __shfl_xor_sync(kAllLanes, s, 2);
    if (part == 0 && h < a.g) out[block] = top + log2f(s);
    m = kLowest;
    s = 0;
  }
  if (a.scratch.tail_scores == nullptr) return;
  // The tail has no codes: its keys themselves, a token a CTA, a head a warp.
  const std::byte* tail = sequence.tail + kv_head * a.step.layout.block_bytes;
  const int n_tail = sequence.n_tokens - n_full * block_size;
  for (int t = blockIdx.x; t < n_tail && warp < a.g; t += gridDim.x) {
    float sum = 0;
    for (int j = lane; j < d; j += 32) {
      const float key = key_at(a.step.layout.type, tail, t * d + j);
      sum = fmaf(a.step.q[(int64_t(row) * a.g + warp) * d + j] * a.scale, key, sum);
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (lane == 0) a.scratch.tail_scores[(int64_t(row) * kMaxGroup + warp) * kMaxBlock + t] = sum;
  }
}

struct ChooseMemory {
  float whole[kMaxGroup];  // log mass of all blocks
  float least[kMaxGroup];  // ... from which a block is kept
  float m[kChooseThreads / 32][kMaxGroup], s[kChooseThreads / 32][kMaxGroup];
  uint32_t kept[kChooseThreads / 32];
  float unread[kChooseThreads / 32][kMaxGroup];
  float values[kChooseThreads];
};

// Each head's whole mass: of its blocks and of the tail's tokens. The order of the sum depends on
// the row alone, not on how many CTAs estimated it, since what is unread is told from it and enters
// the result.
__device__ inline void whole_masses(const EstimateArgs& a, int row, const RowGeometry& r,
                                    const float* masses, ChooseMemory& memory) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32,
            block_size = a.step.layout.block_size;
  const int n_tail = a.step.sequences[row / a.step.n_kv_heads].n_tokens - r.n_full * block_size;
  const float* tail = a.scratch.tail_scores + int64_t(row) * kMaxGroup * kMaxBlock;
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h) {
    if (h >= a.g) break;
    float m = kLowest, s = 0;
    for (int b = thread; b < r.n_full; b += kChooseThreads)
      join(m, s, __ldcg(masses + int64_t(h) * a.step.max_blocks + b), 1);
    if (thread < n_tail) join(m, s, __ldcg(tail + h * kMaxBlock + thread), 1);
    for (int o = 16; o > 0; o /= 2)
      join(m, s, __shfl_xor_sync(kAllLanes, m, o), __shfl_xor_sync(kAllLanes, s, o));
    if (lane == 0) memory.m[warp][h] = m, memory.s[warp][h] = s;
  }
  __syncthreads();
  if (warp >= a.g) return;
  float m = memory.m[lane][warp], s = memory.s[lane][warp];
  for (int o = 16; o > 0; o /= 2)
    join(m, s, __shfl_xor_sync(kAllLanes, m, o), __shfl_xor_sync(kAllLanes, s, o));
  if (lane != 0) return;
  const float share_blocks = static_cast<float>(a.step.ranked.share_blocks);
  const float factor = fminf(share_blocks / static_cast<float>(r.n_full + 1), 1.0f);
  memory.whole[warp] = m + log2f(s);
  memory.least[warp] = memory.whole[warp] + a.step.ranked.log2_share + log2f(factor);
}

// The mean value of a row's full blocks, from at most kMeanBlocks of them that lie evenly, as
// select/int4_keys.cpp takes them; the order of the sum is this kernel's own. They were written
// before this step began; what the last layer left is read until its attention ends.
constexpr int kMeanBlocks = 256;
__device__ inline void mean_of_values(const EstimateArgs& a, int row, int n_full, float* memory) {
  const int d = a.step.layout.head_dim, thread = threadIdx.x;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const uint16_t* means = sequence.value_means + head_index(a.step, row) * sequence.max_blocks * d;
  const int stride = (n_full + kMeanBlocks - 1) / kMeanBlocks, parts = kChooseThreads / d,
            part = thread / d, j = thread % d;
  const int n = stride > 0 ? n_full / stride : 0;
  float sum = 0;
#pragma unroll 8
  for (int i = part; i < n && part < parts; i += parts)
    sum += from_f16(means[int64_t(i * stride + stride - 1) * d + j]);
  memory[thread] = sum;
  __syncthreads();
  wait_for_earlier();
  if (thread >= d) return;
  for (int p = 1; p < parts; ++p) sum += memory[p * d + thread];
  a.scratch.mean_value[int64_t(row) * a.mean_stride + thread] =
      n > 0 ? sum / static_cast<float>(n) : 0;
}

// CTA (row, 0) chooses the row's blocks; CTA (row, 1) takes the mean of its values meanwhile.
__global__ __launch_bounds__(kChooseThreads) void choose_kernel(
    const __grid_constant__ EstimateArgs a) {
  __shared__ ChooseMemory memory;
  const int row = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const Ranked& ranked = a.step.ranked;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(ranked, sequence.n_tokens, a.step.layout.block_size);
  if (r.everything) return wait_for_earlier();  // attention reads nothing of what this row chooses
  if (blockIdx.y == 1) return mean_of_values(a, row, r.n_full, memory.values);
  wait_for_earlier();
  const float* masses = a.scratch.head_scores + int64_t(row) * a.g * a.step.max_blocks;
  int32_t* order = a.scratch.order + int64_t(row) * a.step.max_blocks;
  for (int p = thread; p < r.n_forced; p += kChooseThreads) order[p] = forced_block(r, p);

  whole_masses(a, row, r, masses, memory);
  __syncthreads();

  // A warp looks at kEach times 32 neighbours.
  constexpr int kEach = 4;
  int kept = 0;
  float unread[kMaxGroup] = {};
  for (int first = 0; first < r.n_candidates; first += kEach * kChooseThreads) {
    const int begin = first + kEach * 32 * warp + lane;
    bool keep[kEach] = {};
#pragma unroll
    for (int h = 0; h < kMaxGroup; ++h) {
      if (h >= a.g) break;
      const float* of_head = masses + int64_t(h) * a.step.max_blocks + r.first;
      float mass[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = begin + 32 * i;
        mass[i] = c < r.n_candidates ? __ldcg(of_head + c) : kLowest;
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        // A share of 0 keeps all candidates, and nothing beyond them.
        keep[i] |= begin + 32 * i < r.n_candidates && mass[i] >= memory.least[h];
        unread[h] += exp2_approx(mass[i] - memory.whole[h]);
      }
    }
    // Few are kept: their weight is taken back.
    uint32_t kept_lanes[kEach], count = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      count += __popc(kept_lanes[i] = __ballot_sync(kAllLanes, keep[i]));
      if (!keep[i]) continue;
#pragma unroll
      for (int h = 0; h < kMaxGroup; ++h)
        if (h < a.g)
          unread[h] -= exp2_approx(
              __ldcg(masses + int64_t(h) * a.step.max_blocks + r.first + begin + 32 * i) -
              memory.whole[h]);
    }
    if (lane == 0) memory.kept[warp] = count;
    __syncthreads();
    uint32_t sum = memory.kept[lane];  // of the warps up to this lane's
    for (int o = 1; o < 32; o *= 2) {
      const uint32_t below = __shfl_up_sync(kAllLanes, sum, o);
      if (lane >= o) sum += below;
    }
    int at = r.n_forced + kept + static_cast<int>(__shfl_sync(kAllLanes, sum, warp) - count);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (keep[i])
        order[at + __popc(kept_lanes[i] & ((1u << lane) - 1))] = r.first + begin + 32 * i;
      at += __popc(kept_lanes[i]);
    }
    kept += static_cast<int>(__shfl_sync(kAllLanes, sum, 31));
    __syncthreads();
  }
  if (thread == 0) a.scratch.ranks[row] = {kept, 0};
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h) {
    for (int o = 16; o > 0; o /= 2) unread[h] += __shfl_xor_sync(kAllLanes, unread[h], o);
    if (lane == 0) memory.unread[warp][h] = unread[h];
  }
  __syncthreads();
  if (thread < a.g) {
    float sum = 0;
    for (int w = 0; w < kChooseThreads / 32; ++w) sum += memory.unread[w][thread];
    a.scratch.unread[row * kMaxGroup + thread] = fminf(fmaxf(sum, 0.0f), 1.0f);
  }
}

int n_parts(const DecodeStep& step, int n_sm) {
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, warps = kEstimateThreads / 32;
  // As many as run at once (80 registers a thread): a few more would take another round.
  const int64_t wanted = (step.max_blocks + warps - 1) / warps, share = 3 * int64_t(n_sm) / rows;
  return static_cast<int>(share < 1 ? 1 : wanted < share ? wanted : share);
}

EstimateArgs arguments(const DecodeStep& step, const DecodeScratch& scratch) {
  EstimateArgs a{};
  a.step = step;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  a.scale = kLog2e / sqrtf(float(step.layout.head_dim));
  return a;
}

}  // namespace

Status estimate_rows(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                     cudaStream_t stream) {
  const EstimateArgs a = arguments(step, scratch);
  const dim3 grid(static_cast<unsigned>(n_parts(step, n_sm)),
                  static_cast<unsigned>(step.n * step.n_kv_heads));
  // Two groups at once where a block has them; not for the largest heads, whose registers would not
  // do.
  const bool two = step.layout.block_size > kInt4Tokens;
  const auto run = [&](auto kernel) {
    return launch(kernel, a, grid, kEstimateThreads, step.overlap, stream);
  };
  switch (padded_dim(step.layout.head_dim)) {
    case 32: return two ? run(estimate_kernel<1, 2>) : run(estimate_kernel<1, 1>);
    case 64: return two ? run(estimate_kernel<2, 2>) : run(estimate_kernel<2, 1>);
    case 128: return two ? run(estimate_kernel<4, 2>) : run(estimate_kernel<4, 1>);
    default: return run(estimate_kernel<8, 1>);
  }
}

Status choose_orders(const DecodeStep& step, const DecodeScratch& scratch, cudaStream_t stream) {
  EstimateArgs a = arguments(step, scratch);
  a.mean_stride = padded_dim(step.layout.head_dim);
  return launch(choose_kernel, a, dim3(step.n * step.n_kv_heads, 2), kChooseThreads, step.overlap,
                stream);
}

}  // namespace riffle::cuda
