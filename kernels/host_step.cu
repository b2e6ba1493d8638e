// Decode attention in pieces that the host drives (pipelined PSA, algorithms.md 2.3). The kernels are those of the device-side
// step (attend.cuh), so a row's bits are the same either way.
#include "kernels/decode.cuh"
#include "kernels/stop.cuh"

namespace riffle::cuda {
namespace {

constexpr int kVerifyThreads = 128;

AttendArgs host_args(const HostStep& host, int begin, int end) {
  AttendArgs args{};
  args.step = host.step;
  args.scratch = decode_scratch(host.step, true);
  args.order = host.order;
  args.group = host.step.n_heads / host.step.n_kv_heads;
  args.scale = kLog2e / sqrtf(float(host.step.layout.head_dim));
  args.host_driven = true;
  args.sources = host.sources;
  args.max_positions = host.max_positions;
  args.begin = begin;
  args.end = end;
  args.done = host.done;
  return args;
}

Status attend(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  return args.step.layout.type == KvType::F16 ? attend_f16(args, limits, stream) : attend_f32(args, limits, stream);
}

// A fresh step: no row is done, no lane has seen anything.
__global__ void begin_rows_kernel(const __grid_constant__ HostStep host, const __grid_constant__ DecodeScratch scratch,
                                  int n_values) {
  const int rows = host.step.n * host.step.n_kv_heads;
  if (blockIdx.x == 0)
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
      host.done[row] = 0;
      for (int i = 0; i < kCounterStride; ++i) scratch.counters[row * kCounterStride + i] = 0;
    }
  if (blockIdx.x == 0 && threadIdx.x == 0) *host.n_active = rows;
  const int64_t warps = int64_t(rows) * kRowWarps, floats = 32 * scratch.lane_floats;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < warps * floats; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t value = i % floats / 32;
    scratch.lane_states[i] = value == n_values ? -INFINITY : value == n_values + 2 ? INFINITY : 0.0f;  // m; smallest
  }
}

// One warp a row at a time; the last block to finish counts the rows that are left.
__global__ __launch_bounds__(kVerifyThreads) void verify_kernel(const __grid_constant__ HostStep host,
                                                                const __grid_constant__ DecodeScratch scratch, int begin,
                                                                int end, uint32_t* flag, uint32_t epoch) {
  __shared__ int finished;
  const DecodeStep& step = host.step;
  const int rows = step.n * step.n_kv_heads, lane = threadIdx.x % 32, g = step.n_heads / step.n_kv_heads;
  if (threadIdx.x == 0) finished = 0;
  __syncthreads();
  for (int row = threadIdx.x / 32; row < rows; row += kVerifyThreads / 32) {
    if (host.done[row]) continue;
    const StepSequence& sequence = step.sequences[row / step.n_kv_heads];
    const RowGeometry r = row_geometry(step.ranked, sequence.n_tokens, step.layout.block_size);
    const int row_end = min(end, r.n_total);
    bool stop = row_end == r.n_total;
    // The forced blocks take no part in the test.
    if (!stop && step.ranked.progressive && !step.ranked.everything && begin >= r.n_forced) {
      const int64_t at = int64_t(row) * 2 * kRowCtas * kMaxGroup;
      stop = row_passes(step.ranked, scratch.stats + at, scratch.left + at, scratch.top + row * kMaxGroup, g,
                        step.layout.block_size, r.n_total - row_end);
    }
    __syncwarp();  // every lane has read done
    if (stop && lane == 0) {
      host.done[row] = 1;
      atomicAdd(&finished, 1);
      if (step.results != nullptr) step.results[row] = {r.n_blocks, row_end, 0, 0};
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int left = *host.n_active - finished;
    *host.n_active = left;
    if (left == 0 && flag != nullptr) {
      __threadfence_system();
      *static_cast<volatile uint32_t*>(flag) = epoch;
    }
  }
}

}  // namespace

size_t host_scratch_bytes(const DecodeStep& step) { return static_cast<size_t>(decode_scratch(step, true).bytes); }

Status rank_rows(const HostStep& host, int32_t first, const DeviceLimits& limits, cudaStream_t stream) {
  const DecodeStep& step = host.step;
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = decode_supported(step.layout, g); status != cudaSuccess) return status;
  const DecodeScratch scratch = decode_scratch(step, true);
  if (!step.ranked.everything)
    if (Status status = score_rows(step, scratch, limits.n_sm, stream); status != cudaSuccess) return status;
  if (Status status = rank_orders(step, scratch, host.order, host.counts, first, stream); status != cudaSuccess)
    return status;
  const int n_values = static_cast<int>(scratch.lane_floats) - 4;
  begin_rows_kernel<<<2 * limits.n_sm, 256, 0, stream>>>(host, scratch, n_values);
  return cudaGetLastError();
}

Status rank_more(const HostStep& host, int32_t want, const DeviceLimits& limits, cudaStream_t stream) {
  (void)limits;
  if (host.step.ranked.everything || want <= 0) return cudaSuccess;
  return rank_orders(host.step, decode_scratch(host.step, true), host.order, nullptr, -want, stream);
}

Status attend_positions(const HostStep& host, int32_t begin, int32_t end, const DeviceLimits& limits,
                        cudaStream_t stream) {
  AttendArgs args = host_args(host, begin, end);
  args.load_states = true;
  return attend(args, limits, stream);
}

Status verify_rows(const HostStep& host, int32_t begin, int32_t end, uint32_t* flag, uint32_t epoch, cudaStream_t stream) {
  verify_kernel<<<1, kVerifyThreads, 0, stream>>>(host, decode_scratch(host.step, true), begin, end, flag, epoch);
  return cudaGetLastError();
}

Status finish_rows(const HostStep& host, const DeviceLimits& limits, cudaStream_t stream) {
  AttendArgs args = host_args(host, 0, 0);
  args.load_states = args.merge = true;
  args.step.results = nullptr;  // verify_rows has written them
  return attend(args, limits, stream);
}

}  // namespace riffle::cuda
