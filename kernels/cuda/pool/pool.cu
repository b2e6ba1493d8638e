// The victims of a step: the pool's slots by last use (struct Pool in pool.h), with a counting sort
// by age. Slots of one age come in no particular order.
#include "kernels/cuda/attend/decode.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 1024, kPerThread = 4, kTile = kThreads * kPerThread;
// [0] free, [1] older than kVictimBins - 1 steps, [2..] one age each, oldest first.
constexpr int kBins = kVictimBins + 1;

__device__ int bin_of(unsigned long long word, uint32_t now) {
  if (word >> kStampBits == kFreeWord >> kStampBits) return 0;
  const uint32_t age = now - static_cast<uint32_t>(word & kMaxStamp);  // at least 1
  return age >= kVictimBins ? 1 : static_cast<int>(kVictimBins + 1 - age);
}

// Lanes of the same bin count as one: most slots were used in the same few steps. Returns this
// lane's place in its bin.
__device__ uint32_t add_to_bin(uint32_t* bins, int bin) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 700
  const unsigned active = __activemask(), same = __match_any_sync(active, bin);
  const int leader = __ffs(static_cast<int>(same)) - 1;
  uint32_t at = 0;
  if (lane == leader) at = atomicAdd(&bins[bin], static_cast<uint32_t>(__popc(same)));
  at = __shfl_sync(same, at, leader);
  return at + __popc(same & ((1u << lane) - 1));
#else
  (void)lane;
  return atomicAdd(&bins[bin], 1u);
#endif
}

__global__ __launch_bounds__(kThreads) void count_kernel(const Pool pool, uint32_t* totals) {
  __shared__ uint32_t bins[kBins];
  for (int b = threadIdx.x; b < kBins; b += kThreads) bins[b] = 0;
  __syncthreads();
  const uint32_t now = *pool.now + 1;
  const int64_t n = *pool.n_usable;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * kThreads)
    add_to_bin(bins, bin_of(pool.words[i], now));
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kThreads)
    if (bins[b] != 0) atomicAdd(&totals[b], bins[b]);
}

// Runs as one block. Turns totals into the beginnings of the bins, and begins the step.
__global__ __launch_bounds__(kThreads) void begin_kernel(const Pool pool, uint32_t* totals) {
  __shared__ uint32_t sums[32];
  constexpr int kEach = (kBins + kThreads - 1) / kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * kEach;
  uint32_t own[kEach], total = 0;
  for (int j = 0; j < kEach; ++j) total += own[j] = first + j < kBins ? totals[first + j] : 0;
  uint32_t sum = total;
  for (int o = 1; o < 32; o *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += below;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  uint32_t at = sum - total;
  for (int w = 0; w < warp; ++w) at += sums[w];
  for (int j = 0; j < kEach; ++j) {
    if (first + j < kBins) totals[first + j] = at;
    at += own[j];
  }
  if (threadIdx.x == 0) {
    *pool.now += 1;
    *pool.n_victims = *pool.n_usable;
    *pool.next_victim = 0;
  }
}

// Goes tile by tile: a tile's slots of one bin take their places together.
__global__ __launch_bounds__(kThreads) void place_kernel(const Pool pool, uint32_t* starts) {
  __shared__ uint32_t bins[kBins];
  const uint32_t now = *pool.now;  // already this step's
  const int64_t n = *pool.n_usable;
  for (int64_t tile = blockIdx.x; tile * kTile < n; tile += gridDim.x) {
    for (int b = threadIdx.x; b < kBins; b += kThreads) bins[b] = 0;
    __syncthreads();
    int bin[kPerThread];
    uint32_t at[kPerThread];
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t i = tile * kTile + j * kThreads + threadIdx.x;
      bin[j] = -1;
      if (i >= n) continue;
      bin[j] = bin_of(pool.words[i], now);
      at[j] = add_to_bin(bins, bin[j]);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < kBins; b += kThreads)
      if (bins[b] != 0) bins[b] = atomicAdd(&starts[b], bins[b]);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kPerThread; ++j)
      if (bin[j] >= 0)
        pool.victims[bins[bin[j]] + at[j]] =
            static_cast<int32_t>(tile * kTile + j * kThreads + threadIdx.x);
    __syncthreads();
  }
}

}  // namespace

size_t victims_scratch_bytes() { return kBins * sizeof(uint32_t); }

Status select_victims(const Pool& pool, void* scratch, cudaStream_t stream) {
  auto* bins = static_cast<uint32_t*>(scratch);
  if (Status status = cudaMemsetAsync(bins, 0, victims_scratch_bytes(), stream);
      status != cudaSuccess)
    return status;
  const int64_t tiles = (pool.n_slots + kTile - 1) / kTile;
  const unsigned grid = static_cast<unsigned>(tiles < 1 ? 1 : tiles < 256 ? tiles : 256);
  count_kernel<<<grid, kThreads, 0, stream>>>(pool, bins);
  if (Status status = cudaGetLastError(); status != cudaSuccess) return status;
  begin_kernel<<<1, kThreads, 0, stream>>>(pool, bins);
  if (Status status = cudaGetLastError(); status != cudaSuccess) return status;
  place_kernel<<<grid, kThreads, 0, stream>>>(pool, bins);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
