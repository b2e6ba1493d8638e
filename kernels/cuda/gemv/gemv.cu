// y = W x for few rows x. BF16 goes to the tensor cores where the device and the shape allow
// (gemv_mma.cuh, from 9 rows on gemv_mma_pair.cuh). Types of 2 to 6 bits and most of Q8_0
// (gemv_quant::fits_q8) go to gemv_quant.cu. The kernel here does the rest without tensor cores.
// The time is that of reading W once, so everything serves that: a warp takes a unit of kRows rows
// of W at a time and keeps kDepth 16-byte loads a lane in flight, also across units and before x
// has arrived. A row of a matrix belongs to one warp in every grid, and a lane adds its products in
// the order of the columns: the bits of y depend only on W's row and x, not on n, on the other
// outputs or on the device.
#include "kernels/cuda/gemv/gemv_mma_pair.cuh"
#include "kernels/cuda/gemv/gemv_quant.h"
#include "kernels/cuda/layer/rmsnorm.cuh"
#include "kernels/cuda/load.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = kNormThreads, kWarps = kThreads / 32;
constexpr int kMostRows = 8;  // rows of x in one launch

// The kernel's arguments, and the division of the work.
struct Plan {
  Gemv args;
  int units[kGemvMaxOuts];  // units of each output (SwiGlu: both matrices together, in units[0])
  int n_units, rounds;      // rounds: units a warp goes through
  int chunk;                // columns of x in shared memory at a time
};

// Access to a type: a lane takes kVector values (16 bytes) of a step, a warp kStep.
template <WType T>
struct Format {
  static constexpr int kBytes = T == WType::F32 ? 4 : T == WType::Q8_0 ? 1 : 2;
  static constexpr int kVector = 16 / kBytes, kStep = 32 * kVector;
  static constexpr int kQuads = kVector / 4;  // a lane's float4s of x in a step
};

// Values 4q to 4q + 3 of a lane's 16 bytes.
template <WType T>
__device__ __forceinline__ void widen(const uint4& v, uint32_t scale_bits, int q, float* w) {
  if constexpr (T == WType::F32) {
    w[0] = __uint_as_float(v.x), w[1] = __uint_as_float(v.y);
    w[2] = __uint_as_float(v.z), w[3] = __uint_as_float(v.w);
  } else if constexpr (T == WType::Q8_0) {
    const uint32_t word = q == 0 ? v.x : q == 1 ? v.y : q == 2 ? v.z : v.w;
    // The byte b = quant + 128, put into the mantissa of 2^15, makes the float 2^15 + b. 2^15 + 128
    // has 9 bits and a scale 11, so their product is exact. So is scale * quant, the result of the
    // fused multiply-add.
    const float scale = f16_bits_to_f32(scale_bits), offset = -32896.0f * scale;
    const uint32_t biased = word ^ 0x80808080u;
    w[0] = fmaf(__uint_as_float(__byte_perm(biased, 0x47000000u, 0x7504)), scale, offset);
    w[1] = fmaf(__uint_as_float(__byte_perm(biased, 0x47000000u, 0x7514)), scale, offset);
    w[2] = fmaf(__uint_as_float(__byte_perm(biased, 0x47000000u, 0x7524)), scale, offset);
    w[3] = fmaf(__uint_as_float(__byte_perm(biased, 0x47000000u, 0x7534)), scale, offset);
  } else {
    const uint32_t a = q == 0 ? v.x : v.z, b = q == 0 ? v.y : v.w;
    if constexpr (T == WType::BF16) {
      w[0] = __uint_as_float(a << 16), w[1] = __uint_as_float(a & 0xffff0000u);
      w[2] = __uint_as_float(b << 16), w[3] = __uint_as_float(b & 0xffff0000u);
    } else {
      w[0] = f16_bits_to_f32(a & 0xffff), w[1] = f16_bits_to_f32(a >> 16);
      w[2] = f16_bits_to_f32(b & 0xffff), w[3] = f16_bits_to_f32(b >> 16);
    }
  }
}

