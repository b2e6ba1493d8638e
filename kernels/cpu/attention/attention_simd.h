// Decode attention, merging and digest scores for any vector instruction set S
// (kernels/cpu/simd/simd.h lists the members of a set).
#pragma once
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/kv_rows.h"
#include "kernels/cpu/select/digest_build.h"
#include "kernels/cpu/simd/simd.h"

namespace riffle::cpu {
namespace {

constexpr int kMaxTokens = 64;  // per block: a mask is 64 bits

// Rows of keys or values in memory. They return the numbers from j on as f32: a whole vector, or n
// numbers.
struct F16Rows {
  static constexpr KvType kType = KvType::F16;
  template <class S>
  static typename S::Vec load(const void* row, int64_t, int64_t j) {
    return S::load_f16(static_cast<const uint16_t*>(row) + j);
  }
  template <class S>
  static typename S::Vec load_n(const void* row, int64_t, int64_t j, int n) {
    return S::load_f16_n(static_cast<const uint16_t*>(row) + j, n);
  }
};
struct F32Rows {
  static constexpr KvType kType = KvType::F32;
  template <class S>
  static typename S::Vec load(const void* row, int64_t, int64_t j) {
    return S::load(static_cast<const float*>(row) + j);
  }
  template <class S>
  static typename S::Vec load_n(const void* row, int64_t, int64_t j, int n) {
    return S::load_n(static_cast<const float*>(row) + j, n);
  }
};
// A vector's numbers share a scale, since kLanes divides 32 and vectors begin at its multiples. The
// numbers of a row's last part share one too.
struct Q8Rows {
  static constexpr KvType kType = KvType::Q8;
  template <class S>
  static typename S::Vec load(const void* row, int64_t d, int64_t j) {
    const auto* codes = static_cast<const uint8_t*>(row);
    return S::load_i8(codes + j) * S::set1(q8_scale(codes[d + j / kQ8Values]));
  }
  template <class S>
  static typename S::Vec load_n(const void* row, int64_t d, int64_t j, int n) {
    const auto* codes = static_cast<const uint8_t*>(row);
    int8_t some[S::kLanes] = {};
    for (int i = 0; i < n; i++) some[i] = static_cast<int8_t>(codes[j + i]);
    return S::load_i8(some) * S::set1(q8_scale(codes[d + j / kQ8Values]));
  }
};

// Returns the number of vectors of sums that each of H heads gets: half of the registers hold sums.
template <class S>
constexpr int dim_vectors(int heads) {
  const int n = S::kRegisters / 2 / heads;
  return n < 1 ? 1 : n > 4 ? 4 : n;
}

// o[h][j] = o[h][j] * w_old[h] + w_new[h] * sum_t p[t][h] * v_t[j] for H heads and the N vectors at
// j (the last of n_tail values if that is not 0). p is [token][kStride].
template <class S, class Rows, int H, int kStride, int N, bool kTail>
inline void add_values(const float* p, const char* v, int64_t d, const uint8_t* tokens, int n,
                       int j, int n_tail, const float* w_old, const float* w_new, float* o,
                       const char* next) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  Vec sum[H][N];
  for (int h = 0; h < H; h++)
    for (int i = 0; i < N; i++) sum[h][i] = S::set1(0);
  const int64_t row_bytes = kv_row_bytes(Rows::kType, d);
  for (int t = 0; t < n; t++) {
    const char* row = v + tokens[t] * row_bytes;
    if (next)
      for (int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(next + t * row_bytes + i);
    Vec value[N];
    for (int i = 0; i < N; i++)
      value[i] = kTail ? Rows::template load_n<S>(row, d, j, n_tail)
                       : Rows::template load<S>(row, d, j + i * L);
    for (int h = 0; h < H; h++) {
      const Vec weight = S::set1(p[t * kStride + h]);
      for (int i = 0; i < N; i++) sum[h][i] = S::fma(weight, value[i], sum[h][i]);
    }
  }
  for (int h = 0; h < H; h++) {
    for (int i = 0; i < N; i++) {
      float* out = o + h * d + j + i * L;
      const Vec old = kTail ? S::load_n(out, n_tail) : S::load(out);
      const Vec merged = S::fma(sum[h][i], S::set1(w_new[h]), old * S::set1(w_old[h]));
      kTail ? S::store_n(out, merged, n_tail) : S::store(out, merged);
    }
  }
}

// Calls add_values for every dimension of heads [h, G).
template <class S, class Rows, int G, int kStride, int h = 0>
inline void add_all_values(const float* p, const char* v, int64_t d, const uint8_t* tokens, int n,
                           const float* w_old, const float* w_new, float* o, const char* next) {
  constexpr int L = S::kLanes, kMost = S::kRegisters / 4, H = G - h < kMost ? G - h : kMost,
                N = dim_vectors<S>(H);
  int j = 0;
  for (; j + N * L <= d; j += N * L) {
    add_values<S, Rows, H, kStride, N, false>(p + h, v, d, tokens, n, j, 0, w_old + h, w_new + h,
                                              o + h * d, next);
    next = nullptr;  // once is enough
  }
  for (; j + L <= d; j += L)
    add_values<S, Rows, H, kStride, 1, false>(p + h, v, d, tokens, n, j, 0, w_old + h, w_new + h,
                                              o + h * d, nullptr);
  if (j < d)
    add_values<S, Rows, H, kStride, 1, true>(p + h, v, d, tokens, n, j, static_cast<int>(d - j),
                                             w_old + h, w_new + h, o + h * d, nullptr);
  if constexpr (h + H < G)
    add_all_values<S, Rows, G, kStride, h + H>(p, v, d, tokens, n, w_old, w_new, o, nullptr);
}

// Merged states of online softmaxes: m, the largest scores; s, the sums of weights; the factors of
// the earlier values and of the part's values.
template <class S>
struct MergedStates {
  typename S::Vec m, s, before, now;
};
template <class S, class Vec = typename S::Vec>
inline MergedStates<S> merge_states(Vec m, Vec s, Vec m_part, Vec s_part) {
  const Vec top = S::max(m, m_part);
  const Vec before = exp_below<S>(m, top), now = exp_below<S>(m_part, top);
  return {top, S::fma(s_part, now, s * before), before, now};
}

// Attends to one block with G heads. tokens[n]: the tokens to attend to, n >= 1. Scores lie as
// [token][H], so that kLanes/H tokens fill one vector and the softmax runs over all heads at once.
// H is the smallest power of two from G on. Scores of the H - G heads of padding are 0.
template <class S, class Rows, int H, int G>
void attend_heads(const float* q, int64_t d, const char* k, const char* v, const uint8_t* tokens,
                  int n, float* o, float* m, float* s, float* l_block, const char* next) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, T = L / H;
  alignas(64) float p[kMaxTokens * H + L];
  const int n_vec = (n * H + L - 1) / L, tail = static_cast<int>(d % L);
  const int64_t d_full = d - tail, row_bytes = kv_row_bytes(Rows::kType, d);

