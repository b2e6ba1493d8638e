// The end of a row of decode attention merges states in a fixed order. Each CTA merges its warps'
// states. The last CTA of a part in a slice merges the CTAs' states. The last slice of a part
// merges the slices' states into the result. Parts do not wait for each other, except for the row's
// counts.
#pragma once
#include "kernels/cuda/attend/attend_row.cuh"
#include "kernels/cuda/attend/softmax_state.cuh"

namespace riffle::cuda {

// Stride of a head in shared memory: spreads a warp's stores over the banks.
template <int D>
inline constexpr int kStateStride = D + 8;

// Merges the states of the CTA's warps into the CTA's place in the scratch. cta: number of the CTA
// among those of all rows, slices and parts.
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

// Returns true if this CTA is the last of `count` to arrive here. All threads call it.
__device__ inline bool arrives_last(uint32_t* arrived, int count, int& decision) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(arrived, 1u) == static_cast<uint32_t>(count) - 1;
    if (last) *arrived = 0;  // for the next launch
    decision = last;
  }
  __syncthreads();
  if (!decision) return false;
  __threadfence();
  return true;
}

// Gives the sink its part of four normalised values of a head. head: its number in the layer. m, s:
// the state of the keys.
__device__ inline void take_sink(const AttendArgs& a, int head, float m, float s, float4& sum) {
  if (a.step.sinks == nullptr) return;
  // Share of the keys in the sum that includes the sink. A sink far above all scores must not turn
  // it into a NaN.
  const float weight = fminf(exp2f(__fsub_rn(__fmul_rn(a.step.sinks[head], kLog2e), m)), 3e38f);
  const float share = s / (s + weight);
  sum.x *= share, sum.y *= share, sum.z *= share, sum.w *= share;
}

// Four values of a head, weighted and summed, with the state of their softmax.
struct MergedValues {
  float4 sum;
  float m, s;
};
// Merges up to N states, in order. n: number of states, at least one of them not empty. from: the
// first, `stride` floats from one to the next, with the four values at x_at and {m, s} at ms_at.
template <int N>
__device__ inline MergedValues merge_four(const float* from, int64_t stride, int n, int x_at,
                                          int ms_at) {
  float4 part[N];
  float2 ms[N];
#pragma unroll
  for (int c = 0; c < N; ++c) {
    ms[c] = make_float2(-INFINITY, 0);
    part[c] = make_float4(0, 0, 0, 0);
    if (c >= n) continue;
    ms[c] = __ldcg(reinterpret_cast<const float2*>(from + c * stride + ms_at));
    part[c] = __ldcg(reinterpret_cast<const float4*>(from + c * stride + x_at));
  }
  MergedValues v = {make_float4(0, 0, 0, 0), -INFINITY, 0};
#pragma unroll
  for (int c = 0; c < N; ++c) v.m = fmaxf(v.m, ms[c].x);
#pragma unroll
  for (int c = 0; c < N; ++c) {
    const float f = weight2(ms[c].x, v.m);
    v.s += ms[c].y * f;
    v.sum.x += f * part[c].x, v.sum.y += f * part[c].y, v.sum.z += f * part[c].z,
        v.sum.w += f * part[c].w;
  }
  return v;
}

// Normalises four values of head h, merged from all that the row has read, and writes them.
__device__ inline void write_values(const AttendArgs& a, int row, int h, int x, MergedValues v) {
  const float f = 1 / v.s;
  v.sum.x *= f, v.sum.y *= f, v.sum.z *= f, v.sum.w *= f;
  take_sink(a, row % a.step.n_kv_heads * a.heads + h, v.m, v.s, v.sum);
  const int64_t head = int64_t(row) * a.heads + h;
  *reinterpret_cast<float4*>(a.step.out + head * a.step.layout.head_dim + x) = v.sum;
  if (x == 0 && a.step.lse != nullptr) a.step.lse[head] = (v.m + log2f(v.s)) * kLn2;
}

// Calls each(h, x) for every fourth dimension of a part's heads, the CTA's threads sharing them. h:
// number of the head in the part.
template <int D, class Each>
__device__ inline void for_fours(const AttendArgs& a, int part, Each&& each) {
  for (int e = threadIdx.x; e < heads_of_part(a, part) * D / 4; e += kCtaThreads) {
    const int h = 4 * e / D, x = 4 * e % D;
    if (x < a.step.layout.head_dim) each(h, x);
  }
}

