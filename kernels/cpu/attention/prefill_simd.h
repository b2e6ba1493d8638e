// Prefill attention in f32 for any vector instruction set S (kernels/cpu/simd/simd.h). Query rows
// lie in lanes: scores, weights and outputs are kept transposed, so that the online softmax needs
// no sum across lanes and a row's arithmetic is the same in every lane, tile and call. Keys come in
// tiles of kKeyTile by absolute position.
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/tile_choice.h"

namespace riffle::cpu {
namespace {

// Scratch, in floats; rows: query rows (position, head) rounded up to whole groups of 2 * kLanes.
template <class S>
struct PrefillScratch {
  static constexpr int kGroup = 2 * S::kLanes;
  int rows;
  float *k, *v;  // [kKeyTile][d]
  float *q, *o;  // [rows / kGroup][d][kGroup]
  float *m, *s;  // [rows]
  float* last;   // [rows] the last position that a row sees, less pos0: exact in f32
  float* p;      // [kKeyTile][kGroup] scores, then weights
  size_t bytes;

  PrefillScratch(int n_q, int g, int d, void* memory) {
    rows = (n_q * g + kGroup - 1) / kGroup * kGroup;
    const int64_t tile = static_cast<int64_t>(kKeyTile) * d,
                  queries = static_cast<int64_t>(rows) * d;
    k = static_cast<float*>(memory);
    int64_t at = 0;  // offsets, not pointers: memory is NULL when only the size is asked for
    const int64_t v_at = at += tile, q_at = at += tile, o_at = at += queries, m_at = at += queries,
                  s_at = at += rows, last_at = at += rows, p_at = at += rows;
    bytes = sizeof(float) * static_cast<size_t>(at + kKeyTile * kGroup);
    if (memory == nullptr) return;
    v = k + v_at, q = k + q_at, o = k + o_at, m = k + m_at, s = k + s_at, last = k + last_at,
    p = k + p_at;
  }
};

// out[i][0..kGroup) (+)= sum_j a[i*stride_i + j*stride_j] * b[j][0..kGroup) for i in [0,n), j in
// [0,n_j); N rows at a time.
template <class S, int N, bool kAdd>
inline void multiply_rows(const float* a, int64_t stride_i, int64_t stride_j, int n_j,
                          const float* b, float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  Vec sum[N][2];
  for (int i = 0; i < N; i++)
    for (int u = 0; u < 2; u++) sum[i][u] = kAdd ? S::load(out + i * 2 * L + u * L) : S::set1(0);
  for (int j = 0; j < n_j; j++) {
    const Vec b0 = S::load(b + j * 2 * L), b1 = S::load(b + j * 2 * L + L);
    for (int i = 0; i < N; i++) {
      const Vec x = S::set1(a[i * stride_i + j * stride_j]);
      sum[i][0] = S::fma(x, b0, sum[i][0]);
      sum[i][1] = S::fma(x, b1, sum[i][1]);
    }
  }
  for (int i = 0; i < N; i++)
    for (int u = 0; u < 2; u++) S::store(out + i * 2 * L + u * L, sum[i][u]);
}

template <class S, bool kAdd>
inline void multiply(const float* a, int64_t stride_i, int64_t stride_j, int n, int n_j,
                     const float* b, float* out) {
  constexpr int N = S::kLanes / 2, kGroup = 2 * S::kLanes;
  int i = 0;
  for (; i + N <= n; i += N)
    multiply_rows<S, N, kAdd>(a + i * stride_i, stride_i, stride_j, n_j, b, out + i * kGroup);
  for (; i < n; i++)
    multiply_rows<S, 1, kAdd>(a + i * stride_i, stride_i, stride_j, n_j, b, out + i * kGroup);
}

// Tells which keys of a tile a row sees. diagonal: key t only if last[row] >= first + t; edge: only
// if last[row] <= edge_first + t. The numbers are small wherever they are compared, thus exact.
struct Seen {
  bool diagonal, edge;
  float first, edge_first;
};

// Turns scores p[n][kGroup] into weights, and brings m, s and o of these rows to the new maximum. A
// row that has seen no key yet stays empty.
template <class S>
inline void softmax_tile(float* p, int n, const Seen& sees, const float* last, float* m, float* s,
                         float* o, int d) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, kGroup = 2 * L;
  for (int u = 0; u < kGroup; u += L) {
    const Vec seen = S::load(last + u), m_old = S::load(m + u);
    Vec m_new = m_old;
    for (int t = 0; t < n; t++) {
      Vec x = S::load(p + t * kGroup + u);
      if (sees.diagonal) x = S::select_ge(seen, S::set1(sees.first + t), x, S::set1(kNegInf));
      if (sees.edge) x = S::select_ge(S::set1(sees.edge_first + t), seen, x, S::set1(kNegInf));
      if (sees.diagonal || sees.edge) S::store(p + t * kGroup + u, x);
      m_new = S::max(m_new, x);
    }
    Vec sum = S::set1(0);
    for (int t = 0; t < n; t++) {
      const Vec e = exp_below<S>(S::load(p + t * kGroup + u), m_new);
      S::store(p + t * kGroup + u, e);
      sum = sum + e;
    }
    const Vec w = exp_below<S>(m_old, m_new);
    S::store(s + u, S::fma(S::load(s + u), w, sum));
    S::store(m + u, m_new);
    if (!S::any_less(m_old, m_new)) continue;  // then every w is exactly 1, or its row is empty
    for (int j = 0; j < d; j++) S::store(o + j * kGroup + u, S::load(o + j * kGroup + u) * w);
  }
}

// Converting a tile of keys and values pays off over this many rows; their queries and outputs
// still fit the L2 cache.
inline int prefill_tile_simd(int g, int) { return g < 256 ? 256 / g : 1; }

template <class S>
size_t prefill_scratch_bytes_simd(int n_q, int g, int d, int) {
  return PrefillScratch<S>(n_q, g, d, nullptr).bytes;
}

template <class S>
void attend_prefill_simd(const float* q, int64_t ldq, int n_q, int g, int d, int64_t pos0,
                         int64_t window, const uint64_t* tiles, const void* const* blocks,
                         int block_size, KvType type, int64_t value_at, const float* sinks,
                         float* out, int64_t ldo, void* scratch) {
  constexpr int kGroup = PrefillScratch<S>::kGroup;
  const PrefillScratch<S> a(n_q, g, d, scratch);
  const int n_rows = n_q * g;
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(d));
  const float* const values = value_at == 0 ? a.k : a.v;
  for (int row = 0; row < a.rows; row++) {
    const int i =
        row < n_rows
            ? row / g
            : n_q - 1;  // padding rows of the last group see the same keys as the last real row
    float* to = a.q + static_cast<int64_t>(row / kGroup) * d * kGroup + row % kGroup;
    for (int j = 0; j < d; j++)
      to[j * kGroup] = row < n_rows ? q[i * ldq + row % g * d + j] * scale : 0;
    a.m[row] = kNegInf, a.s[row] = 0, a.last[row] = static_cast<float>(i);
  }
  for (int64_t j = 0; j < static_cast<int64_t>(a.rows) * d; j++) a.o[j] = 0;

