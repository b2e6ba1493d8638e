// The attention lost with the tokens that a plan does not read, or counts more than once: property
// 3 of src/select/README.md, computed in float64 only from the row's keys and values.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "select/selector.h"

namespace riffle::test {

// Returns how many times the plan counts each token: 0 for one that is not read, more than 1 for
// one of a sample.
inline std::vector<double> counts_of_plan(const Row& row, RowPlan& plan) {
  std::vector<double> out(row.n_tokens, 0.0);
  for (int i = 0; i < plan.size(); ++i) {
    const int b = plan.at(i);
    for (int t = 0; t < row.tokens_in(b); ++t) {
      if ((plan.mask(i) >> t & 1) == 0) continue;
      double& count = out[int64_t(b) * row.block_size + t];
      REQUIRE(count == 0);  // no token is read twice
      count = std::exp(double(plan.log_weight(i)));
    }
  }
  return out;
}

// Returns attention over the tokens that the plan reads, [g][d]: the plan's own result, or else the
// kernel's for each block, weighted and summed in float64.
inline std::vector<float> attention_of_plan(const Row& row, RowPlan& plan) {
  if (plan.attended) return plan.stand_in;
  const int g = row.g, d = row.d;
  std::vector<double> sum(size_t(g) * d, 0.0), all(g, 0.0), top(g, -1e300);
  for (int i = 0; i < plan.size(); ++i) {
    const int b = plan.at(i);
    std::vector<float> o(size_t(g) * d, 0.f), m(g, -INFINITY), s(g, 0.f), l(g);
    cpu::AttendState state{o.data(), m.data(), s.data()};
    row.kernels->attention.attend_block(
        row.q, g, d, row.block(b), row.type, row.block_size, row.value_offset(),
        plan.mask(i) & first_tokens(row.tokens_in(b)), &state, l.data(), nullptr);
    for (int h = 0; h < g; ++h) {
      if (s[h] == 0) continue;
      const double largest = double(m[h]) + double(plan.log_weight(i)),
                   next = std::max(top[h], largest), before = std::exp(top[h] - next),
                   now = std::exp(largest - next);
      all[h] = all[h] * before + s[h] * now;
      for (int j = 0; j < d; ++j) sum[h * d + j] = sum[h * d + j] * before + o[h * d + j] * now;
      top[h] = next;
    }
  }
  std::vector<float> out(sum.size());
  for (size_t i = 0; i < sum.size(); ++i) out[i] = static_cast<float>(sum[i] / all[i / d]);
  return out;
}

// Let w be the tokens' weights, which sum to 1, o = sum w v the exact output, and c the number of
// times that the plan counts each token: 1 if it is read, 0 if not, another number in a sample. Let
// P = sum c w, A = sum c w v, B = sum (1 - c) w v and D = sum |1 - c| w. Checks that o - got =
// B - A (1 - P) / P, that |B| <= D max|v|, and that |o - got| <= 2 D max|v|. In a plan without
// samples P is the weight read, and D = 1 - P the weight dropped. Requires: D > 0.
inline void check_dropped(const Row& row, RowPlan& plan) {
  const int g = row.g, d = row.d, n = static_cast<int>(row.n_tokens);
  const std::vector<double> counts = counts_of_plan(row, plan);
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
    std::vector<double> counted(d, 0.0), rest(d, 0.0);
    double mass = 0, dropped = 0, largest = 0;
    for (int t = 0; t < n; ++t) {
      w[t] /= all;
      row.kernels->attention.kv_load(row.value(t), d, row.type, v.data());
      double norm = 0;
      for (int j = 0; j < d; ++j) {
        counted[j] += counts[t] * w[t] * v[j];
        rest[j] += (1 - counts[t]) * w[t] * v[j];
        norm += double(v[j]) * v[j];
      }
      mass += counts[t] * w[t];
      dropped += std::fabs(1 - counts[t]) * w[t];
      largest = std::max(largest, std::sqrt(norm));
    }
    REQUIRE(mass > 0);
    REQUIRE(dropped > 1e-4);
    double off = 0, raw = 0, renormalised = 0;
    for (int j = 0; j < d; ++j) {
      const double lost = counted[j] + rest[j] - double(got[h * d + j]);
      off = std::max(off, std::fabs(lost - (rest[j] - counted[j] * (1 - mass) / mass)));
      raw += rest[j] * rest[j];
      renormalised += lost * lost;
    }
    CHECK(off <= 1e-4);
    CHECK(std::sqrt(raw) <= dropped * largest);
    CHECK(std::sqrt(renormalised) <= 2 * dropped * largest + 1e-4);
  }
}

}  // namespace riffle::test
