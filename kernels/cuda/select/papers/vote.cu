// TokenSelect on the device (arXiv 2411.02886; select/papers/tokenselect.cpp is the twin): all
// query heads of a layer vote for a fixed number of tokens between the first and the last ones, by
// the keys themselves.
//
// decide_kernel decides for each sequence whether to use the last selection again (by the cosine of
// the queries), or whether no token need be left out. Otherwise dots_kernel computes q.k of every
// candidate and head. It reads each key where it lies, in a slot of the pool or in pinned host
// memory; the pool stays unchanged. heads_kernel sums up each head's softmax (or finds its k-th
// best logit), votes_kernel adds the heads up, and select_kernel marks the tokens with the most
// votes. It then writes the masks and orders of the sequence's rows, also if an earlier selection
// is used. Sums have a fixed order, so votes depend only on the sequence.
#include "kernels/common/agreed.h"
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/select/papers/rank.cuh"

namespace riffle::cuda {
namespace {

constexpr int kDecideThreads = 256, kDotThreads = 256, kVoteThreads = 256, kSelectThreads = 1024;
constexpr int kModeCounter =
    4;  // in the counters of a sequence's first row (see Counter, decode_parts.h)
enum Mode : uint32_t { kEverything = 0, kCached = 1, kFresh = 2 };

struct VoteArgs {
  DecodeStep step;
  VoteRule rule;
  PaperScratch scratch;
  int g;
  float scale, unscale;  // 1 / sqrt(d); factor that undoes it and applies rule.scale
};

__device__ inline VoteState* state_of(const VoteArgs& a, const StepSequence& s) {
  return reinterpret_cast<VoteState*>(
      s.kept + a.step.choice * vote_bytes(a.step.n_heads * a.step.layout.head_dim, s.max_blocks));
}
__device__ inline float* query_of(VoteState* state) { return reinterpret_cast<float*>(state + 1); }
__device__ inline uint64_t* selected_of(const VoteArgs& a, VoteState* state) {
  return reinterpret_cast<uint64_t*>(query_of(state) + a.step.n_heads * a.step.layout.head_dim);
}
__device__ inline uint32_t mode_of(const VoteArgs& a, int sequence) {
  return __ldcg(a.scratch.counters + int64_t(sequence) * a.step.n_kv_heads * kCounterStride +
                kModeCounter);
}
// Logits by token: [max_blocks * block_size]. Votes take the place of head 0's.
__device__ inline float* logits_of(const VoteArgs& a, int sequence, int head) {
  return a.scratch.token_scores +
         (int64_t(sequence) * a.step.n_heads + head) * a.step.max_blocks * a.step.layout.block_size;
}

__global__ __launch_bounds__(kDecideThreads) void decide_kernel(
    const __grid_constant__ VoteArgs a) {
  __shared__ double sums[3][kDecideThreads / 32];
  __shared__ uint32_t mode;
  const int i = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  wait_for_earlier();
  const StepSequence& s = a.step.sequences[i];
  const VoteRule& rule = a.rule;
  VoteState* state = state_of(a, s);
  const int n_q = a.step.n_heads * a.step.layout.head_dim;
  const float* q = a.step.q + int64_t(i) * n_q;
  float* before = query_of(state);
  uint32_t* counters = a.scratch.counters + int64_t(i) * a.step.n_kv_heads * kCounterStride;
  for (int c = thread; c < a.step.n_kv_heads * kCounterStride; c += kDecideThreads)
    if (c != kModeCounter) counters[c] = 0;
  double dot = 0, mine = 0, its = 0;
  for (int j = thread; j < n_q; j += kDecideThreads) {
    const double x = q[j], y = before[j];
    dot += x * y, mine += x * x, its += y * y;
  }
  for (int o = 16; o > 0; o /= 2) {
    dot += __shfl_xor_sync(kAllLanes, dot, o);
    mine += __shfl_xor_sync(kAllLanes, mine, o);
    its += __shfl_xor_sync(kAllLanes, its, o);
  }
  if (lane == 0) sums[0][warp] = dot, sums[1][warp] = mine, sums[2][warp] = its;
  __syncthreads();
  if (thread == 0) {
    dot = mine = its = 0;
    for (int w = 0; w < kDecideThreads / 32; ++w)
      dot += sums[0][w], mine += sums[1][w], its += sums[2][w];
    const double cosine = dot / (sqrt(mine) * sqrt(its));
    const bool comparable = cosine == cosine;  // fmin and fmax would turn a NaN into a number
    const bool same = state->select == rule.select && state->init == rule.init &&
                      state->local == rule.local &&
                      state->kind == static_cast<int32_t>(rule.kind) && state->scale == rule.scale;
    if (int64_t(rule.init) + rule.select + rule.local >= s.n_tokens) {
      mode = kEverything;
      state->n_tokens = 0;  // the last selection is no longer valid
    } else if (state->n_tokens > 0 && s.n_tokens > state->n_tokens &&
               s.n_tokens - state->n_tokens <= kMaxReuse && same && comparable &&
               fmin(fmax(cosine, -1.0), 1.0) >= rule.cache_threshold) {
      mode = kCached;
    } else {
      mode = kFresh;
      *state = {s.n_tokens, s.n_tokens - rule.local,         rule.select, rule.init,
                rule.local, static_cast<int32_t>(rule.kind), rule.scale,  0};
    }
    counters[kModeCounter] = mode;
  }
  __syncthreads();
  if (mode == kFresh)
    for (int j = thread; j < n_q; j += kDecideThreads) before[j] = q[j];
}

// Access to keys: kValues numbers at a time, in 16 bytes.
template <class T>
struct ChunkOf {
  static constexpr int kValues = 16 / sizeof(T);
  __device__ static uint4 load(const std::byte* keys, int d, int64_t token, int chunk) {
    return __ldcg(reinterpret_cast<const uint4*>(keys) + token * (d / kValues) + chunk);
  }
};
template <>
struct ChunkOf<Q8Kv> {
  static constexpr int kValues = 8;  // as f16
  __device__ static uint4 load(const std::byte* keys, int d, int64_t token, int chunk) {
    return q8_unpack_chunk(keys + token * q8_row_bytes(d), d, chunk);
  }
};

// A warp a block at a time; 8 lanes a token, two tokens at once. H: heads of the group, padded.
template <int H, class T>
__global__ __launch_bounds__(kDotThreads) void dots_kernel(const __grid_constant__ VoteArgs a) {
  constexpr int kLanes = 8, kTokens = 2 * 32 / kLanes, kChunk = ChunkOf<T>::kValues;
  __shared__ alignas(16) float q[H][256];
  const int i = blockIdx.z, head = blockIdx.y, d = a.step.layout.head_dim,
            block_size = a.step.layout.block_size;
  wait_for_earlier();
  if (mode_of(a, i) != kFresh) return;
  const StepSequence& s = a.step.sequences[i];
  const VoteRule& rule = a.rule;
  for (int j = threadIdx.x; j < H * d; j += kDotThreads) {
    const int h = j / d;
    const float x =
        h < a.g ? a.step.q[(int64_t(i) * a.step.n_heads + head * a.g + h) * d + j % d] : 0;
    q[h][j % d] = __fmul_rn(__fmul_rn(x, a.scale), a.unscale);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, sub = lane % kLanes, group = lane / kLanes,
            n_chunks = d / kChunk;
  const int begin = rule.init, end = s.n_tokens - rule.local,
            n_full = (s.n_tokens + block_size - 1) / block_size - 1;
  const int64_t kv_head = head_index(a.step, head), entry0 = kv_head * s.max_blocks;
  const Pool& pool = a.step.pool;
  const int32_t* page_table = pool.n_slots > 0 ? pool.page_tables[s.table] : nullptr;
  for (int b = begin / block_size + blockIdx.x * (kDotThreads / 32) + threadIdx.x / 32;
       b * block_size < end; b += gridDim.x * (kDotThreads / 32)) {
    // Nothing changes the pool while this kernel runs.
    const std::byte* block = b == n_full ? tail_of(a.step, s, head) : nullptr;
    if (block == nullptr && page_table != nullptr) {
      const int table = table_of(s, b);
      const int slot =
          __ldcg((table == s.table ? page_table : pool.page_tables[table]) + entry0 + b);
      if (slot >= 0 &&
          __ldcg(pool.words + slot) >> kStampBits == pool_key(table, entry0 + b) >> kStampBits)
        block = slot_at(pool, slot);
    }
    if (block == nullptr) block = s.host[entry0 + b];
    for (int t0 = 0; t0 < block_size; t0 += kTokens) {
      const int first = b * block_size + t0;
      if (first + kTokens <= begin || first >= end) continue;
      float v[2 * H] = {};  // [token][head]
#pragma unroll 2
      for (int c = sub; c < n_chunks; c += kLanes) {
        uint4 chunk[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) chunk[k] = ChunkOf<T>::load(block, d, t0 + 2 * group + k, c);
        float x[2][kChunk];
#pragma unroll
        for (int k = 0; k < 2; ++k) widen(chunk[k], x[k]);
#pragma unroll
        for (int h = 0; h < H; ++h)
#pragma unroll
          for (int j = 0; j < kChunk; ++j)
#pragma unroll
            for (int k = 0; k < 2; ++k)
              v[k * H + h] = fmaf(q[h][c * kChunk + j], x[k][j], v[k * H + h]);
      }
      reduce_split<2 * H, kLanes>(v, lane);
      constexpr int kMine = 2 * H > kLanes ? 2 * H / kLanes : 1;
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int value = sub * 2 * H / kLanes + m, t = first + 2 * group + value / H,
                  h = value % H;
        const bool mine =
            2 * H >= kLanes || sub % (kLanes / (2 * H < kLanes ? 2 * H : kLanes)) == 0;
        if (mine && h < a.g && t >= begin && t < end) logits_of(a, i, head * a.g + h)[t] = v[m];
      }
    }
  }
}

// ---- the k best of many

// Ascending with the float.
__device__ inline uint32_t ordered_bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct BestMemory {
  uint32_t bins[2048], sums[32], bin, above;
  int last;
};
struct Best {
  uint32_t bits;  // ordered_bits of the k-th best
  int last;       // last of the values equal to it that is among the k best
  __device__ bool has(float x, int index) const {
    return ordered_bits(x) > bits || (ordered_bits(x) == bits && index <= last);
  }
};

// The k best of values [begin, end), the earlier one among equals; 1 <= k <= end - begin. All
// threads of kSelectThreads. By digits of 11, 11 and 10 bits of the k-th best.
__device__ inline Best k_best(const float* values, int begin, int end, int k, BestMemory& memory) {
  const int thread = threadIdx.x;
  constexpr int kMine = 2048 / kSelectThreads;
  uint32_t bits = 0, left = k;
  uint32_t equal = 0;
  for (int shift = 21;; shift = shift == 21 ? 10 : 0) {
    const int digit_bits = shift == 0 ? 10 : 11;
    for (int b = thread; b < 2048; b += kSelectThreads) memory.bins[b] = 0;
    __syncthreads();
    for (int i = begin + thread; i < end; i += kSelectThreads) {
      const uint32_t x = ordered_bits(__ldcg(values + i));
      if (shift == 21 || x >> (shift + digit_bits) == bits >> (shift + digit_bits))
        atomicAdd(&memory.bins[x >> shift & ((1u << digit_bits) - 1)], 1u);
    }
    __syncthreads();
    uint32_t mine[kMine], total = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) total += mine[i] = memory.bins[2047 - (kMine * thread + i)];
    uint32_t before = block_exclusive_sum<kSelectThreads>(total, memory.sums);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (before < left && before + mine[i] >= left)
        memory.bin = 2047 - (kMine * thread + i), memory.above = before;
      before += mine[i];
    }
    __syncthreads();
    bits |= memory.bin << shift;
    left -= memory.above;
    equal = memory.bins[memory.bin];
    __syncthreads();
    if (shift == 0) break;
  }
  Best best = {bits, end};
  if (left == equal) return best;
  // Some of the equal ones, in order.
  uint32_t seen = 0;
  for (int first = begin; first < end; first += kSelectThreads) {
    const int i = first + thread;
    const uint32_t one = i < end && ordered_bits(__ldcg(values + i)) == bits;
    const uint32_t before = seen + block_exclusive_sum<kSelectThreads>(one, memory.sums);
    if (one && before + 1 == left) memory.last = i;
    if (thread == kSelectThreads - 1) memory.above = before + one;
    __syncthreads();
    seen = memory.above;
    __syncthreads();
    if (seen >= left) break;
  }
  best.last = memory.last;
  return best;
}

