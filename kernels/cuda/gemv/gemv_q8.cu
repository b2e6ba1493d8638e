// y = W x for few rows x, of Q8_0 weights: the integers of gemv_quant.cuh, added as f32 in the
// order of gemv_quant.cu, so that gemv_quant_tensor.cu makes the same bits for more rows. That
// takes half the instructions of f32 arithmetic (gemv.cu). Weights go to registers, not through a
// ring: as measured, that reads 8% faster. A warp takes a unit of kRows rows of W at a time and
// keeps 8 loads of 16 bytes a lane in flight, also across units and before x has arrived.
#include "kernels/cuda/gemv/gemv_quant.h"
#include "kernels/cuda/gemv/gemv_quant_x.cuh"
#include "kernels/cuda/load.cuh"

namespace riffle::cuda::gemv_quant {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;
constexpr int kRows = 2, kSteps = 2;  // rows and steps of a batch of loads
constexpr int kMostRows = 4;          // rows of x in one launch
constexpr int kHalfStep = kStep / 2;  // distance of a lane's two loads of a row and step

// The weights of a step: of each row, 16 bytes of either half, and the scale of the group that the
// lane has after the swap.
struct Weights {
  uint4 half[kRows][2];
  uint32_t scale[kRows];
};

// Reads ahead: where the next batch of this warp is. kEven: a row is whole batches.
template <bool kEven>
struct Cursor {
  const char *row[kRows], *scale[kRows];
  int unit, col;

  __device__ __forceinline__ void seek(const Plan& plan, int u) {
    unit = u, col = 0;
    if (u >= plan.n_units) return;
    const bool pairs = plan.args.then == Then::SwiGlu;
    const Unit at = unit_at(plan, u, pairs ? kRows / 2 : kRows);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const bool second = pairs && r >= kRows / 2;
      const Matrix& w = plan.args.w[second ? 1 : at.out];
      const int64_t wanted = at.row + (second ? r - kRows / 2 : r), last = w.rows - 1;
      const int64_t index = (wanted < last ? wanted : last) * w.cols;  // past the end: not stored
      row[r] = static_cast<const char*>(w.data) + index;
      scale[r] = static_cast<const char*>(w.scales) + index / kGroup * 2;
    }
  }
  // Step s of the batch. Columns past the end are read from the row's last ones: x is zero there.
  __device__ __forceinline__ void load(const Plan& plan, int lane, int s, Weights& w) const {
    const int wanted = unit < plan.n_units, cols = static_cast<int>(plan.args.w[0].cols);
    const int begin = col + s * kStep;
    int at[2] = {begin + lane * 16, begin + kHalfStep + lane * 16};
    int group = begin / kGroup + lane % 2 * 16 + lane / 2;
    if constexpr (!kEven) {
      at[0] = min(at[0], cols - 16), at[1] = min(at[1], cols - 16);
      group = min(group, cols / kGroup - 1);
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        load_weights(w.half[r][h], row[r] + static_cast<uint32_t>(at[h]), wanted);
      load_scale(w.scale[r], scale[r] + static_cast<uint32_t>(group) * 2, wanted);
    }
  }
  __device__ __forceinline__ void advance(const Plan& plan) {
    col += kSteps * kStep;
    if (col >= plan.args.w[0].cols) seek(plan, unit + static_cast<int>(gridDim.x) * kWarps);
  }
};

// A lane's group of a row: its own half of the 32 values, which is the first one in even lanes, and
// the half that its neighbour had.
struct Halves {
  int own[4], other[4];
  float scale;
};
__device__ __forceinline__ Halves swapped(const Weights& w, int r, int odd) {
  const uint4 &a = w.half[r][0], &b = w.half[r][1];
  const uint32_t first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
  Halves halves;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    halves.own[k] = static_cast<int>(odd ? second[k] : first[k]);
    halves.other[k] = static_cast<int>(__shfl_xor_sync(0xffffffffu, odd ? first[k] : second[k], 1));
  }
  halves.scale = f16_bits_to_f32(w.scale[r]);
  return halves;
}

// Adds a step's products with N rows of x, whose operands begin at `x`.
template <int N>
__device__ __forceinline__ void multiply_step(const Halves (&w)[kRows], const char* x, int lane,
                                              float (&sum)[kRows][N]) {
  const int odd = lane % 2;
#pragma unroll
  for (int j = 0; j < N; j++, x += kBytesOfX) {
    uint4 own[3], other[3];
#pragma unroll
    for (int b = 0; b < 3; b++) {
      own[b] = *reinterpret_cast<const uint4*>(x + ((2 * b + odd) * 32 + lane) * 16);
      other[b] = *reinterpret_cast<const uint4*>(x + ((2 * b + 1 - odd) * 32 + lane) * 16);
    }
    const float unit = *reinterpret_cast<const float*>(x + 6 * 32 * 16 + lane * 8);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      int p[3];
#pragma unroll
      for (int b = 0; b < 3; b++) p[b] = dot16(w[r].other, other[b], dot16(w[r].own, own[b], 0));
      sum[r][j] = fmaf(join(p[0], p[1], p[2]) * w[r].scale, unit, sum[r][j]);
    }
  }
}