  for (int t0 = 0; t0 < n; t0 += T) {
    Vec sum[L];
    const char* row[T];
#pragma GCC unroll 16
    for (int i = 0; i < L; i++) sum[i] = S::set1(0);
    for (int i = 0; i < T; i++) {
      const int token = tokens[t0 + i < n ? t0 + i : n - 1];
      row[i] = k + token * row_bytes;
      for (int64_t j = 0; j < row_bytes; j += 64) {
        __builtin_prefetch(v + token * row_bytes + j);
        if (next) __builtin_prefetch(next + (t0 + i) * row_bytes + j);
      }
    }
    for (int64_t j = 0; j < d_full; j += L) {
      Vec key[T];
#pragma GCC unroll 16
      for (int i = 0; i < T; i++) key[i] = Rows::template load<S>(row[i], d, j);
#pragma GCC unroll 16
      for (int h = 0; h < G; h++) {
        const Vec query = S::load(q + h * d + j);
#pragma GCC unroll 16
        for (int i = 0; i < T; i++) sum[i * H + h] = S::fma(key[i], query, sum[i * H + h]);
      }
    }
    if (tail != 0) {
#pragma GCC unroll 16
      for (int i = 0; i < T; i++) {
        const Vec key = Rows::template load_n<S>(row[i], d, d_full, tail);
#pragma GCC unroll 16
        for (int h = 0; h < G; h++)
          sum[i * H + h] = S::fma(key, S::load_n(q + h * d + d_full, tail), sum[i * H + h]);
      }
    }
    // A copy, since GCC would store sums in each round if a pointer to them were passed on.
    Vec all[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; i++) all[i] = sum[i];
    S::store(p + t0 * H, S::transpose_sum(all));
  }
  for (int i = n * H; i < n_vec * L; i++) p[i] = kNegInf;

