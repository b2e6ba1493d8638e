// Decode attention over f16 rows of latents (attend_latent.h): the kernel of CTAs with all heads of
// a row, and the kernel that merges their states.
#include "kernels/cuda/attend/attend_latent.h"
#include "kernels/cuda/attend/finish_row.cuh"
#include "kernels/cuda/attend/latent_block.cuh"
#include "kernels/cuda/attend/row_reads.cuh"
#include "kernels/cuda/launch.cuh"

namespace riffle::cuda {
namespace {

#if __CUDA_ARCH__ >= 800

// Shared memory besides the queries and the rings, with the members that RowWarp uses.
struct LatentMemory {
  LatentBlock::Shared block;
  StepSequence sequence[kCtaWarps];
  RowGeometry geometry[kCtaWarps];
  int2 place[kCtaWarps], stages[kCtaWarps][4];
  int counts[kCtaWarps][2];
};

using LatentWarp = RowWarp<__half, kLatentDim, kMaxGroup, FromTables, LatentBlock, LatentMemory>;

// Attends to the positions of a CTA, one for each warp at a time.
__device__ inline void attend_cta(const AttendArgs& a, LatentMemory& memory, uint4* rings) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Item item = item_of(a, blockIdx.x / kRowCtas);
  if (lane == 0) memory.sequence[warp] = a.step.sequences[item.row / a.step.n_kv_heads];
  __syncwarp();
  const StepSequence& sequence = memory.sequence[warp];
  const RowReads reads = row_reads(a, sequence, item.row);
  if (item.slice >= reads.geometry.slices) return;  // the same for the whole CTA
  if (lane == 0) memory.geometry[warp] = reads.geometry;
  __syncwarp();
  const RowGeometry& r = memory.geometry[warp];
  const int n_total = r.n_total,
            warp_chunks = a.n_stages * LatentWarp::StageOf::chunks(a.step.layout.block_size);
  LatentWarp w(a, sequence, r, memory, rings + warp * warp_chunks, item);
  w.look_up(n_total);
  w.claim(n_total);
  if (a.n_stages == 1) w.fetch(reads.likely);
  w.fill(n_total, n_total, n_total);
  w.block_.split_q(memory.block, a.scale);
  __syncthreads();
  w.block_.begin(memory.block);
  // Warp 0 has the CTA's first position of each turn.
  const int first = item.slice * kRowWarps + row_warp(0, blockIdx.x % kRowCtas);
  for (int base = first, turn = 0; base < n_total; base += w.stride, ++turn) {
    w.fill(n_total, n_total, n_total);
    const int p = w.own(turn);
    const bool has_block = p < n_total;
    if (has_block) w.scores();
    w.block_.share(memory.block, has_block);
    __syncthreads();
    w.block_.values(rings + turn % a.n_stages * w.stage_chunks(), warp_chunks,
                    a.step.layout.block_size, memory.block);
    __syncthreads();  // all warps have read this turn's blocks
    if (!has_block) continue;
    w.release();
    w.keep_result(p);
  }
  wait_async(0);
  w.count_waste();
  const int64_t cta =
      blockIdx.x % kRowCtas + kRowCtas * (int64_t(item.row) * a.slices + item.slice);
  w.block_.store(a.scratch.cta_states + cta * a.scratch.cta_floats, a.group);
  if (lane == 0) memory.counts[warp][0] = w.lookups, memory.counts[warp][1] = w.misses;
  __syncthreads();
  if (threadIdx.x < 2) {
    int sum = 0;
    for (int i = 0; i < kCtaWarps; ++i) sum += memory.counts[i][threadIdx.x];
    __stcg(a.scratch.cta_counts + cta * 2 + threadIdx.x, sum);
  }
}

#endif

__global__ __launch_bounds__(kCtaThreads) void latent_kernel(const __grid_constant__ AttendArgs a) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) uint4 dynamic[];
  __shared__ alignas(LatentMemory) std::byte storage[sizeof(LatentMemory)];
  auto& memory = reinterpret_cast<LatentMemory&>(storage);
  constexpr int kQueryChunks = sizeof(LatentBlock::Queries) / sizeof(uint4);
  if (threadIdx.x == 0) memory.block.queries = reinterpret_cast<LatentBlock::Queries*>(dynamic);
  __syncthreads();
  allow_next();
  wait_for_earlier();
  attend_cta(a, memory, dynamic + (kQueryChunks + 7) / 8 * 8);
#endif
}

// The merging kernel has kMergers groups of threads. A group has a run of the CTAs' states, and a
// thread four dimensions.
constexpr int kMergers = 4, kMergeWidth = kLatentValueDim / 4,
              kMergeThreads = kMergers * kMergeWidth;