// sum_of_lanes() of groups that are at swapped_lane().
__device__ __forceinline__ float sum_of_swapped_lanes(float x) {
#pragma unroll
  for (int other = 2; other < 32; other *= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
  return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

template <int N, bool kEven>
__global__ void __launch_bounds__(kThreads, 1) q8_kernel(const __grid_constant__ Plan plan) {
  extern __shared__ uint4 shared[];
  __shared__ float sums[N * kSquares];
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  char* const xs = reinterpret_cast<char*>(shared);

  // Weights first: they wait for no other kernel.
  allow_next();
  Cursor<kEven> next;
  Weights weights[kSteps] = {};
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  next.seek(plan, first);
#pragma unroll
  for (int s = 0; s < kSteps; s++) next.load(plan, lane, s, weights[s]);
  next.advance(plan);

  wait_for_earlier();
  stage<N, kThreads / kTeam, true>(plan, 0, xs, a.norm != nullptr ? sums : nullptr);
  __syncthreads();
  // Lane r * N + i ends up with row r of x_i. 1 / rms is common to the whole sum, so it is applied
  // there.
  const int i = lane % N, r_mine = lane / N;
  const float norm_of_mine =
      a.norm != nullptr ? norm_of(sums + i * kSquares, a.w[0].cols, a.eps) : 1.0f;
  const bool pairs = a.then == Then::SwiGlu;
  const int rows = pairs ? kRows / 2 : kRows, cols = static_cast<int>(a.w[0].cols);

#pragma unroll 1
  for (int u = first; u < plan.n_units; u += kWarps * static_cast<int>(gridDim.x)) {
    const Unit at = unit_at(plan, u, rows);
    const int row = at.row + r_mine;
    float* y = nullptr;  // this lane's output, if it has one
    if (r_mine < rows && i < a.n && row < a.w[at.out].rows)
      y = a.y[at.out] + i * a.ldy[at.out] + row;
    const float before = y != nullptr && a.then == Then::Add ? *y : 0;
    float sum[kRows][N] = {};
    const char* x = xs;
#pragma unroll 1
    for (int c = 0; c < cols; c += kSteps * kStep) {
#pragma unroll
      for (int s = 0; s < kSteps; s++, x += N * kBytesOfX) {
        Halves halves[kRows];
#pragma unroll
        for (int r = 0; r < kRows; r++) halves[r] = swapped(weights[s], r, lane % 2);
        next.load(plan, lane, s, weights[s]);
        multiply_step<N>(halves, x, lane, sum);
      }
      next.advance(plan);
    }

    float mine = 0;
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float whole = sum_of_swapped_lanes(sum[r][j]);
        if (lane == r * N + j) mine = whole;
      }
    mine = __fmul_rn(mine, norm_of_mine);
    const float up = __shfl_down_sync(0xffffffffu, mine, kRows / 2 * N);
    if (y == nullptr) continue;
    *y = finished(a, mine, up, before);
  }
}

constexpr int kBatch = kSteps * kStep;
int64_t bytes_of_x(const Gemv& args, int n) {
  return round_up(args.w[0].cols, kBatch) / kStep * n * kBytesOfX;
}
bool has_room(const Gemv& args, const GemvDevice& device, int n) {
  return bytes_of_x(args, n) + n * kSquares * 4 + 1024 <= device.smem;
}

template <int N>
Status launch_rows(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  // has_room() has checked that all of x fits. The plan counts steps of kStep columns.
  GemvCut cut = cut_gemv(args, {.unit_rows = kRows,
                                .step_cols = kBatch,
                                .bytes_of_x = kSteps * N * kBytesOfX,
                                .room = device.smem - N * kSquares * 4 - 1024});
  cut.chunk *= kSteps;
  const Plan plan = plan_of(WType::Q8_0, cut, 0);
  const int grid = cut.n_units < device.n_sm ? cut.n_units : device.n_sm;
  const auto kernel = args.w[0].cols % kBatch == 0 ? q8_kernel<N, true> : q8_kernel<N, false>;
  return launch_gemv(kernel, plan, dim3(grid), kThreads, cut.smem, args.overlap, stream);
}

}  // namespace

bool fits_q8(const Gemv& args, const GemvDevice& device) {
  for (int o = 0; o < args.n_outs; o++)
    if (!vector_aligned(args.w[o].scales, row_parts(WType::Q8_0, args.w[o].cols).scales, 1))
      return false;
  return has_room(args, device, 1);
}

Status launch_q8(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  int rows = kMostRows;
  while (rows > 1 && !has_room(args, device, rows)) rows /= 2;
  return launch_in_parts(args, rows, [&](const Gemv& part) {
    return part.n == 1   ? launch_rows<1>(part, device, stream)
           : part.n == 2 ? launch_rows<2>(part, device, stream)
                         : launch_rows<4>(part, device, stream);
  });
}

}  // namespace riffle::cuda::gemv_quant