// R: rows of W a unit, which share the reads of x.
constexpr int rows_of_unit(int n) { return n <= 2 ? 2 : 4; }
template <int N, int R>
struct Tile {
  static constexpr int kRows = R;
  static constexpr int kDepth =
      N <= 4 ? 8 : 4;  // 16-byte loads in flight, a lane: as many as registers allow
  static constexpr int kSteps = kDepth / kRows;  // a batch: kSteps steps of kRows rows
};

// The rows of W of one unit.
struct Unit {
  int out;
  int64_t row;
};
__device__ __forceinline__ Unit unit_at(const Plan& plan, int u, int rows) {
  const int out = output_of(plan, &u);
  return {out, static_cast<int64_t>(u) * rows};
}

// Reads ahead: where the next batch of this warp is.
template <WType T, int N, bool kEven, int R>
struct Cursor {
  using F = Format<T>;
  static constexpr int kRows = Tile<N, R>::kRows, kSteps = Tile<N, R>::kSteps,
                       kBatch = kSteps * F::kStep;

  const char* row[kRows];
  const char* scale[kRows];
  int unit, col;

  __device__ __forceinline__ void seek(const Plan& plan, int u) {
    unit = u;
    col = 0;
    if (u >= plan.n_units) return;
    const bool pairs = plan.args.then == Then::SwiGlu;
    const Unit at = unit_at(plan, u, pairs ? kRows / 2 : kRows);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const bool second = pairs && r >= kRows / 2;
      const Matrix& w = second ? plan.args.w[1] : plan.args.w[at.out];
      const int64_t wanted = at.row + (second ? r - kRows / 2 : r);
      const int64_t index =
          (wanted < w.rows ? wanted : w.rows - 1) * w.cols;  // past the end: read, not stored
      row[r] = static_cast<const char*>(w.data) + index * F::kBytes;
      if constexpr (T == WType::Q8_0)
        scale[r] = static_cast<const char*>(w.scales) + index / kQ8Group * 2;
    }
  }
  // Step s of the batch. Columns past the end are read from the row's last ones: x is zero there.
  __device__ __forceinline__ void load(const Plan& plan, int lane, int s, uint4* v,
                                       uint32_t* scales) const {
    const int wanted = unit < plan.n_units;
    int at = col + s * F::kStep + lane * F::kVector;
    if constexpr (!kEven) at = min(at, static_cast<int>(plan.args.w[0].cols) - F::kVector);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      load_weights(v[r], row[r] + static_cast<uint32_t>(at) * F::kBytes, wanted);
      if constexpr (T == WType::Q8_0)
        load_scale(scales[r], scale[r] + static_cast<uint32_t>(at) / kQ8Group * 2, wanted);
    }
  }
  __device__ __forceinline__ void advance(const Plan& plan) {
    col += kBatch;
    if (col >= plan.args.w[0].cols) seek(plan, unit + static_cast<int>(gridDim.x) * kWarps);
  }
};

// Puts columns [first, first + chunk) of x (times norm) into shared memory as [step][N][quad][lane]
// float4, so that the lanes of a warp read neighbours; zeros past the end. With `sums`: each warp's
// sums of squares of the whole rows.
template <WType T, int N>
__device__ void stage(const Plan& plan, int first, float4* xs, float* sums) {
  using F = Format<T>;
  const Gemv& a = plan.args;
  const int cols = static_cast<int>(a.w[0].cols);
  const int end = first + plan.chunk, last = sums != nullptr && cols > end ? cols : end;
  float squares[N] = {};
#pragma unroll 2
  for (int c = first + static_cast<int>(threadIdx.x) * 4; c < last; c += kThreads * 4) {
    float4 weight = make_float4(1, 1, 1, 1), v[N];
    if (a.norm != nullptr && c < cols) weight = *reinterpret_cast<const float4*>(a.norm + c);
#pragma unroll
    for (int i = 0; i < N; i++) {
      v[i] = make_float4(0, 0, 0, 0);
      if (i < a.n && c < cols) v[i] = *reinterpret_cast<const float4*>(a.x + i * a.ldx + c);
    }
    const int step = (c - first) / F::kStep, in_step = (c - first) % F::kStep / 4;
    float4* to = xs + (step * N * F::kQuads + in_step % F::kQuads) * 32 + in_step / F::kQuads;
#pragma unroll
    for (int i = 0; i < N; i++) {
      squares[i] = add_squares(squares[i], v[i]);
      if (a.norm != nullptr)
        v[i].x *= weight.x, v[i].y *= weight.y, v[i].z *= weight.z, v[i].w *= weight.w;
      if (c < end) to[i * F::kQuads * 32] = v[i];
    }
  }
  if (sums == nullptr) return;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float sum = warp_sum(squares[i]);
    if (threadIdx.x % 32 == 0) sums[i * kWarps + threadIdx.x / 32] = sum;
  }
}

