// Recurrent kernels for any vector instruction set S (kernels/cpu/simd/simd.h lists the members of
// a set). Internal linkage throughout.
#pragma once
#include "kernels/cpu/recurrent/recurrent.h"

namespace riffle::cpu {
namespace {

// Each row of the matrix is read and written once. Vectors: how many hold a row that stays in
// registers between the two passes; 0: a row of any length.
template <class S, int Vectors>
void delta_rows(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* q,
                const float* k, const float* v, float decay, float beta, float* out) {
  using Vec = typename S::Vec;
  constexpr int L = S::kLanes;
  const Vec scale = S::set1(decay);
  const auto rest = static_cast<int>(k_dim % L);
  const int64_t whole = k_dim - rest;
  for (int64_t i = 0; i < v_dim; ++i, from += k_dim, to += k_dim) {
    Vec row[Vectors > 0 ? Vectors : 1];
    Vec along = S::set1(0);
    if constexpr (Vectors > 0) {
      for (int n = 0; n < Vectors; ++n) {
        row[n] = S::load(from + n * L);
        along = S::fma(row[n], S::load(k + n * L), along);
      }
    } else {
      for (int64_t j = 0; j < whole; j += L)
        along = S::fma(S::load(from + j), S::load(k + j), along);
      if (rest > 0)
        along = S::fma(S::load_n(from + whole, rest), S::load_n(k + whole, rest), along);
    }
    const Vec change = S::set1(beta * (v[i] - decay * S::sum(along)));
    Vec sum = S::set1(0);
    if constexpr (Vectors > 0) {
      for (int n = 0; n < Vectors; ++n) {
        const Vec x = S::fma(change, S::load(k + n * L), scale * row[n]);
        S::store(to + n * L, x);
        sum = S::fma(x, S::load(q + n * L), sum);
      }
    } else {
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
    }
    out[i] = S::sum(sum);
  }
}

template <class S>
void simd_delta_rule(const float* from, float* to, int64_t v_dim, int64_t k_dim, const float* q,
                     const float* k, const float* v, float decay, float beta, float* out) {
  constexpr int kUsual = 128;  // k_dim of all released models
  const auto rows = k_dim == kUsual ? delta_rows<S, kUsual / S::kLanes> : delta_rows<S, 0>;
  rows(from, to, v_dim, k_dim, q, k, v, decay, beta, out);
}

template <class S>
void recurrent_simd(RecurrentKernels* t) {
  t->delta_rule = simd_delta_rule<S>;
}

}  // namespace
}  // namespace riffle::cpu
