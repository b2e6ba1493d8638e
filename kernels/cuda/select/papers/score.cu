// Scores of block digests for the rows of a decode step (src/select/README.md): q.centre + sum_j
// |q_j| radius_j, for the mean of a row's query heads or for each of them; and the bounds of
// blocks' masses that the tests Bound and Veto sum up.
//
// The 16-byte chunks of a digest vector are spread over a group of lanes. Each warp has several
// digests in flight.
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/papers/paper_parts.h"
#include "kernels/cuda/launch.cuh"

namespace riffle::cuda {
namespace {

constexpr int kScoreThreads = 256;

struct ScoreArgs {
  DecodeStep step;
  float* out;           // [rows][heads][max_blocks]
  uint32_t* counters;   // cleared; null: not by this launch
  int g, heads;         // heads: 1 (the mean of g heads) or g
  int first_vector;     // 0: centre, 2: mean
  bool radius, factor;  // adds |q|.radius; multiplied by the block's bound factor
  float scale;          // 1 / sqrt(d)
};

// Eight dimensions of H query heads, or of the mean of a row's heads.
template <int H>
struct ScoreQuery {
  float q[H][8];
  float q_abs[8];  // mean of the absolute values, not the absolute of the mean

  // sub: which eight dimensions; used: whether there are any.
  __device__ void load(const ScoreArgs& a, int row, int sub, bool used) {
    const int d = a.step.layout.head_dim;
#pragma unroll
    for (int h = 0; h < H; ++h)
#pragma unroll
      for (int j = 0; j < 8; ++j) q[h][j] = 0;
    const float* q_row = a.step.q + int64_t(row) * a.g * d + sub * 8;
    if (!used) return;
    if (H == 1 && a.g > 1) {
#pragma unroll
      for (int j = 0; j < 8; ++j) q_abs[j] = 0;
      for (int h = 0; h < a.g; ++h)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float value = q_row[h * d + j] * a.scale;
          q[0][j] += value;
          q_abs[j] += fabsf(value);
        }
#pragma unroll
      for (int j = 0; j < 8; ++j) q[0][j] /= float(a.g), q_abs[j] /= float(a.g);
      return;
    }
#pragma unroll
    for (int h = 0; h < H; ++h)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (h < a.heads) q[h][j] = q_row[h * d + j] * a.scale;
#pragma unroll
    for (int j = 0; j < 8; ++j) q_abs[j] = fabsf(q[0][j]);
  }

  // This lane's part of a digest's scores, of each head.
  __device__ void scores(const uint4& centre, const uint4& radius, bool with_factor, float factor,
                         bool used, float* v) const {
    float c[8], r[8];
    widen(centre, c);
    widen(radius, r);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      float sum = 0, spread = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum = fmaf(q[h][j], c[j], sum);
        if (H == 1) spread = fmaf(used ? q_abs[j] : 0.0f, r[j], spread);
        else spread = fmaf(fabsf(q[h][j]), r[j], spread);
      }
      // An infinite factor (0 radius somewhere) must not meet a lane whose radius is zero.
      v[h] = with_factor ? sum + (spread == 0 ? 0.0f : factor * spread) : sum + spread;
    }
  }
};

