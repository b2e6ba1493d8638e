// Synthetic keys of one KV head on which selectors run as a backend runs them.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "select/selector.h"
#include "util/error.h"

namespace riffle::test {

inline constexpr int kB = 32, kD = 64;

// Keys of one KV head, in f32, of which a few blocks matter; their digests; a query group.
struct KeyScene {
  int g, n_tokens, n_blocks;
  std::vector<float> keys, q;
  std::vector<uint16_t> digests;
  std::vector<float> factor;
  DigestSpec spec;
  Row row;

  KeyScene(int group, int tokens, unsigned seed, DigestSpec s, float sharpness = 1.0f)
      : g(group), n_tokens(tokens), n_blocks((tokens + kB - 1) / kB), spec(s) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    keys.resize(size_t(n_blocks) * kB * kD);
    q.resize(size_t(g) * kD);
    for (float& v : q) v = normal(random) * sharpness / std::sqrt(float(kD));
    for (float& v : keys) v = normal(random);
    for (int i = 0; i < 4; ++i) {  // needles: tokens that point along one head's query
      const int t = static_cast<int>(random() % tokens), h = static_cast<int>(random() % g);
      for (int j = 0; j < kD; ++j)
        keys[size_t(t) * kD + j] += q[h * kD + j] * std::sqrt(float(kD)) * 2 / sharpness;
    }
    const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
    const int full = n_blocks - 1;
    const int64_t stride = int64_t(spec.vectors()) * kD;
    digests.resize(full * stride);
    factor.resize(full);
    for (int b = 0; b < full; ++b)
      factor[b] = k->attention.digest_build(&keys[size_t(b) * kB * kD], KvType::F32, kB, kD,
                                            spec.kind, spec.with_mean, &digests[b * stride]);
    row = {q.data(), g, kD, kB, n_tokens, n_blocks, full, digests.data(), stride, factor.data(), k};
  }

  // Returns the log-sum-exp of a block's scores for a head.
  double mass(int h, int b) const {
    double sum = 0, top = -1e300;
    std::vector<double> s;
    for (int t = b * kB; t < std::min((b + 1) * kB, n_tokens); ++t) {
      double dot = 0;
      for (int j = 0; j < kD; ++j) dot += double(q[h * kD + j]) * keys[size_t(t) * kD + j];
      s.push_back(dot);
      top = std::max(top, dot);
    }
    for (double x : s) sum += std::exp(x - top);
    return top + std::log(sum);
  }
  double mass(int h, const std::vector<int>& blocks) const {
    double sum = 0;
    for (int b : blocks) sum += std::exp(mass(h, b));
    return std::log(sum);
  }
  std::vector<int> all() const {
    std::vector<int> v(n_blocks);
    std::iota(v.begin(), v.end(), 0);
    return v;
  }
};

inline Selection settings(SelectorKind selector) {
  Selection s;
  s.selector = selector;
  s.microbatch = 4;
  s.budget = 0.25f;
  s.sink_blocks = 1;
  s.recent_blocks = 2;
  return s;
}

// Expects that the settings of a selector, changed, are refused with an error that names the field.
template <class Change>
void check_refused(SelectorKind selector, Change&& change, const char* field) {
  Selection s = settings(selector);
  change(s);
  try {
    check_selection(s);
  } catch (const Error& e) {
    CHECK(e.status() == RIFFLE_BAD_ARGUMENT);
    CHECK(std::string(e.what()).find(field) != std::string::npos);
    return;
  }
  FAIL("accepted a bad " << field);
}

// Runs a selector as a backend does, with exact masses. Returns the blocks read, in order.
inline std::vector<int> read_blocks(const Selector& selector, const KeyScene& scene) {
  RowPlan plan;
  selector.begin(scene.row, plan);
  std::vector<int> read;
  const int m = selector.microbatch();
  if (m == 0) {
    for (int i = 0; i < plan.size(); ++i) read.push_back(plan.at(i));
    return read;
  }
  for (int i = 0; i < plan.n_forced(); ++i) read.push_back(plan.at(i));
  while (static_cast<int>(read.size()) < plan.size()) {
    const int n = std::min(m, plan.size() - static_cast<int>(read.size()));
    std::vector<float> l_blocks, l;
    for (int i = 0; i < n; ++i) {
      const int b = plan.at(static_cast<int>(read.size()));
      read.push_back(b);
      for (int h = 0; h < scene.g; ++h) l_blocks.push_back(static_cast<float>(scene.mass(h, b)));
    }
    for (int h = 0; h < scene.g; ++h) l.push_back(static_cast<float>(scene.mass(h, read)));
    if (selector.done(scene.row, plan, static_cast<int>(read.size()), l.data(), l_blocks.data(), n))
      break;
  }
  return read;
}

inline double coverage(const KeyScene& scene, int h, const std::vector<int>& read) {
  return std::exp(scene.mass(h, read) - scene.mass(h, scene.all()));
}

}  // namespace riffle::test
