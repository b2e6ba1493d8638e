// A warp's products of a row of weights, of any type, with rows of x.
#pragma once
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/launch.cuh"

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

// Values [col, col + 8) of a row, where col is a multiple of 8 and col + 8 <= cols. kEven: cols is
// a multiple of 8, too.
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
    quants_at<T>(w, row, col, out);
  }
}

// sums[m][i] = w[m][row] . x[i], in every lane. The matrices have the same number of columns. Lane
// l takes columns 8l to 8l + 7 of each 256. Each lane adds up its products, then the lanes are
// added: the bits depend only on the row of weights and the row of x.
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

// Groups of x in shared memory, of N rows: lanes read neighbouring groups without conflicts.
constexpr int kTile = 64;
template <int N>
using GroupTile = float4[N][8][kTile + 1];

// Computes the same as dots for types with groups of 32 values. L lanes share a row of weights. All
// threads of the block call this, with the same x. present false: the row is beyond the matrix.
// Each lane of a row returns the row's sums. The bits depend only on the row of weights, the row of
// x and L.
template <WType T, int L, int M, int N>
__device__ __forceinline__ void group_dots(const Matrix* const (&w)[M], int64_t row, bool present,
                                           const float* const (&x)[N], float4* memory,
                                           float (&sums)[M][N]) {
  auto& tile = *reinterpret_cast<GroupTile<N>*>(memory);
  const int groups = static_cast<int>(w[0]->cols / 32), lane = static_cast<int>(threadIdx.x) % L;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < N; i++) sums[m][i] = 0;
  for (int first = 0; first < groups; first += kTile) {
    const int n = min(kTile, groups - first);
    if (first > 0) __syncthreads();
    for (int k = static_cast<int>(threadIdx.x); k < n * 8; k += static_cast<int>(blockDim.x))
#pragma unroll
      for (int i = 0; i < N; i++)
        tile[i][k % 8][k / 8] = reinterpret_cast<const float4*>(x[i] + first * 32)[k];
    __syncthreads();
    if (!present) continue;
#pragma unroll(N == 1 ? 2 : 1)
    for (int g = lane; g < n; g += L) {
#pragma unroll
      for (int j = 0; j < 4; j++) {  // the compiler decodes the group's scales once
        float v[M][8];
#pragma unroll
        for (int m = 0; m < M; m++)
          eight_weights<T, true>(*w[m], row, (first + g) * 32 + 8 * j, v[m]);
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float4 low = tile[i][2 * j][g], up = tile[i][2 * j + 1][g];
          const float xs[8] = {low.x, low.y, low.z, low.w, up.x, up.y, up.z, up.w};
#pragma unroll
          for (int m = 0; m < M; m++)
#pragma unroll
            for (int l = 0; l < 8; l++) sums[m][i] = fmaf(v[m][l], xs[l], sums[m][i]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int apart = L / 2; apart > 0; apart /= 2)
        sums[m][i] += __shfl_xor_sync(~0u, sums[m][i], apart);
}

// Returns the number of lanes that share a row of weights: as many as have work.
inline int lanes_of_row(int64_t cols) { return cols >= 2048 ? 32 : cols >= 1024 ? 16 : 8; }

// The entries of routed that a block's rows of weights serve: up to kGroup of one expert.
template <int N>
struct Entries {
  int64_t at[N];
  int count;

  // Places after the last entry repeat it; their results are not stored.
  __device__ Entries(const Place* places, int64_t place, int n) : count(n) {
#pragma unroll
    for (int i = 0; i < N; i++)
      at[i] = places == nullptr ? place : places[place + min(i, n - 1)].entry;
  }
};

// places: as in ExpertsStep. Calls f<N>(Entries<N>) with room for the entries of this block, or not
// at all if it has none. Kernels in which no entries share their reads need fewer registers.
template <bool kShared, class F>
__device__ __forceinline__ void with_entries(const Place* places, int64_t place, F&& f) {
  static_assert(kGroup == 4);
  if constexpr (!kShared) {
    f(Entries<1>(places, place, 1));
  } else {
    const int n = places[place].count;
    if (n == 0) return;
    if (n == 1) f(Entries<1>(places, place, n));
    else if (n == 2) f(Entries<2>(places, place, n));
    else f(Entries<4>(places, place, n));
  }
}

// Order in which a row of weights is read. Groups: kLanes lanes read groups of 32 values. Even,
// Single: a warp reads 8 values or one value at a time.
enum class Walk : uint8_t { Single, Even, Groups };

// Calls f<type, walk, lanes> as constants, for the widest reads that a row of `cols` weights and x
// allow. All types except plain ones have groups.
template <class F>
Status with_walk(WType type, int64_t cols, const float* x, F&& f) {
  const bool even = cols % 8 == 0 && vector_aligned(x, cols, sizeof(float));
  return with_type(type, [&]<WType T>() -> Status {
    if constexpr (T <= WType::BF16) {
      if (even) return f.template operator()<T, Walk::Even, 32>();
      return f.template operator()<T, Walk::Single, 32>();
    } else {
      if (!even || cols % 32 != 0) return cudaErrorInvalidValue;
      const int lanes = lanes_of_row(cols);
      if (lanes == 32) return f.template operator()<T, Walk::Groups, 32>();
      if (lanes == 16) return f.template operator()<T, Walk::Groups, 16>();
      return f.template operator()<T, Walk::Groups, 8>();
    }
  });
}

// sums[m][i] = w[m][row] . x[i] in the row's lanes. All threads of the block call this.
template <WType T, Walk kWalk, int L, int M, int N>
__device__ __forceinline__ void row_dots(const Matrix* const (&w)[M], int64_t row, bool present,
                                         const float* const (&x)[N], float4* memory,
                                         float (&sums)[M][N]) {
  if constexpr (kWalk == Walk::Groups) {
    group_dots<T, L>(w, row, present, x, memory, sums);
  } else {
    if (present) dots<T, kWalk == Walk::Even>(w, row, x, threadIdx.x % 32, sums);
  }
}
// Shared memory for row_dots, in float4.
template <Walk kWalk, bool kShared>
constexpr int kDotMemory = kWalk == Walk::Groups
                               ? sizeof(GroupTile<kShared ? kGroup : 1>) / sizeof(float4)
                               : 1;
// Blocks of 256 threads that a multiprocessor should have room for: a row's chain of reads is long.
template <bool kShared>
constexpr int kBlocks = kShared ? 2 : 4;

// The product of one matrix of the chosen experts with a row for each entry: W2, or W3 if FFNs have
// no gate.
struct ExpertsProduct {
  Matrix w;          // expert e has rows [e * rows, (e + 1) * rows)
  int64_t rows = 0;  // rows of one expert
  const float* x = nullptr;
  int per_row = 1;              // entries that share a row of x: entry i takes row i / per_row
  const float* bias = nullptr;  // [experts][rows]; null: none
  float* out = nullptr;         // [entries][rows]
  bool relu_squared = false;    // out = max(0, product + bias)^2
  const Routed* routed = nullptr;
  const Place* places = nullptr;  // as in ExpertsStep
  bool overlap = false;           // see Gemv::overlap
};
Status experts_product(const ExpertsProduct& args, int64_t n_entries, cudaStream_t stream);

}  // namespace riffle::cuda