// LPV lanes a vector (8 values each); H heads, those beyond a.heads are not written.
template <int LPV, int H>
__global__ __launch_bounds__(kScoreThreads) void score_kernel(const __grid_constant__ ScoreArgs a) {
  constexpr int kDigests = 32 / LPV;                                    // a pass
  constexpr int kPasses = LPV / H < 1 ? 1 : LPV / H > 4 ? 4 : LPV / H;  // in flight
  constexpr int kN = kPasses * H;
  const int row = blockIdx.y, head = row % a.step.n_kv_heads, d = a.step.layout.head_dim;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry geometry =
      row_geometry(a.step.rule, sequence.n_tokens, a.step.layout.block_size);
  const int n = geometry.n_candidates;
  const int lane = threadIdx.x % 32, sub = lane % LPV, group = lane / LPV;
  const int per_step = kDigests * kPasses,
            stride_step = gridDim.x * (kScoreThreads / 32) * per_step;
  int i0 = (blockIdx.x * (kScoreThreads / 32) + threadIdx.x / 32) * per_step;
  const bool used = sub * 8 < d;
  const int64_t entry = index_row(a.step, head) * sequence.max_blocks + geometry.first;
  const int64_t stride = int64_t(sequence.vectors) * d;
  const uint16_t* digests =
      sequence.digests + entry * stride + int64_t(a.first_vector) * d + sub * 8;
  uint4 centre[kPasses], radius[kPasses];
  float factor[kPasses];
  const auto load = [&] {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int i = min(i0 + p * kDigests + group, n - 1);
      const uint16_t* from = digests + i * stride;
      centre[p] = radius[p] = make_uint4(0, 0, 0, 0);
      if (used) {
        centre[p] = __ldg(reinterpret_cast<const uint4*>(from));
        if (a.radius) radius[p] = __ldg(reinterpret_cast<const uint4*>(from + d));
      }
      factor[p] = a.factor ? __ldg(sequence.bound_factor + entry + i) : 1.0f;
    }
  };
  // Digests were written before this step began, so they need not wait for the queries.
  if (i0 < n) load();
  allow_next();
  wait_for_earlier();
  if (a.counters != nullptr && blockIdx.x == 0 && threadIdx.x < kCounterStride)
    a.counters[row * kCounterStride + threadIdx.x] = 0;
  if (i0 >= n) return;

  ScoreQuery<H> query;
  query.load(a, row, sub, used);

  float* out = a.out + int64_t(row) * a.heads * a.step.max_blocks;
  while (true) {
    float v[kN];
#pragma unroll
    for (int p = 0; p < kPasses; ++p)
      query.scores(centre[p], radius[p], a.factor, factor[p], used, &v[p * H]);
    const int at = i0;
    i0 += stride_step;
    if (i0 < n) load();
    reduce_split<kN, LPV>(v, lane);
    constexpr int kMine = kN > LPV ? kN / LPV : 1;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      const int value = sub * kN / LPV + m, pass = value / H, h = value % H;
      const int i = at + pass * kDigests + group;
      if ((kN >= LPV || sub % (LPV / (kN < LPV ? kN : LPV)) == 0) && i < n && h < a.heads)
        out[int64_t(h) * a.step.max_blocks + i] = v[m];
    }
    if (i0 >= n) return;
  }
}

template <int LPV>
Status launch_heads(const ScoreArgs& a, int n_sm, cudaStream_t stream) {
  const int64_t rows = int64_t(a.step.n) * a.step.n_kv_heads;
  const int64_t per_cta = kScoreThreads / 32 * (32 / LPV);  // at least
  const int64_t wanted = (a.step.max_blocks + per_cta - 1) / per_cta,
                share = (8 * int64_t(n_sm) + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(wanted < share ? wanted : share),
                  static_cast<unsigned>(rows));
  switch (padded_group(a.heads)) {
    case 1: return launch(score_kernel<LPV, 1>, a, grid, kScoreThreads, a.step.overlap, stream);
    case 2: return launch(score_kernel<LPV, 2>, a, grid, kScoreThreads, a.step.overlap, stream);
    case 4: return launch(score_kernel<LPV, 4>, a, grid, kScoreThreads, a.step.overlap, stream);
    default: return launch(score_kernel<LPV, 8>, a, grid, kScoreThreads, a.step.overlap, stream);
  }
}

Status launch_scores(const ScoreArgs& a, int n_sm, cudaStream_t stream) {
  return with_narrow_dim(a.step.layout.head_dim,
                         [&](auto dim) { return launch_heads<dim() / 8>(a, n_sm, stream); });
}

}  // namespace

Status score_rows(const DecodeStep& step, const RankRule& rank, const PaperScratch& scratch,
                  int n_sm, cudaStream_t stream) {
  ScoreArgs a{};
  a.step = step;
  a.g = step.n_heads / step.n_kv_heads;
  a.scale = 1 / sqrtf(float(step.layout.head_dim));
  const bool mean = rank.gqa == Gqa::Mean || a.g == 1;
  a.out = rank.gqa == Gqa::Mean ? scratch.scores : scratch.head_scores;
  a.counters = scratch.counters;
  a.heads = mean ? 1 : a.g;
  a.radius = rank.digest != DigestKind::Mean;
  if (Status status = launch_scores(a, n_sm, stream); status != cudaSuccess) return status;
  const Stop stop = rank.test.stop;
  if (!rank.progressive() || (stop != Stop::Bound && stop != Stop::Veto)) return cudaSuccess;
  // Bound: n_b e^(upper bound of the block's scores). Veto: n_b e^(q.mean), Jensen's lower bound.
  const bool veto = stop == Stop::Veto;
  a.out = scratch.bounds;
  a.counters = nullptr;
  a.heads = a.g;
  a.first_vector = veto ? 2 : 0;
  a.radius = a.factor = !veto;
  return launch_scores(a, n_sm, stream);
}

}  // namespace riffle::cuda