// Factor or threshold of a head's logits, [n][n_heads], in scratch.sorted.
union HeadVote {
  struct {
    float top, inverse;
  } soft;
  Best best;
};
__device__ inline HeadVote* head_votes(const VoteArgs& a, int sequence) {
  return reinterpret_cast<HeadVote*>(a.scratch.sorted) + int64_t(sequence) * a.step.n_heads;
}

// A CTA a head.
__global__ __launch_bounds__(kSelectThreads) void heads_kernel(const __grid_constant__ VoteArgs a) {
  __shared__ BestMemory memory;
  __shared__ float tops[32];
  __shared__ double sums[32];
  const int head = blockIdx.x, i = blockIdx.y, thread = threadIdx.x, lane = thread % 32,
            warp = thread / 32;
  wait_for_earlier();
  if (mode_of(a, i) != kFresh) return;
  const VoteRule& rule = a.rule;
  const int begin = rule.init, end = a.step.sequences[i].n_tokens - rule.local;
  const float* logits = logits_of(a, i, head);
  HeadVote vote{};
  if (rule.kind == VoteKind::Hard) {
    vote.best = k_best(logits, begin, end, rule.select, memory);
  } else {
    float top = -INFINITY;
    for (int t = begin + thread; t < end; t += kSelectThreads) top = fmaxf(top, __ldcg(logits + t));
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, o));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    for (int w = 0; w < kSelectThreads / 32; ++w) top = fmaxf(top, tops[w]);
    double sum = 0;
    for (int t = begin + thread; t < end; t += kSelectThreads)
      sum += double(expf(__ldcg(logits + t) - top));
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < kSelectThreads / 32; ++w) sum += sums[w];
    vote.soft = {top, static_cast<float>(1 / sum)};
  }
  if (thread == 0) head_votes(a, i)[head] = vote;
}

