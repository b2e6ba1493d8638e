// Recurrent kernels for any vector instruction set S (kernels/cpu/simd/simd.h lists the members of
// a set). Internal linkage throughout.
#pragma once
#include "kernels/cpu/recurrent/recurrent.h"

namespace riffle::cpu {
namespace {

// Each row of the matrix is read and written once.
template <class S>
void delta_rows(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* q,
                const float* k, const float* v, float decay, float beta, float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  const Vec scale = S::set1(decay);
  const auto rest = static_cast<int>(k_dim % L);
  const int64_t whole = k_dim - rest;
  for (int64_t i = 0; i < v_dim; ++i, from += k_dim, to += k_dim) {
    Vec along = S::set1(0);
    for (int64_t j = 0; j < whole; j += L) along = S::fma(S::load(from + j), S::load(k + j), along);
    if (rest > 0) along = S::fma(S::load_n(from + whole, rest), S::load_n(k + whole, rest), along);
    const Vec change = S::set1(beta * (v[i] - decay * S::sum(along)));
    Vec sum = S::set1(0);
    for (int64_t j = 0; j < whole; j += L) {
      const Vec x = S::fma(change, S::load(k + j), scale * S::load(from + j));
      S::store(to + j, x);
      sum = S::fma(x, S::load(q + j), sum);
    }
    if (rest > 0) {
      const Vec x =
          S::fma(change, S::load_n(k + whole, rest), scale * S::load_n(from + whole, rest));
      S::store_n(to + whole, x, rest);
      sum = S::fma(x, S::load_n(q + whole, rest), sum);
    }
    out[i] = S::sum(sum);
  }
}

// The same for k_dim = Vectors * kLanes and a multiple of kLanes rows. kLanes rows at a time have
// their sums added up together, and each row is read from memory once for both of its products: S k
// and S q, since (decay S + change k^T) q = decay S q + change (k q).
template <class S, int Vectors>
void delta_tiles(const float* from, float* to, int64_t v_dim, const float* q, const float* k,
                 const float* v, float decay, float beta, float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes, kDim = Vectors * L;
  Vec ks[Vectors], qs[Vectors], both = S::set1(0);
  for (int n = 0; n < Vectors; ++n) {
    ks[n] = S::load(k + n * L);
    qs[n] = S::load(q + n * L);
    both = S::fma(ks[n], qs[n], both);
  }
  const Vec scale = S::set1(decay), k_q = S::set1(S::sum(both));
  for (int64_t i = 0; i < v_dim; i += L, from += L * kDim, to += L * kDim) {
    Vec along[L], seen[L];
    for (int r = 0; r < L; ++r) {
      const float* row = from + r * kDim;
      Vec a = S::load(row) * ks[0], s = S::load(row) * qs[0];
      for (int n = 1; n < Vectors; ++n) {
        const Vec x = S::load(row + n * L);
        a = S::fma(x, ks[n], a);
        s = S::fma(x, qs[n], s);
      }
      along[r] = a;
      seen[r] = s;
    }
    const Vec change = S::set1(beta) * S::fnma(scale, S::transpose_sum(along), S::load(v + i));
    S::store(out + i, S::fma(change, k_q, scale * S::transpose_sum(seen)));
    alignas(64) float changes[L];
    S::store(changes, change);
    for (int r = 0; r < L; ++r) {
      const Vec c = S::set1(changes[r]);
      for (int n = 0; n < Vectors; ++n)
        S::store(to + r * kDim + n * L, S::fma(c, ks[n], scale * S::load(from + r * kDim + n * L)));
    }
  }
}

template <class S>
void simd_delta_rule(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* q,
                     const float* k, const float* v, float decay, float beta, float* out) {
  constexpr int kUsual = 128;  // k_dim and v_dim of all released models
  if (k_dim == kUsual && v_dim % S::kLanes == 0)
    delta_tiles<S, kUsual / S::kLanes>(from, to, v_dim, q, k, v, decay, beta, out);
  else delta_rows<S>(from, to, v_dim, k_dim, q, k, v, decay, beta, out);
}

template <class S>
void simd_outer_rule(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* c,
                     const float* b, const float* x, float decay, float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  const Vec scale = S::set1(decay);
  const auto rest = static_cast<int>(k_dim % L);
  const int64_t whole = k_dim - rest;
  for (int64_t i = 0; i < v_dim; ++i, from += k_dim, to += k_dim) {
    const Vec add = S::set1(x[i]);
    Vec sum = S::set1(0);
    for (int64_t j = 0; j < whole; j += L) {
      const Vec s = S::fma(add, S::load(b + j), scale * S::load(from + j));
      S::store(to + j, s);
      sum = S::fma(s, S::load(c + j), sum);
    }
    if (rest > 0) {
      const Vec s = S::fma(add, S::load_n(b + whole, rest), scale * S::load_n(from + whole, rest));
      S::store_n(to + whole, s, rest);
      sum = S::fma(s, S::load_n(c + whole, rest), sum);
    }
    out[i] = S::sum(sum);
  }
}

template <class S>
void recurrent_simd(RecurrentKernels* t) {
  t->outer_rule = simd_outer_rule<S>;
  t->delta_rule = simd_delta_rule<S>;
}

}  // namespace
}  // namespace riffle::cpu
