// Linear kernels for any vector instruction set S (kernels/cpu/simd/simd.h lists the members of a
// set): the operations between the products. Internal linkage throughout.
#pragma once
#include "kernels/cpu/linear/linear_f32.h"

namespace riffle::cpu {
namespace {

template <class S>
void simd_dequant_row(WType type, const void* w, int64_t cols, int64_t r, float* dst) {
  with_type(type, [&]<WType T>() {
    constexpr DTypeInfo info = dtype_info(T);
    const uint8_t* at = static_cast<const uint8_t*>(w) + r * bytes_of_row(T, cols);
    if constexpr (is_quantised(T)) {
      for (int64_t j = 0; j < cols; j += info.block_values, at += info.block_bytes)
        decode_block<S, T>(at, dst + j);
    } else {
      int64_t j = 0;
      for (; j + S::kLanes <= cols; j += S::kLanes) S::store(dst + j, weights<S, T>(at, j));
      for (; j < cols; ++j) dequant_block<T>(at + j * info.block_bytes, dst + j);
    }
  });
}

template <class S>
void simd_rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps,
                  float* out) {
  for (int64_t i = 0; i < n; ++i, x += dim, out += dim) {
    const double mean = S::sum_squares(x, dim) / static_cast<double>(dim);
    const float scale = static_cast<float>(1.0 / __builtin_sqrt(mean + eps));
    const typename S::Vec s = S::set1(scale);
    int64_t j = 0;
    for (; j + S::kLanes <= dim; j += S::kLanes)
      S::store(out + j, S::load(x + j) * s * S::load(weight + j));
    for (; j < dim; ++j) out[j] = x[j] * scale * weight[j];
  }
}

template <class S>
void simd_add(float* x, const float* y, int64_t count) {
  int64_t j = 0;
  for (; j + S::kLanes <= count; j += S::kLanes) S::store(x + j, S::load(x + j) + S::load(y + j));
  for (; j < count; ++j) x[j] += y[j];
}

// x[j] = f(x[j], y[j]), on vectors.
template <class S, class F>
inline void pairwise(float* x, const float* y, int64_t count, const F& f) {
  int64_t j = 0;
  for (; j + S::kLanes <= count; j += S::kLanes) S::store(x + j, f(S::load(x + j), S::load(y + j)));
  if (const int n = static_cast<int>(count - j))
    S::store_n(x + j, f(S::load_n(x + j, n), S::load_n(y + j, n)), n);
}

// e^x for x <= 0 (NaN stays NaN), with subnormal results, which S::exp need not give: x = n ln2 +
// r, |r| <= ln2/2, Taylor to r^7 (truncation below 1e-8 of the result).
template <class S>
inline typename S::Vec exp_nonpositive(typename S::Vec x) {
  using Vec = typename S::Vec;
  x = S::max(S::set1(-104.0f), x);  // e^-104 rounds to 0
  const Vec n = S::round(x * S::set1(1.44269504f));
  Vec r = S::fnma(n, S::set1(0.693145752f),
                  x);  // ln2 in two parts; the first has 15 bits, so n times it is exact
  r = S::fnma(n, S::set1(1.42860677e-6f), r);
  Vec p = S::set1(1.0f / 5040);
  p = S::fma(p, r, S::set1(1.0f / 720));
  p = S::fma(p, r, S::set1(1.0f / 120));
  p = S::fma(p, r, S::set1(1.0f / 24));
  p = S::fma(p, r, S::set1(1.0f / 6));
  p = S::fma(p, r, S::set1(0.5f));
  p = S::fma(p, r, S::set1(1.0f));
  p = S::fma(p, r, S::set1(1.0f));
  return S::ldexp(p, n);
}

// silu(g) u with e = e^-|g|: g/(1+e) for g >= 0, g e/(1+e) below, so that nothing overflows;
// silu(-inf) = 0.
template <class S>
inline typename S::Vec silu_mul(typename S::Vec g, typename S::Vec u) {
  using Vec = typename S::Vec;
  const Vec e = exp_nonpositive<S>(S::negative_abs(g));
  const Vec below = S::max(S::set1(-__FLT_MAX__), g) * e;
  return S::select_negative(g, below, g) / (S::set1(1.0f) + e) * u;
}
template <class S>
void simd_swiglu(float* gate, const float* up, int64_t count) {
  pairwise<S>(gate, up, count, [](auto l, auto r) { return silu_mul<S>(l, r); });
}

// Computes the same as geglu of linear_scalar.cpp.
template <class S>
inline typename S::Vec gelu_mul(typename S::Vec g, typename S::Vec up) {
  using Vec = typename S::Vec;
  const Vec one = S::set1(1.0f);
  const Vec u = S::set1(0.7978845608028654f) * g * S::fma(S::set1(0.044715f) * g, g, one);
  const Vec e = exp_nonpositive<S>(S::set1(2.0f) * S::negative_abs(u));
  const Vec below = S::max(S::set1(-__FLT_MAX__), g) * e;
  return S::select_negative(g, below, g) / (one + e) * up;
}
template <class S>
void simd_geglu(float* gate, const float* up, int64_t count) {
  pairwise<S>(gate, up, count, [](auto l, auto r) { return gelu_mul<S>(l, r); });
}

// Computes the same as clamped_swiglu of linear_scalar.cpp. min(a, b) is -max(-a, -b).
template <class S>
inline typename S::Vec clamped_silu_mul(typename S::Vec g, typename S::Vec up) {
  using Vec = typename S::Vec;
  const Vec one = S::set1(1.0f), least = S::set1(-7.0f);
  g = -S::max(least, -g);
  up = S::max(least, -S::max(least, -up));
  const Vec e = exp_nonpositive<S>(S::set1(1.702f) * S::negative_abs(g));
  const Vec below = S::max(S::set1(-__FLT_MAX__), g) * e;
  return S::select_negative(g, below, g) / (one + e) * (up + one);
}
template <class S>
void simd_clamped_swiglu(float* gate, const float* up, int64_t count) {
  pairwise<S>(gate, up, count, [](auto l, auto r) { return clamped_silu_mul<S>(l, r); });
}

// Computes the same as sigmoid_gate of linear_scalar.cpp.
template <class S>
inline typename S::Vec sigmoid_mul(typename S::Vec x, typename S::Vec g) {
  const auto e = exp_nonpositive<S>(S::negative_abs(g));
  return S::select_negative(g, x * e, x) / (S::set1(1.0f) + e);
}
template <class S>
void simd_sigmoid_gate(float* x, const float* gate, int64_t count) {
  pairwise<S>(x, gate, count, [](auto l, auto r) { return sigmoid_mul<S>(l, r); });
}

// Computes the same as softcap of linear_scalar.cpp.
template <class S>
inline typename S::Vec capped(typename S::Vec x, typename S::Vec cap) {
  using Vec = typename S::Vec;
  const Vec one = S::set1(1.0f), u = x / cap,
            e = exp_nonpositive<S>(S::set1(2.0f) * S::negative_abs(u));
  const Vec t = (one - e) / (one + e);
  return cap * S::select_negative(u, -t, t);
}
template <class S>
void simd_softcap(float* x, int64_t count, float cap) {
  int64_t j = 0;
  for (; j + S::kLanes <= count; j += S::kLanes)
    S::store(x + j, capped<S>(S::load(x + j), S::set1(cap)));
  if (const int n = static_cast<int>(count - j))
    S::store_n(x + j, capped<S>(S::load_n(x + j, n), S::set1(cap)), n);
}

template <class S>
void simd_rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
               const int32_t* pos, RopePairs pairs) {
  using Vec = typename S::Vec;
  const int half = head_dim / 2;
  const bool interleaved = pairs.interleaved;
  const bool vectors = half % S::kLanes == 0 && (interleaved || pairs.rotated == head_dim);
  for (int64_t i = 0; i < n; ++i) {
    const float* cs = cos_sin + static_cast<int64_t>(pos[i]) * head_dim;
    for (int h = 0; h < n_heads; ++h) {
      float* p = x + i * ld + static_cast<int64_t>(h) * head_dim;
      if (!vectors) {
        rope_head(p, half, cs, pairs);
        continue;
      }
      float second[kRopeMaxHalf];  // the upper half must not overwrite pairs not yet read
      float* upper = interleaved ? second : p + half;
      for (int j = 0; j < half; j += S::kLanes) {
        Vec c, s, x0, x1;
        S::load_pairs(cs + 2 * j, &c, &s);
        if (interleaved) S::load_pairs(p + 2 * j, &x0, &x1);
        else x0 = S::load(p + j), x1 = S::load(p + half + j);
        S::store(p + j, S::fnma(x1, s, x0 * c));
        S::store(upper + j, S::fma(x0, s, x1 * c));
      }
      if (interleaved) memcpy(p + half, second, sizeof(float) * half);
    }
  }
}

// Sets the entries whose code is the same for every S. The row tile is MR, the column tile NV
// vectors.
template <class S, int MR, int NV>
inline void set_simd_entries(LinearKernels* t) {
  GemmF32<S, MR, NV>::set(t->gemm);
  GemmF32<S, MR, NV>::set(t->f32_gemm);
  t->dequant_row = simd_dequant_row<S>;
  t->rmsnorm = simd_rmsnorm<S>;
  t->add = simd_add<S>;
  t->swiglu = simd_swiglu<S>;
  t->geglu = simd_geglu<S>;
  t->clamped_swiglu = simd_clamped_swiglu<S>;
  t->sigmoid_gate = simd_sigmoid_gate<S>;
  t->softcap = simd_softcap<S>;
  t->rope = simd_rope<S>;
}

}  // namespace
}  // namespace riffle::cpu