// A thread a token. Its votes replace head 0's logit.
__global__ __launch_bounds__(kVoteThreads) void votes_kernel(const __grid_constant__ VoteArgs a) {
  const int i = blockIdx.y;
  wait_for_earlier();
  if (mode_of(a, i) != kFresh) return;
  const VoteRule& rule = a.rule;
  const int begin = rule.init, end = a.step.sequences[i].n_tokens - rule.local;
  const HeadVote* heads = head_votes(a, i);
  float* votes = logits_of(a, i, 0);
  const int64_t stride = a.step.max_blocks * a.step.layout.block_size;
  for (int t = begin + blockIdx.x * kVoteThreads + threadIdx.x; t < end;
       t += gridDim.x * kVoteThreads) {
    float sum = 0;
#pragma unroll 4
    for (int h = 0; h < a.step.n_heads; ++h) {
      const float logit = __ldcg(votes + h * stride + t);
      if (rule.kind == VoteKind::Logits) {
        sum += logit;
      } else if (rule.kind == VoteKind::Hard) {
        const Best best = {
            static_cast<uint32_t>(__ldcg(reinterpret_cast<const int32_t*>(heads + h))),
            __ldcg(reinterpret_cast<const int32_t*>(heads + h) + 1)};
        sum += best.has(logit, t) ? 1.0f : 0.0f;
      } else {
        const float2 soft = __ldcg(reinterpret_cast<const float2*>(heads + h));
        sum = fmaf(expf(logit - soft.x), soft.y, sum);
      }
    }
    votes[t] = sum;
  }
}

