// y = W x for few rows x, of weights of 2 to 6 bits, as gemv.cu does for wider ones. Fewer bytes
// leave less time for arithmetic, so products are dp4a instructions with quants and with x in three
// signed bytes: 23 bits, with one scale for each group of 32. Sums of 32 products are exact, and
// the rest is f32. A warp takes a unit of R rows of W at a time. Its bytes come through a ring in
// shared memory, filled by asynchronous copies that begin before x has arrived and run on from unit
// to unit, so that registers do not limit the loads in flight. A row of a matrix belongs to one
// warp in every grid, and a lane adds its groups in the order of the columns: the bits of y depend
// only on W's row and x, not on n, on the other outputs or on the device. From tensor_rows() rows
// on gemv_quant_tensor.cu makes the same bits faster.
#include "kernels/cuda/gemv/gemv_quant.cuh"
#include "kernels/cuda/gemv/gemv_quant.h"
#include "kernels/cuda/gemv/gemv_quant_x.cuh"

namespace riffle::cuda::gemv_quant {
namespace {

constexpr int kMostRows = 8;  // rows of x in one launch
// Returns the number of rows from which tensor cores are faster (measured:
// tools/bench/results/gpu.md).
constexpr int tensor_rows(WType type) { return dtype_info(type).bits() >= 5 ? 5 : 3; }

// Rows of W a unit, and warps of a block: a multiprocessor has one block. Neither changes the bits.
template <int R_, int kWarps_>
struct Tuning {
  static constexpr int R = R_, kWarps = kWarps_, kThreads = kWarps * 32;
  static_assert(kThreads % kTeam == 0);
};

// Copies one part of a matrix, kRow bytes of each of R rows a step. A lane's copies are always at
// the same places.
template <int kRow, int R>
struct Part {
  static constexpr int kPiece = kRow < 16 ? kRow : 16, kOfRow = kRow / kPiece,
                       kCopies = (kOfRow * R + 31) / 32;
  static constexpr bool kSame =
      kOfRow % 32 == 0;           // all copies of a lane reach the row's end at the same step
  const char *first, *second;     // SwiGlu: of the first and of the second half of the rows
  uint32_t at[kCopies];           // pieces from there
  int left[kSame ? 1 : kCopies];  // bytes of the row from there on

  __device__ __forceinline__ bool is_second(int lane, int i, bool pairs) const {
    return pairs && (i * 32 + lane) / kOfRow >= R / 2;
  }
  // last: a row beyond it is read but not stored.
  __device__ __forceinline__ void seek(int lane, const void* one, const void* other, bool pairs,
                                       int row, int last, int64_t row_bytes) {
    first = static_cast<const char*>(one), second = static_cast<const char*>(other);
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int piece = i * 32 + lane, in = piece % kOfRow;
      const int r = piece / kOfRow - (is_second(lane, i, pairs) ? R / 2 : 0);
      at[i] =
          static_cast<uint32_t>(min(row + r, last)) * (static_cast<uint32_t>(row_bytes) / kPiece) +
          in;
      if (!kSame || i == 0) left[i] = static_cast<int>(row_bytes) - in * kPiece;
    }
  }
  __device__ __forceinline__ void copy(int lane, uint32_t to, bool pairs) {
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const char* from;
      asm("mad.wide.u32 %0, %1, %2, %3;"
          : "=l"(from)
          : "r"(at[i]), "n"(kPiece), "l"(is_second(lane, i, pairs) ? second : first));
      if (kOfRow * R % 32 == 0 || i * 32 + lane < kOfRow * R)
        copy_or_zero<kPiece>(to + (i * 32 + lane) * kPiece, from, left[kSame ? 0 : i] > 0);
      at[i] += kOfRow;
      if (!kSame || i + 1 == kCopies) left[kSame ? 0 : i] -= kRow;
    }
  }
};
template <int R>
struct Part<0, R> {
  __device__ __forceinline__ void seek(int, const void*, const void*, bool, int, int, int64_t) {}
  __device__ __forceinline__ void copy(int, uint32_t, bool) {}
};

// Fills the warp's ring, units one after the other.
template <WType T, int R, int kWarps>
struct Producer {
  using F = Format<T>;
  using S = Slot<T, R>;
  Part<F::kData, R> data;
  Part<F::kHigh, R> high;
  Part<F::kScales, R> scales;
  Part<F::kBlocks, R> blocks;
  int unit, step;