template <WType T, int N, bool kEven, int R>
__global__ void __launch_bounds__(kThreads, 1) gemv_kernel(const __grid_constant__ Plan plan) {
  using F = Format<T>;
  constexpr int kRows = Tile<N, R>::kRows, kSteps = Tile<N, R>::kSteps, kBatch = kSteps * F::kStep;
  constexpr int kQuadsOfStep = N * F::kQuads * 32;  // float4s of x in a step
  extern __shared__ float4 xs[];
  __shared__ float sums[N * kWarps];
  const Gemv& a = plan.args;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // Weights first: they wait for no other kernel.
  allow_next();
  Cursor<T, N, kEven, R> next;
  uint4 v[kSteps][kRows];
  uint32_t scales[kSteps][kRows];
#pragma unroll
  for (int s = 0; s < kSteps; s++)
#pragma unroll
    for (int r = 0; r < kRows; r++) v[s][r] = make_uint4(0, 0, 0, 0), scales[s][r] = 0;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  next.seek(plan, first);
#pragma unroll
  for (int s = 0; s < kSteps; s++) next.load(plan, lane, s, v[s], scales[s]);
  next.advance(plan);

  wait_for_earlier();
  stage<T, N>(plan, 0, xs, a.norm != nullptr ? sums : nullptr);
  __syncthreads();
  // Lane r * N + i ends up with row r of x_i. 1 / rms is common to the whole sum, so it is applied
  // there.
  const int i = lane % N, r_mine = lane / N;
  const float norm_of_mine =
      a.norm != nullptr ? norm_scale(sums + i * kWarps, a.w[0].cols, a.eps) : 1.0f;
  const bool pairs = a.then == Then::SwiGlu;
  const int cols = static_cast<int>(a.w[0].cols);

  for (int round = 0; round < plan.rounds; round++) {
    const int u = first + round * kWarps * static_cast<int>(gridDim.x);
    const bool active = u < plan.n_units;
    float* y = nullptr;  // this lane's output, if it has one
    float before = 0;
    if (active) {
      const Unit at = unit_at(plan, u, pairs ? kRows / 2 : kRows);
      const int64_t row = at.row + r_mine;
      if (r_mine < (pairs ? kRows / 2 : kRows) && i < a.n && row < a.w[at.out].rows)
        y = a.y[at.out] + i * a.ldy[at.out] + row;
      if (y != nullptr && a.then == Then::Add) before = *y;
    }
    float sum[kRows][N] = {};
    for (int begin = 0; begin < cols; begin += plan.chunk) {
      if (plan.chunk < cols &&
          (round > 0 || begin > 0)) {  // x does not fit: all warps go through it together
        __syncthreads();
        stage<T, N>(plan, begin, xs, nullptr);
        __syncthreads();
      }
      if (!active) continue;
      const float4* x_at = xs + lane;
      const int end = min(begin + plan.chunk, cols);
      for (int c = begin; c < end; c += kBatch, x_at += kSteps * kQuadsOfStep) {
#pragma unroll
        for (int s = 0; s < kSteps; s++) {
#pragma unroll
          for (int q = 0; q < F::kQuads; q++) {
            float w[kRows][4];
#pragma unroll
            for (int r = 0; r < kRows; r++) widen<T>(v[s][r], scales[s][r], q, w[r]);
#pragma unroll
            for (int j = 0; j < N; j++) {
              const float4 x = x_at[s * kQuadsOfStep + (j * F::kQuads + q) * 32];
#pragma unroll
              for (int r = 0; r < kRows; r++)
                sum[r][j] =
                    fmaf(w[r][3], x.w,
                         fmaf(w[r][2], x.z, fmaf(w[r][1], x.y, fmaf(w[r][0], x.x, sum[r][j]))));
            }
          }
          next.load(plan, lane, s, v[s], scales[s]);
        }
        next.advance(plan);
      }
    }
    if (!active) continue;

    float mine = 0;
#pragma unroll
    for (int r = 0; r < kRows; r++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float whole = warp_sum(sum[r][j]);
        if (lane == r * N + j) mine = whole;
      }
    mine *= norm_of_mine;
    const float up = __shfl_down_sync(0xffffffffu, mine, kRows / 2 * N);
    if (y == nullptr) continue;
    *y = finished(a, mine, up, before);
  }
}