  const int64_t n_keys = pos0 + n_q, row_bytes = kv_row_bytes(type, d);
  const int64_t seen_from =
      window > 0 && pos0 >= window ? pos0 - window + 1 : 0;  // first key in any window
  for (int64_t t0 = seen_from / kKeyTile * kKeyTile; t0 < n_keys; t0 += kKeyTile) {
    if (!has_tile(tiles, t0)) continue;
    const int n = static_cast<int>(n_keys - t0 < kKeyTile ? n_keys - t0 : kKeyTile);
    for (int64_t t = 0; t < n; t++) {
      const int64_t in_block = (t0 + t) % block_size;
      const char* key =
          static_cast<const char*>(blocks[(t0 + t) / block_size]) + in_block * row_bytes;
      kv_load<S>(key, d, type, a.k + t * d);
      if (value_at != 0) kv_load<S>(key + value_at, d, type, a.v + t * d);
    }
    for (int row = 0; row < a.rows; row += kGroup) {
      if (t0 - pos0 > static_cast<int64_t>(a.last[row + kGroup - 1]))
        continue;  // no row of the group sees this tile
      const int64_t edge =
          t0 - pos0 + window - 1;  // key t is in the window of rows whose last[] <= edge + t
      if (window > 0 && static_cast<int64_t>(a.last[row]) > edge + n - 1)
        break;  // no later group sees it either
      const Seen sees{t0 - pos0 + n - 1 > static_cast<int64_t>(a.last[row]),
                      window > 0 && static_cast<int64_t>(a.last[row + kGroup - 1]) > edge,
                      static_cast<float>(t0 - pos0), static_cast<float>(edge)};
      float* o = a.o + static_cast<int64_t>(row) * d;
      multiply<S, false>(a.k, d, 1, n, d, a.q + static_cast<int64_t>(row) * d, a.p);
      softmax_tile<S>(a.p, n, sees, a.last + row, a.m + row, a.s + row, o, d);
      multiply<S, true>(values, 1, d, d, n, a.p, o);
    }
  }
  for (int row = 0; row < n_rows; row++) {
    const float* from = a.o + static_cast<int64_t>(row / kGroup) * d * kGroup + row % kGroup;
    float* to = out + row / g * ldo + row % g * d;
    if (sinks != nullptr) a.s[row] += __builtin_expf(sinks[row % g] - a.m[row]);
    // Adding zero turns every -0 into +0, since a tile that a row does not see may do so too.
    for (int j = 0; j < d; j++) to[j] = from[j * kGroup] / a.s[row] + 0.0f;
  }
}

}  // namespace
}  // namespace riffle::cpu
