// x as the operands of dp4a in shared memory, and the units of rows: parts that the kernels of
// gemv_quant.cu and gemv_q8.cu share.
#pragma once
#include "kernels/cuda/gemv/gemv_quant.cuh"
#include "kernels/cuda/gemv/gemv_ring.cuh"
#include "kernels/cuda/layer/rmsnorm.cuh"

namespace riffle::cuda::gemv_quant {
namespace {

constexpr int kSquares = 8, kTeam = kSquares * 32;  // warps and threads that sum squares of x

// The rows of a unit. SwiGlu: the first half are w[0]'s, the others the same rows of w[1].
struct Unit {
  int out;
  int row;
};
__device__ __forceinline__ Unit unit_at(const Plan& plan, int u, int rows) {
  const int out = output_of(plan, &u);
  return {out, u * rows};
}

// If two loads of 16 bytes a lane bring a warp 1024 values of 8 bits, lanes 2k and 2k + 1 have the
// halves of groups k and 16 + k. They swap two halves; then lane 2k has group k, the other one
// group 16 + k.
__device__ __forceinline__ int swapped_lane(int group) { return group % 16 * 2 + group / 16; }

// x of a step and one row in shared memory: [part * 2 + half][lane] uint4, then [lane] {unit, sum}.
constexpr int kBytesOfX = 32 * (6 * 16 + 8);

// Puts `chunk` steps of x (times norm) from `first` on into shared memory as [step][N]; zeros past
// the end. A thread takes 8 values of each round of 2048 columns, so four make a group; several
// teams of threads take rounds in turn. With `sums`: each warp's sums of squares of the whole rows,
// only by the first team, because a sum has one order. kSwapped: group g of a step is at
// swapped_lane(g).
template <int N, int kTeams, bool kSwapped = false>
__device__ void stage(const Plan& plan, int first, char* xs, float* sums) {
  // Rounds whose loads are in flight. They are issued together, since no load is moved before a
  // store.
  constexpr int kAtOnce = N == 1 ? 2 : 1, kRound = kTeam * 8;
  const Gemv& a = plan.args;
  const int thread = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  const int cols = static_cast<int>(a.w[0].cols), begin = first * kStep,
            end = begin + plan.chunk * kStep;
  const bool normed = a.norm != nullptr, all = sums != nullptr && team == 0;
  const int last = all && cols > end ? cols : end, stride = all ? 1 : kTeams;
  float squares[N] = {};
#pragma unroll 1
  for (int round = all ? 0 : team; begin + round * kRound < last; round += kAtOnce * stride) {
    float4 weight[kAtOnce][2], v[kAtOnce][N][2];
#pragma unroll
    for (int m = 0; m < kAtOnce; m++) {
      const int c = begin + (round + m * stride) * kRound + thread * 8;
      const bool valid = c < last && c < cols;
#pragma unroll
      for (int k = 0; k < 2; k++) {
        weight[m][k] = make_float4(1, 1, 1, 1);
        if (normed && valid) weight[m][k] = *reinterpret_cast<const float4*>(a.norm + c + 4 * k);
#pragma unroll
        for (int i = 0; i < N; i++) {
          v[m][i][k] = make_float4(0, 0, 0, 0);
          if (i < a.n && valid)
            v[m][i][k] = *reinterpret_cast<const float4*>(a.x + i * a.ldx + c + 4 * k);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kAtOnce; m++) {
      const int c = begin + (round + m * stride) * kRound + thread * 8;
      const int in_step = (c - begin) % kStep, half = in_step % kGroup / 16, in_half = in_step % 16;
      const int lane = kSwapped ? swapped_lane(in_step / kGroup) : in_step / kGroup;
      const bool mine = c < end && (round + m * stride) % kTeams == team;
      char* to = xs + (c - begin) / kStep * (N * kBytesOfX);
#pragma unroll
      for (int i = 0; i < N; i++, to += kBytesOfX) {
        const float4 &p = v[m][i][0], &k = v[m][i][1];
        squares[i] = add_squares(add_squares(squares[i], p), k);
        float x[8] = {p.x, p.y, p.z, p.w, k.x, k.y, k.z, k.w};
        if (normed) {
          const float4 &s = weight[m][0], &t = weight[m][1];
          x[0] *= s.x, x[1] *= s.y, x[2] *= s.z, x[3] *= s.w;
          x[4] *= t.x, x[5] *= t.y, x[6] *= t.z, x[7] *= t.w;
        }
        const Eight eight = in_bytes(x);
        if (!mine) continue;
#pragma unroll
        for (int b = 0; b < 3; b++)
          *reinterpret_cast<uint2*>(to + ((2 * b + half) * 32 + lane) * 16 + in_half) =
              eight.part[b];
        if (thread % 4 == 0)
          *reinterpret_cast<float2*>(to + 6 * 32 * 16 + lane * 8) =
              make_float2(eight.unit, eight.sum);
      }
    }
  }
  if (!all) return;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float sum = warp_sum(squares[i]);
    if (thread % 32 == 0) sums[i * kSquares + thread / 32] = sum;
  }
}

// 1 / rms from the warps' sums of squares.
__device__ __forceinline__ float norm_of(const float* sums, int64_t cols, float eps) {
  float squares = 0;
  for (int w = 0; w < kSquares; w++) squares += sums[w];
  return 1.0f / sqrtf(__fadd_rn(squares / static_cast<float>(cols), eps));
}

}  // namespace
}  // namespace riffle::cuda::gemv_quant
