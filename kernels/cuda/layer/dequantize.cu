// Converts weights to the operands of prefill. Memory bandwidth should be the limit. Eight values
// are about 20 bytes of traffic, which is what a multiprocessor of an H200 gets in a cycle, so a
// thread can afford few instructions: each type has a kernel of its own, and a thread divides once
// to find its row. For types with four low bits a thread takes 16 values at a time, the low and the
// high halves of eight bytes.
#include "kernels/cuda/layer/eight.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  Matrix w;
  void* out;
  WType out_type;
  const int32_t* parts;              // null: all of w
  int64_t part_rows;                 // rows of a part, or all
  uint32_t count, row_units;         // number of units in a part, and in a row
  uint32_t rows_ahead, units_ahead;  // kThreads units further
};

// A unit is what a thread loads at once: one or two groups of eight values.
template <WType T>
constexpr int kUnitEights = (T > WType::Q8_0 && dtype_info(T).low_bits == 4) ? 2 : 1;
template <WType T>
constexpr int kUnitsPerThread = 4 / kUnitEights<T>;

// Loads unit `unit` of a row, and returns its first column. The second eight values are 16 columns
// further.
template <WType T>
__device__ __forceinline__ int64_t load_unit(const Matrix& w, int64_t row, uint32_t unit,
                                             float (&v)[kUnitEights<T>][kEight]) {
  if constexpr (kUnitEights<T> == 1) {
    const int64_t col = static_cast<int64_t>(unit) * kEight;
    load8<T>(w, row, col, v[0]);
    return col;
  } else {
    const int64_t group = unit / 2;
    const int j = static_cast<int>(unit % 2) * kEight;
    quants_of_group<T>(w, row, group, j, v[0]);
    quants_of_group<T>(w, row, group, j + 16, v[1]);
    return group * 32 + j;
  }
}

// CTA (x, y): units of part y.
template <WType T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const __grid_constant__ Params p) {
  const int64_t from = p.parts ? p.parts[blockIdx.y] * p.part_rows : 0,
                to = blockIdx.y * p.part_rows;
  const uint32_t first = blockIdx.x * (kThreads * kUnitsPerThread<T>)+threadIdx.x;
  uint32_t row = first / p.row_units, unit = first % p.row_units;
  float v[kUnitsPerThread<T>][kUnitEights<T>][kEight];
  int64_t at[kUnitsPerThread<T>];
#pragma unroll
  for (int k = 0; k < kUnitsPerThread<T>; ++k) {
    if (first + k * kThreads < p.count)
      at[k] = (to + row) * p.w.cols + load_unit<T>(p.w, from + row, unit, v[k]);
    row += p.rows_ahead, unit += p.units_ahead;
    if (unit >= p.row_units) unit -= p.row_units, ++row;
  }
#pragma unroll
  for (int k = 0; k < kUnitsPerThread<T>; ++k)
    if (first + k * kThreads < p.count)
      for (int i = 0; i < kUnitEights<T>; ++i) store8(p.out, p.out_type, at[k] + 16 * i, v[k][i]);
}

// Rows whose values do not come in eights.
__global__ void __launch_bounds__(kThreads)
    dequantize_any_kernel(const __grid_constant__ Params p) {
  const int64_t from = (p.parts ? p.parts[blockIdx.y] * p.part_rows : 0) + blockIdx.x,
                to = blockIdx.y * p.part_rows + blockIdx.x;
  for (int64_t c = threadIdx.x; c < p.w.cols; c += kThreads)
    store_f32_as(p.out, p.out_type, to * p.w.cols + c, weight_at(p.w, from, c));
}

template <WType T>
Status launch(Params p, unsigned n_parts, cudaStream_t stream) {
  const int64_t row_units = p.w.cols / (kEight * kUnitEights<T>), count = p.part_rows * row_units;
  if (count > INT32_MAX) return cudaErrorInvalidValue;
  p.count = static_cast<uint32_t>(count), p.row_units = static_cast<uint32_t>(row_units);
  p.rows_ahead = kThreads / p.row_units, p.units_ahead = kThreads % p.row_units;
  constexpr int kBlock = kThreads * kUnitsPerThread<T>;
  const dim3 grid(static_cast<unsigned>((count + kBlock - 1) / kBlock), n_parts);
  dequantize_kernel<T><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

// w's rows begin at its first part; parts as in dequantize_parts.
Status dequantize_some(const Matrix& w, const int32_t* parts, int64_t n_parts, int64_t part_rows,
                       void* out, WType out_type, cudaStream_t stream) {
  if (is_quantised(out_type) || n_parts < 1 || n_parts > 65535 || part_rows < 1 ||
      part_rows > INT32_MAX || w.cols < 1)
    return cudaErrorInvalidValue;
  Params p = {};
  p.w = w, p.out = out, p.out_type = out_type, p.parts = parts, p.part_rows = part_rows;
  const auto n = static_cast<unsigned>(n_parts);
  if (w.cols % kEight != 0 || !vector_aligned(w.data, 0, 1) || !vector_aligned(out, 0, 1)) {
    dequantize_any_kernel<<<dim3(static_cast<unsigned>(part_rows), n), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  return with_type(w.type, [&]<WType T>() { return launch<T>(p, n, stream); });
}

}  // namespace

Status dequantize(const Matrix& w, int64_t first, int64_t n, void* out, WType out_type,
                  cudaStream_t stream) {
  if (first < 0 || n < 1 || first + n > w.rows) return cudaErrorInvalidValue;
  return dequantize_some(rows_of(w, first, n), nullptr, 1, n, out, out_type, stream);
}

Status dequantize_parts(const Matrix& w, const int32_t* parts, int64_t n_parts, int64_t part_rows,
                        void* out, WType out_type, cudaStream_t stream) {
  if (!parts) return cudaErrorInvalidValue;
  return dequantize_some(w, parts, n_parts, part_rows, out, out_type, stream);
}

}  // namespace riffle::cuda