// Merges the CTAs' states of a part of a slice, cta_states. take: gets the head's number in the
// part, the dimension and its MergedValues.
template <int D, class Take>
__device__ inline void merge_ctas(const AttendArgs& a, int part, const float* cta_states,
                                  Take&& take) {
  for_fours<D>(a, part, [&](int h, int x) {
    take(h, x,
         merge_four<kRowCtas>(cta_states, a.scratch.cta_floats, kRowCtas, h * D + x,
                              a.group * D + 2 * h));
  });
}

// Merges the states of a part's slices into out, in the last CTA, where it returns true. arrived:
// slices of the part that have finished.
template <int D, class Warp>
__device__ inline bool merge_slices(const AttendArgs& a, const Warp& w, const float* cta_states,
                                    uint32_t* arrived, int& decision) {
  const int64_t stride = a.scratch.slice_floats;
  const int part = w.part(), first = part * a.group, ms_at = a.heads * D;
  float* states = a.scratch.slice_states + int64_t(w.row) * a.slices * stride;
  float* own = states + w.slice() * stride;
  merge_ctas<D>(a, part, cta_states, [&](int h, int x, const MergedValues& v) {
    __stcg(reinterpret_cast<float4*>(own + (first + h) * D + x), v.sum);
    if (x == 0) __stcg(reinterpret_cast<float2*>(own + ms_at) + first + h, make_float2(v.m, v.s));
  });
  if (!arrives_last(arrived, w.r.slices, decision)) return false;
  for_fours<D>(a, part, [&](int h, int x) {
    h += first;
    write_values(a, w.row, h, x,
                 merge_four<kMaxSlices>(states, stride, w.r.slices, h * D + x, ms_at + 2 * h));
  });
  return true;
}

// Writes the row's result, by one warp: the sums of the counts of all parts and slices. The row has
// read n_read positions.
__device__ inline void report_row(const AttendArgs& a, const RowGeometry& r, int row, int n_read) {
  const int lane = threadIdx.x % 32, each = kRowCtas * a.parts;
  const auto* ctas =
      reinterpret_cast<const int2*>(a.scratch.cta_counts) + int64_t(row) * a.slices * each;
  int2 counts = make_int2(0, 0);
  for (int i = lane; i < r.slices * each; i += 32) {
    const int2 more = __ldcg(ctas + i);
    counts.x += more.x, counts.y += more.y;
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    counts.x += __shfl_xor_sync(kAllLanes, counts.x, o);
    counts.y += __shfl_xor_sync(kAllLanes, counts.y, o);
  }
  if (lane != 0 || a.step.results == nullptr) return;
  const auto last = a.tokens ? __ldcg(&a.scratch.ranks[row].last) : 0xffffffffull;
  a.step.results[row] = {r.n_blocks,
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
  const int part = w.part(), item = w.slice() * a.parts + part;
  const int64_t first_cta =
      (int64_t(w.row) * a.slices * a.parts + item) * kRowCtas;  // the first of the slice's part
  const float* cta_states = a.scratch.cta_states + first_cta * a.scratch.cta_floats;
  uint32_t* arrived = a.arrived + int64_t(w.row) * a.arrived_stride;
  merge_warps<T, D, G>(a, w, ring, memory, first_cta + blockIdx.x % kRowCtas);
  if (!arrives_last(arrived + 1 + kMaxParts + item, kRowCtas, memory.decision)) return false;
  if (w.r.slices > 1) {
    if (!merge_slices<D>(a, w, cta_states, arrived + 1 + part, memory.decision)) return false;
  } else {
    merge_ctas<D>(a, part, cta_states, [&](int h, int x, const MergedValues& v) {
      write_values(a, w.row, part * a.group + h, x, v);
    });
  }
  if (a.parts > 1 && !arrives_last(arrived, a.parts, memory.decision)) return false;
  if (threadIdx.x / 32 == kCtaWarps - 1) report_row(a, w.r, w.row, n_read);
  return true;
}

}  // namespace riffle::cuda
