// The attention lost with the tokens that a plan does not read: property 3 of src/select/README.md,
// computed in float64 only from the row's keys and values.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "select/selector.h"

namespace riffle::test {

inline std::set<int> tokens_of_plan(const Row& row, RowPlan& plan) {
  std::set<int> out;
  for (int i = 0; i < plan.size(); ++i) {
    const int b = plan.at(i);
    for (int t = 0; t < row.tokens_in(b); ++t)
      if (plan.mask(i) >> t & 1) out.insert(b * row.block_size + t);
  }
  return out;
}

// Returns attention over the tokens that the plan reads, [g][d]: the plan's own result, or else the
// kernel's.
inline std::vector<float> attention_of_plan(const Row& row, RowPlan& plan) {
  if (plan.attended) return plan.stand_in;
  std::vector<float> o(size_t(row.g) * row.d, 0.f), m(row.g, -INFINITY), sum(row.g, 0.f), l(row.g);
  cpu::AttendState state{o.data(), m.data(), sum.data()};
  for (int i = 0; i < plan.size(); ++i) {
    const int b = plan.at(i);
    row.kernels->attention.attend_block(row.q, row.g, row.d, row.block(b), row.type, row.block_size,
                                        plan.mask(i) & first_tokens(row.tokens_in(b)), &state,
                                        l.data(), nullptr);
  }
  for (int h = 0; h < row.g; ++h)
    for (int j = 0; j < row.d; ++j) o[h * row.d + j] /= sum[h];
  return o;
}

// Let P be the weight of the tokens read, A their part of the exact output o, and B the part of the
// others. Checks that o - got = B - A (1 - P) / P, that |B| <= (1 - P) max|v|, and that |o - got|
// is at most twice that. Requires: some weight is dropped.
inline void check_dropped(const Row& row, RowPlan& plan) {
  const int g = row.g, d = row.d, n = static_cast<int>(row.n_tokens);
  const std::set<int> kept = tokens_of_plan(row, plan);
  const std::vector<float> got = attention_of_plan(row, plan);
  REQUIRE(got.size() == size_t(g) * d);
  std::vector<float> k(d), v(d);
  for (int h = 0; h < g; ++h) {
    std::vector<double> w(n);
    double top = -1e300, all = 0;
    for (int t = 0; t < n; ++t) {
      row.kernels->attention.kv_load(row.key(t), d, row.type, k.data());
      for (int j = 0; j < d; ++j) w[t] += double(row.q[h * d + j]) * k[j];
      top = std::max(top, w[t]);
    }
    for (double& x : w) all += x = std::exp(x - top);
    std::vector<double> in(d, 0.0), out(d, 0.0);
    double mass = 0, largest = 0;
    for (int t = 0; t < n; ++t) {
      w[t] /= all;
      row.kernels->attention.kv_load(row.value(t), d, row.type, v.data());
      double norm = 0;
      for (int j = 0; j < d; ++j) {
        (kept.count(t) ? in : out)[j] += w[t] * v[j];
        norm += double(v[j]) * v[j];
      }
      if (kept.count(t)) mass += w[t];
      largest = std::max(largest, std::sqrt(norm));
    }
    REQUIRE(mass > 0);
    REQUIRE(mass < 0.9999);
    double off = 0, raw = 0, renormalised = 0;
    for (int j = 0; j < d; ++j) {
      const double lost = in[j] + out[j] - double(got[h * d + j]);
      off = std::max(off, std::fabs(lost - (out[j] - in[j] * (1 - mass) / mass)));
      raw += out[j] * out[j];
      renormalised += lost * lost;
    }
    CHECK(off <= 1e-4);
    CHECK(std::sqrt(raw) <= (1 - mass) * largest);
    CHECK(std::sqrt(renormalised) <= 2 * (1 - mass) * largest + 1e-4);
  }
}

}  // namespace riffle::test