// Anything else: odd sizes, unaligned x, a SwiGlu of two types. One warp a row, no shared memory
// for x.
__global__ void __launch_bounds__(kThreads) gemv_any_kernel(const __grid_constant__ Gemv a) {
  __shared__ float sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.y;
  allow_next();
  wait_for_earlier();
  const int64_t cols = a.w[0].cols;
  const float* x = a.x + i * a.ldx;
  float scale = 1;
  if (a.norm != nullptr) {
    float squares = 0;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < cols; c += kThreads * 4) {
      float v[4];
      for (int j = 0; j < 4; j++) v[j] = c + j < cols ? x[c + j] : 0;
      squares = add_squares(squares, make_float4(v[0], v[1], v[2], v[3]));
    }
    squares = warp_sum(squares);
    if (lane == 0) sums[warp] = squares;
    __syncthreads();
    scale = norm_scale(sums, cols, a.eps);
  }
  const bool pairs = a.then == Then::SwiGlu;
  for (int o = 0; o < (pairs ? 1 : a.n_outs); o++) {
    for (int64_t row = blockIdx.x * static_cast<int64_t>(kWarps) + warp; row < a.w[o].rows;
         row += static_cast<int64_t>(gridDim.x) * kWarps) {
      float sum = 0, up = 0;
      for (int64_t c = lane; c < cols; c += 32) {
        const float value = a.norm != nullptr ? x[c] * a.norm[c] : x[c];
        sum = fmaf(weight_at(a.w[o], row, c), value, sum);
        if (pairs) up = fmaf(weight_at(a.w[1], row, c), value, up);
      }
      sum = warp_sum(sum) * scale;
      up = warp_sum(up) * scale;
      float* y = a.y[o] + i * a.ldy[o] + row;
      if (lane == 0) *y = finished(a, sum, up, a.then == Then::Add ? *y : 0);
    }
  }
}

template <WType T, int N, bool kEven, int R>
Status launch_fast(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  using F = Format<T>;
  constexpr int kRows = Tile<N, R>::kRows, kBatch = Tile<N, R>::kSteps * F::kStep;
  const GemvCut cut = cut_gemv(args, {.unit_rows = kRows,
                                      .step_cols = kBatch,
                                      .bytes_of_x = kBatch * N * 4,
                                      .room = device.smem - N * kWarps * 4 - 64,
                                      .fullest = true});
  if (cut.chunk < 1) return cudaErrorNotSupported;
  const int grid = cut.n_units < device.n_sm ? cut.n_units : device.n_sm;
  Plan plan = {cut.args,
               {},
               cut.n_units,
               rounds_of(cut, static_cast<int64_t>(grid) * kWarps),
               cut.chunk * kBatch};
  for (int o = 0; o < kGemvMaxOuts; o++) plan.units[o] = cut.units[o];
  return launch_gemv(gemv_kernel<T, N, kEven, R>, plan, dim3(grid), kThreads, cut.smem,
                     args.overlap, stream);
}

template <WType T, int N>
Status launch_rows(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  constexpr int R = rows_of_unit(N);
  constexpr bool kOften =
      T == WType::F16 || T == WType::Q8_0;  // the others are rare: not worth more kernels
  if constexpr (kOften) {
    if (args.w[0].cols % (Tile<N, R>::kSteps * Format<T>::kStep) == 0)
      return launch_fast<T, N, true, R>(args, device, stream);
  }
  return launch_fast<T, N, false, R>(args, device, stream);
}

