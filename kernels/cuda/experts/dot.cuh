// A warp's products of a row of weights, of any type, with rows of x.
#pragma once
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {

// kEven: p is 16-byte aligned.
template <bool kEven>
__device__ __forceinline__ void eight_floats(const float* p, float* out) {
  if constexpr (kEven) {
    const float4 a = reinterpret_cast<const float4*>(p)[0],
                 b = reinterpret_cast<const float4*>(p)[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  } else {
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] = p[j];
  }
}

// Values [col, col + 8) of a row, where col is a multiple of 8 and col + 8 <= cols. kEven: so is
// cols.
template <WType T, bool kEven>
__device__ __forceinline__ void eight_weights(const Matrix& w, int64_t row, int64_t col,
                                              float* out) {
  const int64_t i = row * w.cols + col;
  if constexpr (T == WType::F32) {
    eight_floats<kEven>(static_cast<const float*>(w.data) + i, out);
  } else if constexpr (T <= WType::BF16 && !kEven) {
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] = load_as_f32(w.data, T, i + j);
  } else if constexpr (T <= WType::BF16) {
    const uint4 v = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(w.data) + i);
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t bits = pairs[j / 2] >> 16 * (j % 2) & 0xffff;
      out[j] = T == WType::F16 ? f16_bits_to_f32(bits) : bf16_bits_to_f32(bits);
    }
  } else if constexpr (T == WType::Q8_0) {
    const float scale = f16_bits_to_f32(static_cast<const uint16_t*>(w.scales)[i / kQ8Group]);
    const int2 q = *reinterpret_cast<const int2*>(static_cast<const int8_t*>(w.data) + i);
#pragma unroll
    for (int j = 0; j < 8; j++)
      out[j] = scale * static_cast<float>(static_cast<int8_t>((j < 4 ? q.x : q.y) >> 8 * (j % 4)));
  } else {
    Matrix typed = w;
    typed.type = T;  // known when compiled, so that no branch remains at run time
    quants_at(typed, row, col, out);
  }
}

// sums[m][i] = w[m][row] . x[i], in every lane. The matrices have the same columns. Lane l takes
// columns 8l to 8l + 7 of each 256; the sum of a lane, then that of the lanes: the bits depend on
// the row of weights and the row of x alone.
template <WType T, bool kEven, int M, int N>
__device__ __forceinline__ void dots(const Matrix* const (&w)[M], int64_t row,
                                     const float* const (&x)[N], int lane, float (&sums)[M][N]) {
  const int64_t cols = w[0]->cols, whole = cols / 8 * 8;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < N; i++) sums[m][i] = 0;
#pragma unroll(N == 1 ? 4 / M : 1)
  for (int64_t col = lane * 8; col < whole; col += 256) {
    float xs[N][8], v[M][8];
#pragma unroll
    for (int m = 0; m < M; m++) eight_weights<T, kEven>(*w[m], row, col, v[m]);
#pragma unroll
    for (int i = 0; i < N; i++) eight_floats<kEven>(x[i] + col, xs[i]);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) sums[m][i] = fmaf(v[m][j], xs[i][j], sums[m][i]);
  }
  if constexpr (!kEven)
    for (int64_t col = whole + lane; col < cols; col += 32)
      for (int m = 0; m < M; m++)
        for (int i = 0; i < N; i++)
          sums[m][i] = fmaf(load_as_f32(w[m]->data, T, row * cols + col), x[i][col], sums[m][i]);
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < N; i++) sums[m][i] = warp_sum(sums[m][i]);
}

// The entries of routed that a block's rows of weights serve: up to kGroup of one expert.
template <int N>
struct Entries {
  int64_t at[N];
  int count;

  // Indices past the last entry repeat the last one, and nothing of them is stored.
  __device__ Entries(const ExpertsStep& a, int64_t place, int n) : count(n) {
#pragma unroll
    for (int i = 0; i < N; i++)
      at[i] = a.places == nullptr ? place : a.places[place + min(i, n - 1)].entry;
  }
};

// Calls f<N>(Entries<N>) for the entries of this block, none or one N that has room for them.
template <class F>
__device__ __forceinline__ void with_entries(const ExpertsStep& a, int64_t place, F&& f) {
  static_assert(kGroup == 4);
  const int n = a.places == nullptr ? 1 : a.places[place].count;
  if (n == 0) return;
  if (n == 1) f(Entries<1>(a, place, n));
  else if (n == 2) f(Entries<2>(a, place, n));
  else f(Entries<4>(a, place, n));
}

// Calls f with the type as a constant.
template <class F>
Status with_type(WType type, F&& f) {
  switch (type) {
    case WType::F32: return f.template operator()<WType::F32>();
    case WType::F16: return f.template operator()<WType::F16>();
    case WType::BF16: return f.template operator()<WType::BF16>();
    case WType::Q8_0: return f.template operator()<WType::Q8_0>();
    case WType::Q4_0: return f.template operator()<WType::Q4_0>();
    case WType::Q4_1: return f.template operator()<WType::Q4_1>();
    case WType::Q5_0: return f.template operator()<WType::Q5_0>();
    case WType::Q5_1: return f.template operator()<WType::Q5_1>();
    case WType::Q4_K: return f.template operator()<WType::Q4_K>();
    case WType::Q5_K: return f.template operator()<WType::Q5_K>();
    case WType::Q6_K: return f.template operator()<WType::Q6_K>();
    case WType::IQ4_NL: return f.template operator()<WType::IQ4_NL>();
    case WType::IQ4_XS: return f.template operator()<WType::IQ4_XS>();
    case WType::Q3_K: return f.template operator()<WType::Q3_K>();
    case WType::Q2_K: return f.template operator()<WType::Q2_K>();
    case WType::MXFP4: return f.template operator()<WType::MXFP4>();
  }
  return cudaErrorNotSupported;
}

// The same, with a second constant: whether 8 values of a row of `cols` weights and of x can be
// read at once. For all quantised types they can.
template <class F>
Status with_type(WType type, int64_t cols, const float* x, F&& f) {
  const bool even = cols % 8 == 0 && vector_aligned(x, cols, sizeof(float));
  return with_type(type, [&]<WType T>() {
    if (even) return f.template operator()<T, true>();
    if constexpr (T <= WType::BF16) return f.template operator()<T, false>();
    return cudaErrorInvalidValue;
  });
}

}  // namespace riffle::cuda