  __device__ __forceinline__ void seek(const Plan& plan, int lane, int u) {
    unit = u, step = 0;
    if (u >= plan.n_units) return;
    const bool pairs = plan.args.then == Then::SwiGlu;
    const Unit at = unit_at(plan, u, pairs ? R / 2 : R);
    const Matrix &w = plan.args.w[at.out], &v = plan.args.w[pairs ? 1 : at.out];
    const int last = static_cast<int>(w.rows) - 1;
    data.seek(lane, w.data, v.data, pairs, at.row, last, plan.row.data);
    high.seek(lane, w.high, v.high, pairs, at.row, last, plan.row.high);
    scales.seek(lane, w.scales, v.scales, pairs, at.row, last, plan.row.scales);
    blocks.seek(lane, w.blocks, v.blocks, pairs, at.row, last, plan.row.blocks);
  }
  __device__ __forceinline__ void copy(const Plan& plan, int lane, uint32_t slot) {
    if (unit < plan.n_units) {
      const bool pairs = plan.args.then == Then::SwiGlu;
      data.copy(lane, slot, pairs);
      high.copy(lane, slot + S::kHigh, pairs);
      scales.copy(lane, slot + S::kScales, pairs);
      blocks.copy(lane, slot + S::kBlocks, pairs);
      if (++step == plan.n_steps) seek(plan, lane, unit + static_cast<int>(gridDim.x) * kWarps);
    }
    close_stage(plan.groups);
  }
};

template <WType T, int N, class Tune>
__global__ void __launch_bounds__(Tune::kThreads, 1) kernel(const __grid_constant__ Plan plan) {
  constexpr int R = Tune::R, kWarps = Tune::kWarps, kTeams = Tune::kThreads / kTeam;
  using S = Slot<T, R>;
  extern __shared__ uint4 shared[];
  __shared__ float sums[N * kSquares];
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  char* const ring = reinterpret_cast<char*>(shared) + warp * plan.stages * S::kBytes;
  char* const xs = reinterpret_cast<char*>(shared) + kWarps * plan.stages * S::kBytes;
  const uint32_t ring_at = shared_address(ring), ring_bytes = plan.stages * S::kBytes;

  // Weights first: they wait for no other kernel.
  allow_next();
  Producer<T, R, kWarps> producer;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  producer.seek(plan, lane, first);
#pragma unroll 1
  for (int s = 0; s + 1 < plan.stages; s++) producer.copy(plan, lane, ring_at + s * S::kBytes);

  wait_for_earlier();
  stage<N, kTeams>(plan, 0, xs, a.norm != nullptr ? sums : nullptr);
  __syncthreads();
  // Lane r * N + i ends up with row r of x_i. 1 / rms is common to the whole sum, so it is applied
  // there.
  const int i = lane % N, r_mine = lane / N;
  const float norm_of_mine =
      a.norm != nullptr ? norm_of(sums + i * kSquares, a.w[0].cols, a.eps) : 1.0f;
  const bool pairs = a.then == Then::SwiGlu;
  uint32_t slot = 0, slot_before = ring_bytes - S::kBytes;

  for (int round = 0; round < plan.rounds; round++) {
    const int u = first + round * kWarps * static_cast<int>(gridDim.x);
    const bool active = u < plan.n_units;
    float* y = nullptr;  // this lane's output, if it has one
    float before = 0;
    if (active) {
      const Unit at = unit_at(plan, u, pairs ? R / 2 : R);
      const int row = at.row + r_mine;
      if (r_mine < (pairs ? R / 2 : R) && i < a.n && row < a.w[at.out].rows)
        y = a.y[at.out] + i * a.ldy[at.out] + row;
      if (y != nullptr && a.then == Then::Add) before = *y;
    }
    float sum[R][N] = {};
    for (int begin = 0; begin < plan.n_steps; begin += plan.chunk) {
      if (plan.chunk < plan.n_steps &&
          (round > 0 || begin > 0)) {  // x does not fit: all warps go through it together
        __syncthreads();
        stage<N, kTeams>(plan, begin, xs, nullptr);
        __syncthreads();
      }
      if (!active) continue;
      const char* x_at = xs;
      const int end = min(begin + plan.chunk, plan.n_steps);
#pragma unroll 1
      for (int step = begin; step < end; step++) {
        wait_for_stage();
        __syncwarp();  // all lanes' copies have arrived, and all have read the previous slot
        producer.copy(plan, lane, ring_at + slot_before);
        const char* const from = ring + slot;
        slot_before = slot;
        slot = slot + S::kBytes == ring_bytes ? 0 : slot + S::kBytes;
        int q[R][8];
        GroupScale scales[R];
#pragma unroll
        for (int r = 0; r < R; r++)
          unpack<T>(from, R, r, lane, q[r]), scales[r] = scales_of<T>(from, R, r, lane);
#pragma unroll
        for (int j = 0; j < N; j++, x_at += kBytesOfX) {
          Group x;
#pragma unroll
          for (int p = 0; p < 6; p++)
            x.part[p / 2][p % 2] = *reinterpret_cast<const uint4*>(x_at + (p * 32 + lane) * 16);
          const float2 more = *reinterpret_cast<const float2*>(x_at + 6 * 32 * 16 + lane * 8);
          x.unit = more.x, x.sum = more.y;
          if constexpr (Format<T>::kHalves && Format<T>::kMin) sum_halves(x);
#pragma unroll
          for (int r = 0; r < R; r++) sum[r][j] = multiply<T>(q[r], scales[r], x, sum[r][j]);
        }
      }
    }
    if (!active) continue;

    float mine = 0;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float whole = sum_of_lanes(sum[r][j]);
        if (lane == r * N + j) mine = whole;
      }
    mine = __fmul_rn(mine, norm_of_mine);
    const float up = __shfl_down_sync(0xffffffffu, mine, R / 2 * N);
    if (y == nullptr) continue;
    *y = finished(a, mine, up, before);
  }