// Adds a state's four values to those merged so far.
__device__ inline void add_state(MergedValues& v, const MergedValues& more) {
  if (more.m == -INFINITY) return;
  const float top = fmaxf(v.m, more.m), before = weight2(v.m, top), now = weight2(more.m, top);
  v.sum.x = v.sum.x * before + more.sum.x * now, v.sum.y = v.sum.y * before + more.sum.y * now;
  v.sum.z = v.sum.z * before + more.sum.z * now, v.sum.w = v.sum.w * before + more.sum.w * now;
  v.s = v.s * before + more.s * now;
  v.m = top;
}

// Block (h, row) of the grid merges head h of a row.
__global__ __launch_bounds__(kMergeThreads) void merge_kernel(
    const __grid_constant__ AttendArgs a) {
  __shared__ MergedValues parts[kMergers][kMergeWidth];
  allow_next();
  wait_for_earlier();
  const int h = blockIdx.x, row = blockIdx.y, group = threadIdx.x / kMergeWidth,
            at = threadIdx.x % kMergeWidth;
  const RowReads reads = row_reads(a, a.step.sequences[row / a.step.n_kv_heads], row);
  const RowGeometry& r = reads.geometry;
  const int n = r.slices * kRowCtas, first = n * group / kMergers, end = n * (group + 1) / kMergers;
  const float* states =
      a.scratch.cta_states + int64_t(row) * a.slices * kRowCtas * a.scratch.cta_floats;
  MergedValues v = {make_float4(0, 0, 0, 0), -INFINITY, 0};
  constexpr int kAtOnce = 8;
#pragma unroll 1
  for (int c = first; c < end; c += kAtOnce) {
    MergedValues some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      some[i] = {make_float4(0, 0, 0, 0), -INFINITY, 0};
      if (c + i >= end) continue;
      const float* state = states + (c + i) * a.scratch.cta_floats;
      const float2 ms = __ldcg(reinterpret_cast<const float2*>(state + a.group * kLatentDim) + h);
      some[i].m = ms.x, some[i].s = ms.y;
      some[i].sum = __ldcg(reinterpret_cast<const float4*>(state + int64_t(h) * kLatentDim) + at);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) add_state(v, some[i]);
  }
  parts[group][at] = v;
  __syncthreads();
  if (group > 0) {
    // Dimensions that keys have and values lack.
    const int x = kLatentValueDim + threadIdx.x - kMergeWidth;
    if (x < kLatentDim) a.step.out[(int64_t(row) * a.heads + h) * kLatentDim + x] = 0;
    if (h == 0 && group == 1 && at < 32) report_row(a, r, row, r.n_total);
    return;
  }
  v = parts[0][at];
#pragma unroll
  for (int i = 1; i < kMergers; ++i) add_state(v, parts[i][at]);
  write_values(a, row, h, 4 * at, v);
}

}  // namespace

Status attend_latent(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  const KvLayout& layout = args.step.layout;
  if (limits.compute < 80 || layout.type != KvType::F16 || layout.block_size > 32)
    return cudaErrorNotSupported;
  AttendArgs a = args;
  a.parts = 1;
  a.group = a.heads;
  a.slices = most_latent_slices(a.step.n_kv_heads);
  a.least = 1;  // CTAs do not wait for each other, so a slice costs little
  a.scratch.cta_floats = state_floats(a.heads, kLatentDim);
  const auto kernel = latent_kernel;
  cudaFuncAttributes attributes;
  if (Status status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess)
    return status;
  constexpr int64_t kQueries =
      (int64_t{sizeof(__half)} * kMaxParts * 2 * kMaxGroup * (kLatentDim + 8) + 127) / 128 * 128;
  const int64_t room = limits.smem_per_block - static_cast<int64_t>(attributes.sharedSizeBytes),
                stage = int64_t{kCtaWarps} * layout.block_size * 2 * kLatentDim;
  a.n_stages = static_cast<int>(room < kQueries ? 0 : (room - kQueries) / stage);
  if (a.n_stages < 1) return cudaErrorNotSupported;
  if (a.n_stages > 3) a.n_stages = 3;
  const int64_t bytes = kQueries + a.n_stages * stage;
  if (Status status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes));
      status != cudaSuccess)
    return status;
  const dim3 grid(static_cast<unsigned>(items_of_slice(a) * a.slices * kRowCtas));
  if (Status status =
          launch(kernel, a, grid, kCtaThreads, a.step.overlap, stream, static_cast<size_t>(bytes));
      status != cudaSuccess)
    return status;
  const dim3 heads(static_cast<unsigned>(a.heads),
                   static_cast<unsigned>(a.step.n * a.step.n_kv_heads));
  return launch(merge_kernel, a, heads, kMergeThreads, a.step.overlap, stream);
}

}  // namespace riffle::cuda
