// Ranking of the rows' candidates: the heads' scores become one score a block
// (src/select/README.md, common ground), and the most critical blocks are put in order, one chunk
// (rank.cuh) or, for a fixed budget, all that it allows.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/select/papers/rank.cuh"

namespace riffle::cuda {
namespace {

constexpr int kRankThreads = 1024, kSortThreads = 512;

struct RankArgs {
  DecodeStep step;
  RankRule rank;
  PaperScratch scratch;
  int32_t* order;
  int32_t* counts;
  int g, want;
};

// Beginning of the scores of a row's candidates: estimate.cu writes masses, in base 2, of all full
// blocks, score.cu scores of the candidates.
__device__ inline int first_score(const RankRule& rank, const RowGeometry& r) {
  return rank.codes ? r.first : 0;
}

// Combines the values of all threads, which all get the result. The order is fixed, so it may be a
// sum as well as a maximum.
template <class Combine>
__device__ float block_reduce(float value, float* memory, Combine combine) {
  for (int o = 16; o > 0; o /= 2) value = combine(value, __shfl_xor_sync(kAllLanes, value, o));
  if (threadIdx.x % 32 == 0) memory[threadIdx.x / 32] = value;
  __syncthreads();
  value = memory[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) value = combine(value, memory[w]);
  __syncthreads();
  return value;
}
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// Union, one head: replaces its scores by minus their ranks. A stable radix sort of indices, 4 bits
// a pass.
__global__ __launch_bounds__(kSortThreads) void head_ranks_kernel(
    const __grid_constant__ RankArgs a) {
  __shared__ uint32_t counts[16 * kSortThreads];
  __shared__ uint32_t sums[32];
  const int row = blockIdx.x / a.g, h = blockIdx.x % a.g, thread = threadIdx.x;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(a.step.rule, sequence.n_tokens, a.step.layout.block_size);
  const int n = r.n_candidates;
  float* scores =
      a.scratch.head_scores + (int64_t(row) * a.g + h) * a.step.max_blocks + first_score(a.rank, r);
  int32_t* buffers = a.scratch.sorted + (int64_t(row) * a.g + h) * 2 * a.step.max_blocks;
  const int each = (n + kSortThreads - 1) / kSortThreads, begin = min(thread * each, n),
            end = min(begin + each, n);
  for (int pass = 0; pass < 8; ++pass) {
    const int32_t* from = buffers + (pass & 1) * a.step.max_blocks;
    int32_t* to = buffers + (~pass & 1) * a.step.max_blocks;
    const int shift = 32 + 4 * pass;
    for (int digit = 0; digit < 16; ++digit) counts[digit * kSortThreads + thread] = 0;
    for (int i = begin; i < end; ++i) {
      const int index = pass == 0 ? i : from[i];
      counts[int(rank_key(scores[index], 0) >> shift & 15) * kSortThreads + thread]++;
    }
    __syncthreads();
    uint32_t own[16], total = 0;
    for (int j = 0; j < 16; ++j) own[j] = counts[thread * 16 + j], total += own[j];
    uint32_t at = block_exclusive_sum<kSortThreads>(total, sums);
    for (int j = 0; j < 16; ++j) counts[thread * 16 + j] = at, at += own[j];
    __syncthreads();
    for (int i = begin; i < end; ++i) {
      const int index = pass == 0 ? i : from[i];
      to[counts[int(rank_key(scores[index], 0) >> shift & 15) * kSortThreads + thread]++] = index;
    }
    __syncthreads();
  }
  for (int i = thread; i < n; i += kSortThreads) scores[buffers[i]] = -float(i);
}

// The heads' scores of a row's n candidates become one score a block.
__device__ inline void combine_heads(const RankArgs& a, int row, const RowGeometry& r,
                                     float* scores, float* reduce) {
  const RankRule& rank = a.rank;
  const int n = r.n_candidates, thread = threadIdx.x;
  const float* heads =
      a.scratch.head_scores + int64_t(row) * a.g * a.step.max_blocks + first_score(rank, r);
  const float unit = rank.codes ? kLn2 : 1.0f;
  if (rank.gqa == Gqa::SoftSum && n > 0) {
    // All ranked blocks are full, so log n_b is the same for all and cancels.
    for (int h = 0; h < a.g; ++h) {
      const float* one = heads + h * a.step.max_blocks;
      float top = -INFINITY, sum = 0;
      for (int i = thread; i < n; i += kRankThreads) top = fmaxf(top, one[i]);
      top = block_reduce(top, reduce, Larger());
      for (int i = thread; i < n; i += kRankThreads) sum += expf(unit * (one[i] - top));
      sum = block_reduce(sum, reduce, Sum());
      for (int i = thread; i < n; i += kRankThreads)
        scores[i] = (h == 0 ? 0 : scores[i]) + expf(unit * (one[i] - top)) / sum;
    }
  } else if (rank.gqa == Gqa::Union) {
    for (int i = thread; i < n; i += kRankThreads) {
      float best = heads[i];
      for (int h = 1; h < a.g; ++h) best = fmaxf(best, heads[h * a.step.max_blocks + i]);
      scores[i] = best;
    }
  } else if (rank.codes) {  // digests' scores come as the heads' mean
    for (int i = thread; i < n; i += kRankThreads) {
      float mean = 0;
      for (int h = 0; h < a.g; ++h) mean += heads[h * a.step.max_blocks + i];
      scores[i] = mean / float(a.g);
    }
  }
}

// Writes each head's largest bound to scratch.top.
__device__ inline void largest_bounds(const RankArgs& a, int row, int n, float* reduce) {
  for (int h = 0; h < a.g; ++h) {
    const float* bounds = a.scratch.bounds + (int64_t(row) * a.g + h) * a.step.max_blocks;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < n; i += kRankThreads) top = fmaxf(top, bounds[i]);
    top = block_reduce(top, reduce, Larger());
    if (threadIdx.x == 0) a.scratch.top[row * kMaxGroup + h] = top;
  }
}

__global__ __launch_bounds__(kRankThreads) void rank_kernel(const __grid_constant__ RankArgs a) {
  __shared__ RankMemory memory;
  __shared__ float reduce[32];
  const int row = blockIdx.x, thread = threadIdx.x;
  wait_for_earlier();
  const RankRule& rank = a.rank;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r =
      ranked_geometry(a.step.rule, rank, sequence.n_tokens, a.step.layout.block_size);
  const int n = r.n_candidates;
  float* scores = a.scratch.scores + int64_t(row) * a.step.max_blocks;
  int32_t* order = a.order + int64_t(row) * a.step.max_blocks;
  const bool fresh = a.want >= 0;
  RankState state = fresh ? RankState{0, 0, 0} : a.scratch.ranks[row];
  if (fresh) {
    for (int p = thread; p < r.n_forced; p += kRankThreads) order[p] = forced_block(r, p);
    if (thread == 0 && a.counts != nullptr)
      a.counts[2 * row] = r.n_forced, a.counts[2 * row + 1] = r.n_total;
    combine_heads(a, row, r, scores, reduce);
    const bool bounds = rank.test.stop == Stop::Bound || rank.test.stop == Stop::Veto;
    if (rank.progressive() && bounds && n > 0) largest_bounds(a, row, n, reduce);
    __syncthreads();
  }
  const int wanted = (a.want < 0 ? -a.want : a.want) - r.n_forced;
  const int target = rank.progressive() ? min(n, max(wanted, 1)) : r.n_total - r.n_forced;
  while (state.ranked < target)
    state = rank_chunk<kRankThreads>(scores, r.first, n, state, order + r.n_forced, memory);
  if (!rank.progressive()) state.ranked = target;  // all that attention reads
  if (thread == 0) a.scratch.ranks[row] = state;
}

}  // namespace

Status rank_orders(const DecodeStep& step, const RankRule& rank, const PaperScratch& scratch,
                   int32_t* order, int32_t* counts, int want, cudaStream_t stream) {
  const RankArgs a = {step, rank, scratch, order, counts, step.n_heads / step.n_kv_heads, want};
  const int rows = step.n * step.n_kv_heads;
  if (want >= 0 && !step.rule.everything && rank.gqa == Gqa::Union) {
    head_ranks_kernel<<<rows * a.g, kSortThreads, 0, stream>>>(a);
    if (Status status = cudaGetLastError(); status != cudaSuccess) return status;
  }
  return launch(rank_kernel, a, dim3(rows), kRankThreads, step.overlap, stream);
}

}  // namespace riffle::cuda