  Vec largest = S::set1(kNegInf);
  for (int i = 0; i < n_vec; i++) largest = S::max(largest, S::load(p + i * L));
  largest = fold_max<S, H>(largest);
  Vec total = S::set1(0);
  for (int i = 0; i < n_vec; i++) {
    const Vec e = exp_below<S>(S::load(p + i * L), largest);
    S::store(p + i * L, e);
    total = total + e;
  }
  total = fold_sum<S, H>(total);

  const auto merged = merge_states<S>(S::load_n(m, G), S::load_n(s, G), largest, total);
  S::store_n(l_block, largest + S::log(total), G);
  S::store_n(s, merged.s, G);
  S::store_n(m, merged.m, G);
  alignas(64) float before[L], now[L];
  S::store(before, merged.before);
  S::store(now, merged.now);
  add_all_values<S, Rows, G, H>(p, v, d, tokens, n, before, now, o, next ? next + (v - k) : next);
}

template <class S, class Rows>
void attend_tokens(const float* q, int g, int d, const void* block, int64_t value_at,
                   const uint8_t* tokens, int n, AttendState* state, float* l_block,
                   const void* next_block) {
  const char *k = static_cast<const char*>(block), *next = static_cast<const char*>(next_block);
  const char* v = k + value_at;
  for (int h = 0; h < g;) {
    const auto some = [&]<int H, int G>() {
      attend_heads<S, Rows, H, G>(q + h * d, d, k, v, tokens, n, state->o + h * d, state->m + h,
                                  state->s + h, l_block + h, next);
      h += G;
      next = nullptr;
    };
    const int left = g - h;
    if constexpr (S::kLanes >= 16)
      if (left >= 16) {
        some.template operator()<16, 16>();
        continue;
      }
    if (left >= 8) some.template operator()<8, 8>();
    else if (left == 7) some.template operator()<8, 7>();
    else if (left == 6) some.template operator()<8, 6>();
    else if (left == 5) some.template operator()<8, 5>();
    else if (left == 4) some.template operator()<4, 4>();
    else if (left == 3) some.template operator()<4, 3>();
    else if (left == 2) some.template operator()<2, 2>();
    else some.template operator()<1, 1>();
  }
}

template <class S>
void attend_block(const float* q, int g, int d, const void* block, KvType type, int /*block_size*/,
                  int64_t value_at, uint64_t mask, AttendState* state, float* l_block,
                  const void* next) {
  uint8_t tokens[kMaxTokens];
  int n = 0;
  for (uint64_t rest = mask; rest != 0; rest &= rest - 1)
    tokens[n++] = static_cast<uint8_t>(__builtin_ctzll(rest));
  if (n == 0) {
    for (int h = 0; h < g; h++) l_block[h] = kNegInf;
    return;
  }
  const auto attend = type == KvType::F16   ? attend_tokens<S, F16Rows>
                      : type == KvType::F32 ? attend_tokens<S, F32Rows>
                                            : attend_tokens<S, Q8Rows>;
  attend(q, g, d, block, value_at, tokens, n, state, l_block, next);
}

template <class S>
void kv_store(const float* src, int64_t count, KvType type, void* dst) {
  if (type == KvType::Q8) return q8_store_row(src, count, dst);
  if (type == KvType::F32) {
    if (count > 0)
      __builtin_memcpy(dst, src, sizeof(float) * count);  // memcpy takes no NULL, even for nothing
    return;
  }
  auto* half = static_cast<uint16_t*>(dst);
  int64_t i = 0;
  for (; i + S::kLanes <= count; i += S::kLanes) S::store_f16(half + i, S::load(src + i));
  const int n = static_cast<int>(count - i);
  if (n > 0) S::store_f16_n(half + i, S::load_n(src + i, n), n);
}

template <class S, class Rows>
void load_rows(const void* row, int64_t d, int64_t j0, int64_t n, float* dst) {
  int64_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes)
    S::store(dst + i, Rows::template load<S>(row, d, j0 + i));
  const int rest = static_cast<int>(n - i);
  if (rest > 0) S::store_n(dst + i, Rows::template load_n<S>(row, d, j0 + i, rest), rest);
}

