// Decode attention in pieces that the host drives (pipelined PSA, arXiv 2503.00392, section 3.3).
// The kernels are those of the device-side step (progressive.cuh), so a row's bits are the same
// either way.
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/papers/stop.cuh"
#include "kernels/cuda/select/papers/rank.cuh"

namespace riffle::cuda {
namespace {

ProgressiveArgs host_args(const StreamedStep& host, int begin, int end) {
  ProgressiveArgs args{};
  const PaperScratch scratch = paper_scratch(host.step, false, true);
  static_cast<AttendArgs&>(args) = attend_arguments(host.step, scratch);
  args.paper = scratch;
  args.rank = host.rank;
  args.step.pool = {};
  args.step.order = nullptr;
  args.order = host.order;
  args.streamed = true;
  args.sources = host.sources;
  args.max_positions = host.max_positions;
  args.begin = begin;
  args.end = end;
  args.done = host.done;
  return args;
}

// Begins a step: no row is done, and no lane has seen anything.
__global__ void begin_rows_kernel(const __grid_constant__ StreamedStep host,
                                  const __grid_constant__ PaperScratch scratch, int n_values) {
  const int rows = host.step.n * host.step.n_kv_heads;
  if (blockIdx.x == 0)
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
      host.done[row] = 0;
      for (int i = 0; i < kCounterStride; ++i) scratch.counters[row * kCounterStride + i] = 0;
      for (int h = 0; h < kMaxGroup; ++h) scratch.run[row * kMaxGroup + h] = empty_stats();
    }
  if (blockIdx.x == 0 && threadIdx.x == 0) *host.n_active = rows;
  const int64_t warps = int64_t(rows) * kRowWarps, floats = 32 * scratch.lane_floats;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < warps * floats;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t value = i % floats / 32;
    scratch.lane_states[i] = value == n_values ? -INFINITY : 0.0f;  // m; all others
  }
}

// One CTA a row makes the test of progressive.cuh on the words that attend_positions has left. The
// last row to finish raises the flag.
__global__ __launch_bounds__(kCtaThreads) void verify_kernel(
    const __grid_constant__ StreamedStep host, const __grid_constant__ PaperScratch scratch,
    int begin, int end, uint32_t* flag, uint32_t epoch) {
  __shared__ StopMemory memory;
  __shared__ int decision;
  const DecodeStep& step = host.step;
  const int row = blockIdx.x, g = step.n_heads / step.n_kv_heads;
  bool stop = false;
  if (!host.done[row]) {
    const StepSequence& sequence = step.sequences[row / step.n_kv_heads];
    const RowGeometry r =
        ranked_geometry(step.rule, host.rank, sequence.n_tokens, step.layout.block_size);
    const int row_end = min(end, r.n_total);
    stop = row_end >= r.n_total;
    if (!stop && host.rank.progressive() && !r.everything) {
      HeadStats run = empty_stats();
      if (threadIdx.x < static_cast<unsigned>(g)) run = scratch.run[row * kMaxGroup + threadIdx.x];
      const Wave wave = {begin, row_end, true};
      // The forced blocks take no part in the test.
      stop = decide<false>(host.rank.test, r, wave, begin >= r.n_forced,
                           scratch.words + int64_t(row) * 2 * kWords * kRowWarps * g, 0,
                           scratch.top + row * kMaxGroup, g, step.layout.block_size, run, memory,
                           decision) >= 0;
      if (threadIdx.x < static_cast<unsigned>(g)) scratch.run[row * kMaxGroup + threadIdx.x] = run;
    }
    if (stop && threadIdx.x == 0 && step.results != nullptr)
      step.results[row] = {r.n_blocks, row_end, 0, 0};
  }
  __syncthreads();  // every thread has read done
  if (threadIdx.x != 0) return;
  if (stop) host.done[row] = 1;
  const int left =
      stop ? atomicSub(host.n_active, 1) - 1 : *static_cast<volatile int32_t*>(host.n_active);
  if (left == 0 && flag != nullptr) {
    __threadfence_system();
    *static_cast<volatile uint32_t*>(flag) = epoch;
  }
}

}  // namespace

size_t streamed_scratch_bytes(const DecodeStep& step) {
  return static_cast<size_t>(paper_scratch(step, false, true).bytes);
}

Status rank_rows(const StreamedStep& host, int32_t first, const DeviceLimits& limits,
                 cudaStream_t stream) {
  const DecodeStep& step = host.step;
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = paper_decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  const PaperScratch scratch = paper_scratch(step, false, true);
  if (!step.rule.everything)
    if (Status status = score_rows(step, host.rank, scratch, limits.n_sm, stream);
        status != cudaSuccess)
      return status;
  if (Status status = rank_orders(step, host.rank, scratch, host.order, host.counts, first, stream);
      status != cudaSuccess)
    return status;
  const int n_values = static_cast<int>(scratch.lane_floats) - 4;
  begin_rows_kernel<<<2 * limits.n_sm, 256, 0, stream>>>(host, scratch, n_values);
  return cudaGetLastError();
}

Status rank_more(const StreamedStep& host, int32_t want, const DeviceLimits& limits,
                 cudaStream_t stream) {
  (void)limits;
  if (host.step.rule.everything || want <= 0) return cudaSuccess;
  return rank_orders(host.step, host.rank, paper_scratch(host.step, false, true), host.order,
                     nullptr, -want, stream);
}

Status attend_positions(const StreamedStep& host, int32_t begin, int32_t end,
                        const DeviceLimits& limits, cudaStream_t stream) {
  ProgressiveArgs args = host_args(host, begin, end);
  args.load_states = true;
  return attend_progressively(args, limits, stream);
}

Status verify_rows(const StreamedStep& host, int32_t begin, int32_t end, uint32_t* flag,
                   uint32_t epoch, cudaStream_t stream) {
  const int rows = host.step.n * host.step.n_kv_heads;
  verify_kernel<<<rows, kCtaThreads, 0, stream>>>(host, paper_scratch(host.step, false, true),
                                                  begin, end, flag, epoch);
  return cudaGetLastError();
}

Status finish_rows(const StreamedStep& host, const DeviceLimits& limits, cudaStream_t stream) {
  ProgressiveArgs args = host_args(host, 0, 0);
  args.load_states = args.merge = true;
  args.step.results = nullptr;  // verify_rows has written them
  return attend_progressively(args, limits, stream);
}

}  // namespace riffle::cuda
