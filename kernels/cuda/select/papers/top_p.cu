// Twilight's choice on the device (arXiv 2502.02770; select/papers/twilight.cpp is the twin): from
// the estimated scores of the base's tokens (top_p_scores.cu), for each head the fewest tokens that
// hold a share of the weight.
//
// For psa's base, stop_kernel makes its test on the blocks' estimated masses. Then weights_kernel
// turns scores into weights and sums them up by their leading bits, threshold_kernel finds the
// weight from which on each head keeps tokens, and mark_kernel unites the heads' tokens and lists
// the blocks that hold any. Weights have the bits of the CPU's vector kernels, they are summed in
// units of 2^-30, and a set is bounded only by a weight. So the tokens are the same as the CPU's,
// whatever the order of the work.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/select/papers/top_p.cuh"

namespace riffle::cuda {
namespace {

constexpr int kStopThreads = 32 * kMaxGroup, kWeightThreads = 512, kChooseThreads = 1024,
              kMarkThreads = 512;
constexpr int kMarked =
    3;  // a row's counter (see Counter, decode_parts.h): CTAs that have marked their tokens

// ---- psa's test on estimated masses

struct Mass {
  float m = -INFINITY, s = 0;  // s e^m
  __device__ void join(float m2, float s2) {
    const float top = fmaxf(m, m2);
    if (top == -INFINITY) return;
    s = s * expf(m - top) + s2 * expf(m2 - top);
    m = top;
  }
  __device__ void join_lanes() {
    for (int o = 16; o > 0; o /= 2)
      join(__shfl_xor_sync(kAllLanes, m, o), __shfl_xor_sync(kAllLanes, s, o));
  }
};

// One warp a head. The heads compare results after every 32 tests; all of them must pass. Ends with
// ranks[row].ranked.
__global__ __launch_bounds__(kStopThreads) void stop_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ uint32_t passed[kMaxGroup];
  const int row = blockIdx.x, h = threadIdx.x / 32, lane = threadIdx.x % 32,
            block_size = a.step.layout.block_size;
  wait_for_earlier();
  const StopTest& test = a.rule.base.test;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = base_geometry(a, sequence.n_tokens, block_size);
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
  for (int begin = r.n_forced; begin < r.n_total; begin += 32 * test.microbatch) {
    uint32_t pass = 0;
    for (int i = 0; i < 32 && h < a.g; ++i) {
      const int first = min(begin + i * test.microbatch, r.n_total),
                end = min(first + test.microbatch, r.n_total);
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
      const double limit = double(all.m + logf(all.s)) + test.slack,
                   left = log(double(max(r.n_total - end, 1)));
      const bool ends =
          end == r.n_total || double(test.stop == Stop::Last ? largest : smallest) + left < limit;
      pass |= static_cast<uint32_t>(ends) << i;
    }
    if (lane == 0) passed[h] = pass;
    __syncthreads();
    uint32_t both = ~0u;
    for (int other = 0; other < a.g; ++other) both &= passed[other];
    if (both != 0) {
      stop = min(begin + __ffs(static_cast<int>(both)) * test.microbatch, r.n_total);
      break;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) a.scratch.ranks[row].ranked = stop - r.n_forced;
}

// ---- the smallest sets that hold top_p

// The threshold is found digit by digit. The weights are summed by the leading bits of their floats
// (which order as the weights do), from the largest on until the target is reached; then the same
// is done inside that bin. Only weights of 2^-31 and more contribute to a sum. Their bits take 28,
// as digits of 11, 11 and 6.
constexpr uint32_t kLeastBits = 0x30000000u;  // 2^-31
constexpr int kBins = kWeightBins, kFirst = 17, kSecond = 6,
              kList = 4096;  // bits after the first two digits

struct ChooseMemory {
  uint32_t low[kBins], high[kBins];  // a bin's sum
  uint32_t list[kList];              // bits of the weights in the first digit's bin, if they fit
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
// Finds the bin in which the sums from the largest bin on reach the target: memory.bin.
// memory.above: the sum of the bins before it. target 0: the target is a share `p` of all, and is
// returned (0: all sums are 0). Begins and ends with a barrier.
__device__ inline unsigned long long find_bin(ChooseMemory& memory, unsigned long long target,
                                              double p) {
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
  return a.rule.base.progressive() ? r.n_forced + __ldcg(&a.scratch.ranks[row].ranked) : r.n_total;
}

// A head's largest score. All lanes of a warp.
__device__ inline float top_of(const TopPArgs& a, const RowGeometry& r, int row, int h,
                               int n_base) {
  const int lane = threadIdx.x % 32, block_size = a.step.layout.block_size;
  const int64_t at = (int64_t(row) * a.g + h) * a.step.max_blocks;
  float top = -INFINITY;
  if (a.rule.base.progressive()) {
    // Only over the base, which is a part of the scored tokens.
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
__global__ __launch_bounds__(kWeightThreads) void weights_kernel(
    const __grid_constant__ TopPArgs a) {
  __shared__ uint32_t low[kBins], high[kBins];
  __shared__ float all_top;
  const int h = blockIdx.y, row = blockIdx.z, thread = threadIdx.x;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = base_geometry(a, sequence.n_tokens, a.step.layout.block_size);
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
    const float w[4] = {weight_below(s.x, top), weight_below(s.y, top), weight_below(s.z, top),
                        weight_below(s.w, top)};
    __stcg(weights + i, make_float4(w[0], w[1], w[2], w[3]));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (const uint32_t fixed = fixed_weight(w[j]); fixed > 0)
        add_to_bin(low, high, bin_of(w[j]), fixed);
  }
  __syncthreads();
  auto* sums = a.scratch.weight_sums + (int64_t(row) * a.g + h) * kWeightBins;
  for (int b = thread; b < kBins; b += kWeightThreads)
    if (const unsigned long long sum = static_cast<unsigned long long>(high[b]) << 32 | low[b];
        sum != 0)
      atomicAdd(sums + b, sum);
}

// One CTA a head. Writes the least weight that a token needs to be kept (0: all are) to
// scratch.top.
__global__ __launch_bounds__(kChooseThreads) void threshold_kernel(
    const __grid_constant__ TopPArgs a) {
  __shared__ ChooseMemory memory;
  const int h = blockIdx.x, row = blockIdx.y;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = base_geometry(a, sequence.n_tokens, a.step.layout.block_size);
  const int n = base_blocks(a, r, row) * a.step.layout.block_size;
  const auto* weights = reinterpret_cast<const float4*>(scores_of(a, row, h));
  float* out = a.scratch.top + int64_t(row) * kMaxGroup + h;

  const auto* sums = a.scratch.weight_sums + (int64_t(row) * a.g + h) * kWeightBins;
  for (int b = threadIdx.x; b < kBins; b += kChooseThreads) {
    const unsigned long long sum = __ldcg(sums + b);
    memory.low[b] = static_cast<uint32_t>(sum), memory.high[b] = static_cast<uint32_t>(sum >> 32);
  }
  if (threadIdx.x == 0) memory.n_list = 0;
  unsigned long long target = find_bin(memory, 0, a.rule.top_p);
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
      if (bin_of(w[j]) != first) continue;  // weights below 2^-31 have no bin
      const uint32_t x = __float_as_uint(w[j]) - kLeastBits;
      add_to_bin(memory.low, memory.high, static_cast<int>(x >> kSecond & (kBins - 1)),
                 fixed_weight(w[j]));
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
      add_to_bin(memory.low, memory.high, static_cast<int>(x & 63),
                 fixed_weight(__uint_as_float(x + kLeastBits)));
  };
  if (listed <= kList) {
    for (int i = threadIdx.x; i < listed; i += kChooseThreads) add(memory.list[i]);
  } else {
    for (int i = threadIdx.x; i < n; i += kChooseThreads)
      add(__float_as_uint(__ldcg(reinterpret_cast<const float*>(weights) + i)) - kLeastBits);
  }
  find_bin(memory, target, 0);
  if (threadIdx.x == 0)
    *out = __uint_as_float(kLeastBits + (bits | static_cast<uint32_t>(memory.bin)));
}

// Makes the row's order: the forced blocks, then the base's blocks that hold a token. Also counts
// these blocks and all tokens.
__device__ inline void choose_blocks(const TopPArgs& a, const RowGeometry& r, int row, int n_base,
                                     uint32_t* sums) {
  const int thread = threadIdx.x;
  const auto* masks = reinterpret_cast<const unsigned long long*>(a.scratch.masks) +
                      int64_t(row) * a.step.max_blocks;
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
    // The order may be the base's own. All of this round has been read before any is written, and
    // it is written no further than it was read.
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
  if (thread == kMarkThreads - 1)
    a.scratch.ranks[row] = {kept, 0, before + static_cast<unsigned long long>(tokens)};
}

// Marks the union of the heads' tokens, which the group reads. A warp has 32 tokens: a block, two
// of 16 tokens, or half of one.
__global__ __launch_bounds__(kMarkThreads) void mark_kernel(const __grid_constant__ TopPArgs a) {
  __shared__ uint32_t sums[32];
  __shared__ bool last;
  const int row = blockIdx.y, thread = threadIdx.x, lane = thread % 32,
            block_size = a.step.layout.block_size;
  wait_for_earlier();
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = base_geometry(a, sequence.n_tokens, block_size);
  const int n_base = base_blocks(a, r, row), n = n_base * block_size;
  const bool all = a.rule.top_p >= 1;
  float least[kMaxGroup];
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h)
    least[h] = h < a.g && !all ? __ldcg(a.scratch.top + int64_t(row) * kMaxGroup + h) : 0;
  const float* weights = scores_of(a, row, 0);
  const int64_t stride = a.step.max_blocks * block_size;  // stride of heads
  auto* masks =
      reinterpret_cast<unsigned long long*>(a.scratch.masks) + int64_t(row) * a.step.max_blocks;
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
      auto* half =
          reinterpret_cast<uint32_t*>(masks + base_block(a, r, row, first / 64)) + first / 32 % 2;
      if (lane == 0) *half = bits;
    } else if (block_size == 32) {
      if (lane == 0) masks[base_block(a, r, row, first / 32)] = bits;
    } else if (lane < 2 && first + 16 * lane < n) {
      masks[base_block(a, r, row, first / 16 + lane)] = bits >> 16 * lane & 0xffff;
    }
  }

