// The end of a row of decode attention: merges the warps' states in a fixed order, and in the last
// CTA of the row (of all its parts) to arrive here the CTAs' states, into the result.
#pragma once
#include "kernels/cuda/attend/attend_row.cuh"
#include "kernels/cuda/attend/softmax_state.cuh"

namespace riffle::cuda {

// Stride of a head in shared memory: spreads a warp's stores over the banks.
template <int D>
inline constexpr int kStateStride = D + 8;

// Merges the states of the CTA's warps into the CTA's place in the scratch. cta: number of the CTA
// among those of all rows and parts.
template <class T, int D, int G, class Warp>
__device__ inline void merge_warps(const AttendArgs& a, Warp& w, uint4* ring,
                                   AttendMemory<T, D, G>& memory, int64_t cta) {
  float* mine = a.scratch.cta_states + cta * a.scratch.cta_floats;
  constexpr int kStride = kStateStride<D>;
  const int thread = threadIdx.x, g = heads_of_part(a, w.part()), fours = g * D / 4;
  const int warp_floats = w.ring_chunks(a) * 4;
  w.block_.store(reinterpret_cast<float*>(ring) + w.warp * warp_floats, kStride, g);
  if (w.block_.leads()) {
    memory.m[w.warp][w.block_.head()] = w.block_.m;
    memory.s[w.warp][w.block_.head()] = w.block_.s;
  }
  if (w.lane == 0) memory.counts[w.warp][0] = w.lookups, memory.counts[w.warp][1] = w.misses;
  __syncthreads();
  for (int e = thread; e < fours; e += kCtaThreads) {
    const int h = 4 * e / D, x = 4 * e % D;
    float m = -INFINITY, s = 0;
#pragma unroll
    for (int i = 0; i < kCtaWarps; ++i) m = fmaxf(m, memory.m[i][h]);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kCtaWarps; ++i) {
      const float f = weight2(memory.m[i][h], m);
      const float4 part = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(ring) +
                                                           i * warp_floats + h * kStride + x);
      sum.x += f * part.x, sum.y += f * part.y, sum.z += f * part.z, sum.w += f * part.w;
      s += memory.s[i][h] * f;
    }
    __stcg(reinterpret_cast<float4*>(mine) + e, sum);
    if (x == 0) __stcg(reinterpret_cast<float2*>(mine + a.group * D) + h, make_float2(m, s));
  }
  if (thread < 2) {
    int sum = 0;
    for (int i = 0; i < kCtaWarps; ++i) sum += memory.counts[i][thread];
    __stcg(a.scratch.cta_counts + cta * 2 + thread, sum);
  }
}

// Returns true if this CTA is the last of its row to arrive here. All threads call it.
__device__ inline bool ends_row(const AttendArgs& a, int row, int& decision) {
  __threadfence();
  __syncthreads();
  uint32_t* arrived = a.arrived + int64_t(row) * a.arrived_stride;
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(arrived, 1u) == kRowCtas * static_cast<uint32_t>(a.parts) - 1;
    if (last) *arrived = 0;  // for the next launch
    decision = last;
  }
  __syncthreads();
  if (!decision) return false;
  __threadfence();
  return true;
}

// Turns four normalised values of a head into the result: the mean value stands for unread tokens,
// and the sink takes its part. h: number of the head in the row. m, s: the state of the tokens that
// were read.
template <int D>
__device__ inline void finish_values(const AttendArgs& a, const RowGeometry& r, int row, int h,
                                     int x, float m, float s, float4& sum) {
  const bool blends = a.scratch.unread != nullptr && !r.everything;
  if (blends) {
    const float unread = __ldcg(a.scratch.unread + int64_t(row) * a.scratch.head_stride + h),
                read = 1 - unread;
    const float4 mean =
        __ldcg(reinterpret_cast<const float4*>(a.scratch.mean_value + int64_t(row) * D + x));
    sum.x = read * sum.x + unread * mean.x, sum.y = read * sum.y + unread * mean.y;
    sum.z = read * sum.z + unread * mean.z, sum.w = read * sum.w + unread * mean.w;
  }
  if (a.step.sinks != nullptr) {
    // Share of the keys in the sum that includes the sink. `read` is the part of the keys' weight
    // that was read, with sum s. Rounding may make `read` 0, and a sink far above all scores must
    // not turn that into a NaN.
    float read = 1;
    if (blends) read -= __ldcg(a.scratch.unread + int64_t(row) * a.scratch.head_stride + h);
    const float sink = a.step.sinks[row % a.step.n_kv_heads * a.heads + h];
    const float weight = fminf(exp2f(__fsub_rn(__fmul_rn(sink, kLog2e), m)), 3e38f);
    const float share = s / __fmaf_rn(read, weight, s);
    sum.x *= share, sum.y *= share, sum.z *= share, sum.w *= share;
  }
}

