// The kernels of gather.h for any vector instruction set S (kernels/cpu/simd/simd.h lists the
// members of a set).
#pragma once
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/gather.h"

namespace riffle::cpu {
namespace {

// Keys are fetched this many rounds ahead: some microseconds of memory latency, and few enough for
// the L1 cache.
constexpr int kAhead = 8;

// Scores H heads of the group, kLanes / H keys at a time, so that one transposition completes
// kLanes sums.
template <class S, class Rows, int H>
void dot_heads(const float* q, int64_t d, const void* const* keys, int64_t n, int64_t also,
               float* scores, int64_t stride) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, T = L / H;
  const int tail = static_cast<int>(d % L);
  const int64_t d_full = d - tail, bytes = kv_row_bytes(Rows::kType, d);
  for (int64_t i0 = 0; i0 < n; i0 += T) {
    const void* row[T];
    Vec sum[L];
    for (int i = 0; i < L; i++) sum[i] = S::set1(0);
    for (int i = 0; i < T; i++) {
      row[i] = keys[i0 + i < n ? i0 + i : n - 1];
      const int64_t ahead = i0 + i + kAhead * T;
      const char* next = static_cast<const char*>(keys[ahead < n ? ahead : n - 1]);
      for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch(next + j);
      if (also != 0)
        for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch(next + also + j, 0, 2);
    }
    for (int64_t j = 0; j < d_full; j += L) {
      Vec key[T];
      for (int i = 0; i < T; i++) key[i] = Rows::template load<S>(row[i], d, j);
      for (int h = 0; h < H; h++) {
        const Vec query = S::load(q + h * d + j);
        for (int i = 0; i < T; i++) sum[h * T + i] = S::fma(key[i], query, sum[h * T + i]);
      }
    }
    if (tail != 0) {
      for (int i = 0; i < T; i++) {
        const Vec key = Rows::template load_n<S>(row[i], d, d_full, tail);
        for (int h = 0; h < H; h++)
          sum[h * T + i] = S::fma(key, S::load_n(q + h * d + d_full, tail), sum[h * T + i]);
      }
    }
    alignas(64) float out[L];
    S::store(out, S::transpose_sum(sum));
    const int count = n - i0 < T ? static_cast<int>(n - i0) : T;
    for (int h = 0; h < H; h++)
      for (int i = 0; i < count; i++) scores[h * stride + i0 + i] = out[h * T + i];
  }
}

template <class S, class Rows>
void dot_typed(const float* q, int g, int d, const void* const* keys, int64_t n, int64_t also,
               float* scores, int64_t stride) {
  for (int h = 0; h < g;) {
    const float* q_h = q + static_cast<int64_t>(h) * d;
    float* out = scores + h * stride;
    if (S::kLanes >= 16 && g - h >= 16)
      dot_heads<S, Rows, S::kLanes>(q_h, d, keys, n, also, out, stride), h += S::kLanes;
    else if (g - h >= 8) dot_heads<S, Rows, 8>(q_h, d, keys, n, also, out, stride), h += 8;
    else if (g - h >= 4) dot_heads<S, Rows, 4>(q_h, d, keys, n, also, out, stride), h += 4;
    else if (g - h >= 2) dot_heads<S, Rows, 2>(q_h, d, keys, n, also, out, stride), h += 2;
    else dot_heads<S, Rows, 1>(q_h, d, keys, n, also, out, stride), h += 1;
    also = 0;
  }
}

template <class S>
void gather_dot(const float* q, int g, int d, const void* const* keys, int64_t n, KvType type,
                int64_t also, float* scores, int64_t stride) {
  const auto dot = type == KvType::F16   ? dot_typed<S, F16Rows>
                   : type == KvType::F32 ? dot_typed<S, F32Rows>
                                         : dot_typed<S, Q8Rows>;
  dot(q, g, d, keys, n, also, scores, stride);
}

template <class S>
float softmax(float* x, int64_t n, float* sum) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  alignas(64) float lanes[L];
  const int64_t full = n / L * L;
  float top = x[0];
  if (full > 0) {
    Vec largest = S::load(x);
    for (int64_t i = L; i < full; i += L) largest = S::max(largest, S::load(x + i));
    S::store(lanes, largest);
    for (int i = 0; i < L; i++) top = lanes[i] > top ? lanes[i] : top;
  }
  for (int64_t i = full; i < n; i++) top = x[i] > top ? x[i] : top;
  const Vec t = S::set1(top);
  Vec total = S::set1(0);
  for (int64_t i = 0; i < full; i += L) {
    const Vec e = S::exp(S::load(x + i) - t);
    S::store(x + i, e);
    total = total + e;
  }
  float s = 0;
  S::store(lanes, total);
  for (int i = 0; i < L; i++) s += lanes[i];
  if (full < n) {
    const int rest = static_cast<int>(n - full);
    S::store(lanes, S::exp(S::load_n(x + full, rest) - t));
    for (int i = 0; i < rest; i++) s += x[full + i] = lanes[i];
  }
  *sum = s;
  return top;
}

