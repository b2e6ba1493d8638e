// Rows of a head's matrix S [v_dim][k_dim] in registers. Four lanes have a row: lane l has part l /
// 8 of row l % 8 of its warp, so the lanes that read one address of shared memory are neighbours,
// and a load of 16 bytes needs fewest passes.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

inline constexpr int kParts = 4, kWarpRows = 32 / kParts;

// A lane's kValues values: quadruples `part`, part + 4, ... of the row. Values from k_dim on are 0,
// and stay 0 if those of k are.
template <int kValues>
struct MatrixRow {
  float4 s[kValues / 4];

  // row: null: zeros. vectors: rows are 16-byte aligned, and k_dim is a multiple of 4.
  __device__ void load(const float* row, int part, int k_dim, bool vectors) {
#pragma unroll
    for (int i = 0; i < kValues / 4; i++) {
      const int c = 4 * (part + kParts * i);
      s[i] = make_float4(0, 0, 0, 0);
      if (!row || c >= k_dim) continue;
      if (vectors) {
        s[i] = *reinterpret_cast<const float4*>(row + c);
      } else {
        s[i].x = row[c];
        if (c + 1 < k_dim) s[i].y = row[c + 1];
        if (c + 2 < k_dim) s[i].z = row[c + 2];
        if (c + 3 < k_dim) s[i].w = row[c + 3];
      }
    }
  }
  __device__ void store(float* row, int part, int k_dim, bool vectors) const {
#pragma unroll
    for (int i = 0; i < kValues / 4; i++) {
      const int c = 4 * (part + kParts * i);
      if (c >= k_dim) continue;
      if (vectors) {
        *reinterpret_cast<float4*>(row + c) = s[i];
      } else {
        row[c] = s[i].x;
        if (c + 1 < k_dim) row[c + 1] = s[i].y;
        if (c + 2 < k_dim) row[c + 2] = s[i].z;
        if (c + 3 < k_dim) row[c + 3] = s[i].w;
      }
    }
  }

  // Returns this part of the row's product with x.
  __device__ __forceinline__ float dot(const float4 (&x)[kValues / 4]) const {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kValues / 4; i++) {
      sum.x = fmaf(s[i].x, x[i].x, sum.x);
      sum.y = fmaf(s[i].y, x[i].y, sum.y);
      sum.z = fmaf(s[i].z, x[i].z, sum.z);
      sum.w = fmaf(s[i].w, x[i].w, sum.w);
    }
    return __fadd_rn(__fadd_rn(sum.x, sum.y), __fadd_rn(sum.z, sum.w));
  }
  // s <- decay s + d k
  __device__ __forceinline__ void add(float decay, float d, const float4 (&k)[kValues / 4]) {
#pragma unroll
    for (int i = 0; i < kValues / 4; i++) {
      s[i].x = fmaf(d, k[i].x, __fmul_rn(decay, s[i].x));
      s[i].y = fmaf(d, k[i].y, __fmul_rn(decay, s[i].y));
      s[i].z = fmaf(d, k[i].z, __fmul_rn(decay, s[i].z));
      s[i].w = fmaf(d, k[i].w, __fmul_rn(decay, s[i].w));
    }
  }
};

// Returns the sum over a row's parts, in all of them: (0 + 1) + (2 + 3).
__device__ __forceinline__ float sum_parts(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(~0u, x, kWarpRows));
  return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2 * kWarpRows));
}
// Returns in part p the sum of x[p], with the bits of sum_parts.
__device__ __forceinline__ float sum_parts_of_four(const float (&x)[kParts], int part) {
  const bool odd = part % 2 == 1, high = part >= 2;
  float low = odd ? x[1] : x[0], up = odd ? x[3] : x[2];
  low = __fadd_rn(low, __shfl_xor_sync(~0u, odd ? x[0] : x[1], kWarpRows));
  up = __fadd_rn(up, __shfl_xor_sync(~0u, odd ? x[2] : x[3], kWarpRows));
  return __fadd_rn(high ? up : low, __shfl_xor_sync(~0u, high ? low : up, 2 * kWarpRows));
}

// One token: changes the row, and returns this part of its product with q. q, k: padded to 4
// kValues values. kDelta: S <- decay S + strength (v - decay S k) k^T, else S <- decay S + strength
// v k^T. All lanes of a warp take part.
template <bool kDelta, int kValues>
__device__ __forceinline__ float next_token(MatrixRow<kValues>& row, const float* q, const float* k,
                                            float v, float decay, float strength, int part) {
  float4 x[kValues / 4];
  const auto read = [&](const float* from) {
#pragma unroll
    for (int i = 0; i < kValues / 4; i++)
      x[i] = reinterpret_cast<const float4*>(from)[part + kParts * i];
  };
  read(k);
  float change = v;
  if constexpr (kDelta) change = fmaf(-decay, sum_parts(row.dot(x)), v);
  row.add(decay, __fmul_rn(strength, change), x);
  read(q);
  return row.dot(x);
}

// Tells whether rows of a matrix can be read and written in quadruples.
__device__ inline bool whole_vectors(const float* matrix, int k_dim) {
  return k_dim % 4 == 0 && reinterpret_cast<uintptr_t>(matrix) % 16 == 0;
}

// Calls run.operator()<kValues>() with the number of values that a lane has of a row of k_dim.
template <class Run>
Status with_values(int k_dim, const Run& run) {
  if (k_dim <= 32) return run.template operator()<8>();
  if (k_dim <= 64) return run.template operator()<16>();
  if (k_dim <= 128) return run.template operator()<32>();
  return run.template operator()<64>();
}

}  // namespace riffle::cuda