// Reads numbers [j0, j0 + n) of a row of d numbers; j0 is a multiple of 32.
template <class S>
void kv_load_part(const void* row, int64_t d, int64_t j0, int64_t n, KvType type, float* dst) {
  if (type == KvType::F16) return load_rows<S, F16Rows>(row, d, j0, n, dst);
  if (type == KvType::F32) return load_rows<S, F32Rows>(row, d, j0, n, dst);
  load_rows<S, Q8Rows>(row, d, j0, n, dst);
}

template <class S>
void kv_load(const void* src, int64_t count, KvType type, float* dst) {
  kv_load_part<S>(src, count, 0, count, type, dst);
}

template <class S>
float digest_build(const void* k, KvType type, int block_size, int d, DigestKind kind,
                   bool with_mean, uint16_t* out) {
  return digest_build_impl(kv_load_part<S>, k, type, block_size, d, kind, with_mean, out);
}

template <class S>
void merge(AttendState* a, const AttendState* b, int g, int d) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  for (int h = 0; h < g; h++) {
    const auto merged =
        merge_states<S>(S::set1(a->m[h]), S::set1(a->s[h]), S::set1(b->m[h]), S::set1(b->s[h]));
    const Vec w_a = merged.before, w_b = merged.now;
    float* o_a = a->o + static_cast<int64_t>(h) * d;
    const float* o_b = b->o + static_cast<int64_t>(h) * d;
    int j = 0;
    for (; j + L <= d; j += L)
      S::store(o_a + j, S::fma(S::load(o_b + j), w_b, S::load(o_a + j) * w_a));
    if (j < d)
      S::store_n(o_a + j, S::fma(S::load_n(o_b + j, d - j), w_b, S::load_n(o_a + j, d - j) * w_a),
                 d - j);
    S::store_n(a->s + h, merged.s, 1);
    S::store_n(a->m + h, merged.m, 1);
  }
}

// sum[i] += digest_i . q for kLanes digests.
template <class S>
inline void score_vectors(const uint16_t* const* digest, int d, const float* q,
                          typename S::Vec* sum) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  int j = 0;
  for (; j + L <= d; j += L) {
    const Vec query = S::load(q + j);
    for (int i = 0; i < L; i++) sum[i] = S::fma(S::load_f16(digest[i] + j), query, sum[i]);
  }
  if (j == d) return;
  const Vec query = S::load_n(q + j, d - j);
  for (int i = 0; i < L; i++) sum[i] = S::fma(S::load_f16_n(digest[i] + j, d - j), query, sum[i]);
}

template <class S>
void digest_score(const uint16_t* digests, int64_t stride, int64_t n, int d, const float* q,
                  const float* q_abs, float* scores) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  for (int64_t b = 0; b < n; b += L) {
    const uint16_t *centre[L], *radius[L];
    Vec sum[L];
    for (int i = 0; i < L; i++) {
      const int64_t index = b + i < n ? b + i : n - 1;
      centre[i] = digests + index * stride;
      radius[i] = centre[i] + d;
      sum[i] = S::set1(0);
      // Prefetches one round ahead; a prefetch beyond the end is harmless.
      for (int64_t j = 0; j < 2 * d; j += 32) __builtin_prefetch(centre[i] + L * stride + j);
    }
    score_vectors<S>(centre, d, q, sum);
    if (q_abs != nullptr) score_vectors<S>(radius, d, q_abs, sum);
    S::store_n(scores + b, S::transpose_sum(sum), static_cast<int>(n - b < L ? n - b : L));
  }
}

}  // namespace
}  // namespace riffle::cpu