template <class S>
void combine(const float* x, int64_t stride, const float* weight, int g, int64_t n, float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  for (int64_t i = 0; i < n; i += L) {
    const int count = n - i < L ? static_cast<int>(n - i) : L;
    Vec sum = S::set1(0);
    for (int h = 0; h < g; h++)
      sum = S::fma(S::load_n(x + h * stride + i, count), S::set1(weight[h]), sum);
    S::store_n(out + i, sum, count);
  }
}

// Adds the values of tokens [t0, t1) to out, for H heads and the N vectors of dimensions at j (the
// last of n_tail values if that is not 0). ahead: the token that comes `ahead` tokens later is
// prefetched whole; 0: nothing is prefetched.
template <class S, class Rows, int H, int N, bool kTail>
void sum_values(const float* weight, int64_t stride, int64_t d, const void* const* values,
                int64_t n, int64_t t0, int64_t t1, int64_t j, int n_tail, int64_t ahead,
                float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  Vec sum[H][N];
  for (int h = 0; h < H; h++)
    for (int i = 0; i < N; i++) {
      const float* from = out + h * d + j + i * L;
      sum[h][i] = kTail ? S::load_n(from, n_tail) : S::load(from);
    }
  for (int64_t t = t0; t < t1; t++) {
    const void* row = values[t];
    if (ahead > 0) {
      const char* next = static_cast<const char*>(values[t + ahead < n ? t + ahead : n - 1]);
      for (int64_t i = 0; i < kv_row_bytes(Rows::kType, d); i += 64) __builtin_prefetch(next + i);
    }
    Vec value[N];
    for (int i = 0; i < N; i++)
      value[i] = kTail ? Rows::template load_n<S>(row, d, j, n_tail)
                       : Rows::template load<S>(row, d, j + i * L);
    for (int h = 0; h < H; h++) {
      const Vec w = S::set1(weight[h * stride + t]);
      for (int i = 0; i < N; i++) sum[h][i] = S::fma(w, value[i], sum[h][i]);
    }
  }
  for (int h = 0; h < H; h++)
    for (int i = 0; i < N; i++) {
      float* to = out + h * d + j + i * L;
      kTail ? S::store_n(to, sum[h][i], n_tail) : S::store(to, sum[h][i]);
    }
}

// Takes a few tokens at a time, so that all dimensions find a token's values in the L1 cache.
template <class S, class Rows, int H>
void values_heads(const float* weight, int64_t stride, int64_t d, const void* const* values,
                  int64_t n, float* out) {
  constexpr int L = S::kLanes, N = dim_vectors<S>(H), kRun = 32;
  for (int64_t i = 0; i < H * d; i++) out[i] = 0;
  for (int64_t t = 0; t < n && t < kRun; t++)
    for (int64_t i = 0; i < kv_row_bytes(Rows::kType, d); i += 64)
      __builtin_prefetch(static_cast<const char*>(values[t]) + i);
  for (int64_t t0 = 0; t0 < n; t0 += kRun) {
    const int64_t t1 = t0 + kRun < n ? t0 + kRun : n;
    int64_t j = 0, ahead = kRun;
    for (; j + N * L <= d; j += N * L, ahead = 0)
      sum_values<S, Rows, H, N, false>(weight, stride, d, values, n, t0, t1, j, 0, ahead, out);
    for (; j + L <= d; j += L, ahead = 0)
      sum_values<S, Rows, H, 1, false>(weight, stride, d, values, n, t0, t1, j, 0, ahead, out);
    if (j < d)
      sum_values<S, Rows, H, 1, true>(weight, stride, d, values, n, t0, t1, j,
                                      static_cast<int>(d - j), ahead, out);
  }
}

template <class S, class Rows>
void values_typed(const float* weight, int64_t stride, int g, int64_t d, const void* const* values,
                  int64_t n, float* out) {
  for (int h = 0; h < g;) {
    const float* w = weight + h * stride;
    float* to = out + h * d;
    if (g - h >= 8) values_heads<S, Rows, 8>(w, stride, d, values, n, to), h += 8;
    else if (g - h >= 4) values_heads<S, Rows, 4>(w, stride, d, values, n, to), h += 4;
    else if (g - h >= 2) values_heads<S, Rows, 2>(w, stride, d, values, n, to), h += 2;
    else values_heads<S, Rows, 1>(w, stride, d, values, n, to), h += 1;
  }
}

template <class S>
void gather_values(const float* weight, int64_t stride, int g, int d, const void* const* values,
                   int64_t n, KvType type, float* out) {
  const auto sum = type == KvType::F16   ? values_typed<S, F16Rows>
                   : type == KvType::F32 ? values_typed<S, F32Rows>
                                         : values_typed<S, Q8Rows>;
  sum(weight, stride, g, d, values, n, out);
}

}  // namespace
}  // namespace riffle::cpu