// A CTA a sequence.
__global__ __launch_bounds__(kSelectThreads) void select_kernel(
    const __grid_constant__ VoteArgs a) {
  __shared__ BestMemory memory;
  const int i = blockIdx.x, thread = threadIdx.x, lane = thread % 32,
            block_size = a.step.layout.block_size;
  wait_for_earlier();
  const uint32_t mode = mode_of(a, i);
  const StepSequence& s = a.step.sequences[i];
  const VoteRule& rule = a.rule;
  VoteState* state = state_of(a, s);
  auto* selected = selected_of(a, state);
  const int n_blocks = (s.n_tokens + block_size - 1) / block_size, window = __ldcg(&state->window);
  if (mode == kFresh) {
    const float* votes = logits_of(a, i, 0);
    const Best best = k_best(votes, rule.init, window, rule.select, memory);
    // A warp has 32 tokens: a block, two of 16 tokens, or half of one.
    auto* halves = reinterpret_cast<uint32_t*>(selected);
    for (int first = thread - lane; first < n_blocks * block_size; first += kSelectThreads) {
      const int t = first + lane;
      const bool keep = t < rule.init || (t < window && best.has(__ldcg(votes + t), t));
      const unsigned bits = __ballot_sync(kAllLanes, keep);
      if (block_size == 64) {
        if (lane == 0) halves[first / 32] = bits;
      } else if (block_size == 32) {
        if (lane < 2) halves[first / 16 + lane] = lane == 0 ? bits : 0;
      } else if (lane < 2 && first / 16 + lane < n_blocks) {
        selected[first / 16 + lane] = bits >> 16 * lane & 0xffff;
      }
    }
    __syncthreads();
  }

  // The rows' masks and orders: the tail, which is always read, then the other blocks that hold a
  // token.
  const int n_rows = a.step.n_kv_heads;
  const int64_t row0 = int64_t(i) * n_rows, max_blocks = a.step.max_blocks;
  const auto mask_of = [&](int b) -> uint64_t {
    const int held = min(s.n_tokens - b * block_size, block_size), local = window - b * block_size;
    uint64_t mask = ~uint64_t(0) >> (64 - held);
    if (mode == kEverything || local <= 0) return mask;
    const uint64_t last = local >= block_size ? 0 : ~uint64_t(0) << local;
    // Blocks added after the selection lie after the beginning of the local tokens.
    return mask & (__ldcg(reinterpret_cast<const unsigned long long*>(selected) + b) | last);
  };
  int kept = 0, tokens = 0;
  for (int first = 0; first < n_blocks - 1; first += kSelectThreads) {
    const int b = first + thread;
    const uint64_t mask = b < n_blocks - 1 ? mask_of(b) : 0;
    const int at =
        1 + kept + static_cast<int>(block_exclusive_sum<kSelectThreads>(mask != 0, memory.sums));
    tokens += __popcll(mask);
    for (int row = 0; row < n_rows && mask != 0; ++row) {
      a.scratch.masks[(row0 + row) * max_blocks + b] = mask;
      a.scratch.order[(row0 + row) * max_blocks + at] = b;
    }
    if (thread == kSelectThreads - 1) memory.above = at + (mask != 0);
    __syncthreads();
    kept = static_cast<int>(memory.above) - 1;
    __syncthreads();
  }
  const uint64_t tail = mask_of(n_blocks - 1);
  if (thread == kSelectThreads - 1) tokens += __popcll(tail);
  const uint32_t before =
      block_exclusive_sum<kSelectThreads>(static_cast<uint32_t>(tokens), memory.sums);
  if (thread != kSelectThreads - 1) return;
  for (int row = 0; row < n_rows; ++row) {
    a.scratch.masks[(row0 + row) * max_blocks + n_blocks - 1] = tail;
    a.scratch.order[(row0 + row) * max_blocks] = n_blocks - 1;
    a.scratch.ranks[row0 + row] = {
        kept, 0, static_cast<unsigned long long>(mode == kCached) << 32 | (before + tokens)};
  }
}