template <WType T>
Status launch_type(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  if (args.n == 1) return launch_rows<T, 1>(args, device, stream);
  if (args.n == 2) return launch_rows<T, 2>(args, device, stream);
  if (args.n <= 4) return launch_rows<T, 4>(args, device, stream);
  return launch_rows<T, 8>(args, device, stream);
}

Status launch_any(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  int64_t rows = 0;
  for (int o = 0; o < args.n_outs; o++) rows = args.w[o].rows > rows ? args.w[o].rows : rows;
  const int64_t blocks = round_up(rows, kWarps) / kWarps, most = 4 * device.n_sm;
  const dim3 grid(static_cast<unsigned>(blocks < most ? blocks : most), args.n);
  return launch_gemv(gemv_any_kernel, args, grid, kThreads, 0, args.overlap, stream);
}

// Outputs [first, first + n) of args, all of one type.
Status launch_one_type(const Gemv& args, const GemvDevice& device, cudaStream_t stream) {
  const Matrix& w = args.w[0];
  bool fast =
      vector_aligned(args.x, args.ldx, 4) && vector_aligned(args.norm, 0, 4) && w.cols < (1 << 30);
  for (int o = 0; o < args.n_outs; o++)
    fast = fast && args.w[o].type == w.type && args.w[o].rows < (1 << 30) &&
           vector_aligned(args.w[o].data, row_parts(w.type, w.cols).data, 1);
  if (!fast) return launch_any(args, device, stream);
  const bool integers =
      w.type == WType::Q8_0 ? gemv_quant::fits_q8(args, device) : is_quantised(w.type);
  if (integers) {
    const Status s = gemv_quant::launch(args, device, stream);
    return s == cudaErrorNotSupported ? launch_any(args, device, stream) : s;
  }
  if (gemv_mma::fits_pair(args, device)) {
    const Status s = gemv_mma::launch_pair(args, device, stream);
    if (s != cudaErrorNotSupported) return s;
  }
  return launch_in_parts(args, kMostRows, [&](const Gemv& part) {
    if (gemv_mma::fits(part, device)) return gemv_mma::launch(part, device, stream);
    return with_type(w.type, [&]<WType T>() -> Status {
      if constexpr (T <= WType::Q8_0) return launch_type<T>(part, device, stream);
      else return cudaErrorInvalidValue;
    });
  });
}

}  // namespace

Status gemv(const Gemv& args, cudaStream_t stream) {
  if (args.n < 1 || args.n > kGemvMaxRows || args.n_outs < 1 || args.n_outs > kGemvMaxOuts)
    return cudaErrorInvalidValue;
  const bool pairs = args.then == Then::SwiGlu;
  if (pairs && (args.n_outs != 2 || args.w[0].rows != args.w[1].rows)) return cudaErrorInvalidValue;
  for (int o = 0; o < args.n_outs; o++) {
    if (args.w[o].cols != args.w[0].cols || args.w[o].rows < 1 || args.w[o].cols < 1)
      return cudaErrorInvalidValue;
    if (args.w[o].cols % dtype_info(args.w[o].type).block_values != 0) return cudaErrorInvalidValue;
  }
  GemvDevice device;
  if (Status s = ask_device(&device); s != cudaSuccess) return s;
  if (pairs) return launch_one_type(args, device, stream);
  // Outputs that follow each other and are of one type share a launch.
  for (int begin = 0, end; begin < args.n_outs; begin = end) {
    for (end = begin + 1; end < args.n_outs && args.w[end].type == args.w[begin].type;) end++;
    Gemv part = args;
    part.n_outs = end - begin;
    for (int o = begin; o < end; o++)
      part.w[o - begin] = args.w[o], part.y[o - begin] = args.y[o],
                 part.ldy[o - begin] = args.ldy[o];
    if (Status s = launch_one_type(part, device, stream); s != cudaSuccess) return s;
  }
  return cudaSuccess;
}

}  // namespace riffle::cuda