#if __CUDA_ARCH__ >= 800
  cp_async_wait<0>();
#endif
}

template <WType T, int N, class Tune>
Status launch_rows(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  constexpr int kWarps = Tune::kWarps, kFixed = 1024 + N * kSquares * 4;
  const GemvCut cut = cut_gemv(args, {.unit_rows = Tune::R,
                                      .step_cols = kStep,
                                      .bytes_of_x = N * kBytesOfX,
                                      .bytes_of_stage = kWarps * Slot<T, Tune::R>::kBytes,
                                      .room = device.smem - kFixed,
                                      .fullest = true});
  if (cut.chunk < 1) return cudaErrorNotSupported;
  const int grid = cut.n_units < device.n_sm ? cut.n_units : device.n_sm;
  const Plan plan = plan_of(T, cut, rounds_of(cut, static_cast<int64_t>(grid) * kWarps));
  return launch_gemv(kernel<T, N, Tune>, plan, dim3(grid), Tune::kThreads, cut.smem, args.overlap,
                     stream);
}

// 8 warps if shared memory is too small for 16 warps' rings.
template <WType T, int N, int R>
Status launch_tuned(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  const Status s = launch_rows<T, N, Tuning<R, 16>>(args, device, stream);
  if (s != cudaErrorNotSupported) return s;
  return launch_rows<T, N, Tuning<4, 8>>(args, device, stream);
}

template <WType T>
Status launch_type(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  const Status s = args.n == 1   ? launch_tuned<T, 1, 4>(args, device, stream)
                   : args.n == 2 ? launch_tuned<T, 2, 4>(args, device, stream)
                   : args.n <= 4 ? launch_tuned<T, 4, 2>(args, device, stream)
                                 : launch_rows<T, 8, Tuning<4, 8>>(args, device, stream);
  if (s != cudaErrorNotSupported || args.n == 1) return s;
  // The device has less shared memory.
  return launch_in_parts(args, (args.n + 1) / 2,
                         [&](const Gemv& part) { return launch_type<T>(part, device, stream); });
}

Status launch_ordinary(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  return with_type(args.w[0].type, [&]<WType T>() -> Status {
    if constexpr (T > WType::Q8_0) return launch_type<T>(args, device, stream);
    else return cudaErrorInvalidValue;
  });
}

}  // namespace

Status launch(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  if (args.cores == Cores::Tensor ||
      (args.cores == Cores::Best && args.n >= tensor_rows(args.w[0].type))) {
    const Status s = launch_tensor(args, device, stream);
    if (s != cudaErrorNotSupported) return s;
  }
  if (args.w[0].type == WType::Q8_0) return launch_q8(args, device, stream);
  return launch_in_parts(args, kMostRows,
                         [&](const Gemv& part) { return launch_ordinary(part, device, stream); });
}

}  // namespace riffle::cuda::gemv_quant