VoteArgs arguments(const DecodeStep& step, const VoteRule& rule, const PaperScratch& scratch) {
  VoteArgs a{};
  a.step = step;
  a.rule = rule;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  a.scale = 1.0f / sqrtf(float(step.layout.head_dim));
  a.unscale = sqrtf(float(step.layout.head_dim)) * rule.scale;
  return a;
}

template <class T>
Status launch_dots(const VoteArgs& a, int n_sm, cudaStream_t stream) {
  const int64_t rows = int64_t(a.step.n) * a.step.n_kv_heads, warps = kDotThreads / 32;
  const int64_t wanted = (a.step.max_blocks + warps - 1) / warps,
                share = (8 * int64_t(n_sm) + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(wanted < share ? wanted : share),
                  static_cast<unsigned>(a.step.n_kv_heads), static_cast<unsigned>(a.step.n));
  switch (padded_group(a.g)) {
    case 1: return launch(dots_kernel<1, T>, a, grid, kDotThreads, a.step.overlap, stream);
    case 2: return launch(dots_kernel<2, T>, a, grid, kDotThreads, a.step.overlap, stream);
    case 4: return launch(dots_kernel<4, T>, a, grid, kDotThreads, a.step.overlap, stream);
    default: return launch(dots_kernel<8, T>, a, grid, kDotThreads, a.step.overlap, stream);
  }
}

}  // namespace