// Merges the CTAs' states of all parts into out. cta_states: those of the row.
template <int D>
__device__ inline void merge_ctas(const AttendArgs& a, const RowGeometry& r, int row,
                                  const float* cta_states) {
  const int thread = threadIdx.x, fours = a.heads * D / 4, d = a.step.layout.head_dim;
  for (int e = thread; e < fours; e += kCtaThreads) {
    const int h = 4 * e / D, x = 4 * e % D;
    if (x >= d) continue;
    const int of = a.parts == 1 ? 0 : h / a.group, own = h - of * a.group;  // its part; head there
    float4 part[kRowCtas];
    float2 ms[kRowCtas];
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      const float* from = cta_states + (of * kRowCtas + c) * a.scratch.cta_floats;
      ms[c] = __ldcg(reinterpret_cast<const float2*>(from + a.group * D) + own);
      part[c] = __ldcg(reinterpret_cast<const float4*>(from + own * D + x));
    }
    float m = -INFINITY, s = 0;
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) m = fmaxf(m, ms[c].x);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      const float f = weight2(ms[c].x, m);
      s += ms[c].y * f;
      sum.x += f * part[c].x, sum.y += f * part[c].y, sum.z += f * part[c].z,
          sum.w += f * part[c].w;
    }
    const float f = 1 / s;
    sum.x *= f, sum.y *= f, sum.z *= f, sum.w *= f;
    finish_values<D>(a, r, row, h, x, m, s, sum);
    const int64_t head = int64_t(row) * a.heads + h;
    *reinterpret_cast<float4*>(a.step.out + head * d + x) = sum;
    if (x == 0 && a.step.lse != nullptr) a.step.lse[head] = (m + log2f(s)) * kLn2;
  }
}

// Writes the row's result, by one warp: the sums of all parts' counts. The row has read n_read
// positions.
__device__ inline void report_row(const AttendArgs& a, int n_blocks, int row, int n_read) {
  const int lane = threadIdx.x % 32, ctas = kRowCtas * a.parts;
  static_assert(kRowCtas * kMaxHeads / kMaxGroup <= 32);  // a lane each
  int2 counts = make_int2(0, 0);
  if (lane < ctas)
    counts =
        __ldcg(reinterpret_cast<const int2*>(a.scratch.cta_counts) + int64_t(row) * ctas + lane);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    counts.x += __shfl_xor_sync(kAllLanes, counts.x, o);
    counts.y += __shfl_xor_sync(kAllLanes, counts.y, o);
  }
  if (lane != 0 || a.step.results == nullptr) return;
  const auto last = a.tokens ? __ldcg(&a.scratch.ranks[row].last) : 0xffffffffull;
  a.step.results[row] = {n_blocks,
                         n_read,
                         counts.x,
                         counts.y,
                         static_cast<int32_t>(last & 0xffffffffu),
                         static_cast<int32_t>(last >> 32)};
}

// Returns true in the CTA that wrote the row's result.
template <class T, int D, int G, class Warp>
__device__ inline bool finish_row(const AttendArgs& a, Warp& w, int n_read, uint4* ring,
                                  AttendMemory<T, D, G>& memory) {
  const int64_t first_cta = int64_t(w.row) * a.parts * kRowCtas;  // the row's first
  merge_warps<T, D, G>(a, w, ring, memory, first_cta + w.part() * kRowCtas + blockIdx.x % kRowCtas);
  if (!ends_row(a, w.row, memory.decision)) return false;
  merge_ctas<D>(a, w.r, w.row, a.scratch.cta_states + first_cta * a.scratch.cta_floats);
  if (threadIdx.x / 32 == kCtaWarps - 1) report_row(a, w.r.n_blocks, w.row, n_read);
  return true;
}

}  // namespace riffle::cuda