  __threadfence();
  __syncthreads();
  if (thread == 0)
    last = atomicAdd(a.scratch.counters + row * kCounterStride + kMarked, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  choose_blocks(a, r, row, n_base, sums);
}

}  // namespace

bool ranks_base(const TopPRule& rule) { return rule.base.progressive() || rule.base.budget != 1; }

Status choose_tokens(const DecodeStep& step, const TopPRule& rule, const PaperScratch& scratch,
                     int n_sm, cudaStream_t stream) {
  const TopPArgs a = top_p_arguments(step, rule, scratch, n_sm);
  const int64_t rows = int64_t(step.n) * step.n_kv_heads,
                tokens = step.max_blocks * step.layout.block_size;
  // Returns the number of CTAs of `each` tokens for each of n, at most enough to fill the GPU.
  const auto parts = [&](int64_t each, int64_t n) {
    const int64_t wanted = (tokens + each - 1) / each, share = (3 * int64_t(n_sm) + n - 1) / n;
    return static_cast<unsigned>(wanted < share ? wanted : share);
  };
  const auto g = static_cast<unsigned>(a.g), n_rows = static_cast<unsigned>(rows);
  if (rule.base.progressive())
    if (Status status = launch(stop_kernel, a, dim3(n_rows), kStopThreads, step.overlap, stream);
        status != cudaSuccess)
      return status;
  if (rule.top_p < 1) {
    const dim3 grid(parts(8 * kWeightThreads, rows * a.g), g, n_rows);
    if (Status status = launch(weights_kernel, a, grid, kWeightThreads, step.overlap, stream);
        status != cudaSuccess)
      return status;
    if (Status status =
            launch(threshold_kernel, a, dim3(g, n_rows), kChooseThreads, step.overlap, stream);
        status != cudaSuccess)
      return status;
  }
  return launch(mark_kernel, a, dim3(parts(4 * kMarkThreads, rows), n_rows), kMarkThreads,
                step.overlap, stream);
}

}  // namespace riffle::cuda