Status vote_tokens(const DecodeStep& step, const VoteRule& rule, const PaperScratch& scratch,
                   int n_sm, cudaStream_t stream) {
  const VoteArgs a = arguments(step, rule, scratch);
  const auto n = static_cast<unsigned>(step.n), heads = static_cast<unsigned>(step.n_heads);
  if (Status status = launch(decide_kernel, a, dim3(n), kDecideThreads, step.overlap, stream);
      status != cudaSuccess)
    return status;
  const Status dots = step.layout.type == KvType::F16   ? launch_dots<__half>(a, n_sm, stream)
                      : step.layout.type == KvType::F32 ? launch_dots<float>(a, n_sm, stream)
                                                        : launch_dots<Q8Kv>(a, n_sm, stream);
  if (dots != cudaSuccess || rule.kind == VoteKind::Logits) return dots;
  return launch(heads_kernel, a, dim3(heads, n), kSelectThreads, step.overlap, stream);
}

Status choose_voted(const DecodeStep& step, const VoteRule& rule, const PaperScratch& scratch,
                    int n_sm, cudaStream_t stream) {
  const VoteArgs a = arguments(step, rule, scratch);
  const auto n = static_cast<unsigned>(step.n);
  const int64_t tokens = step.max_blocks * step.layout.block_size,
                wanted = (tokens + kVoteThreads - 1) / kVoteThreads;
  const dim3 grid(static_cast<unsigned>(wanted < 4 * n_sm ? wanted : 4 * n_sm), n);
  if (Status status = launch(votes_kernel, a, grid, kVoteThreads, step.overlap, stream);
      status != cudaSuccess)
    return status;
  return launch(select_kernel, a, dim3(n), kSelectThreads, step.overlap, stream);
}

}  // namespace riffle::cuda
