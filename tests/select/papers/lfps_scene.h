// Helpers of the tests of LFPS: the paper's tables, eager and in float64, and a KV head that grows.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "select/papers/lfps_tables.h"
#include "select/papers/papers.h"

namespace riffle::test::lfps {

inline constexpr int kSinks = LfpsTables::kSinks, kRecent = LfpsTables::kRecent;

// The tables of the paper: every entry decays in every active step, and every step reads all
// entries.
struct Eager {
  std::vector<double> v, s;

  explicit Eager(int n) : v(n, 0.0), s(n, 0.0) {}
  void grow(int n) { v.resize(n, 0.0), s.resize(n, 0.0); }
  void add(const std::vector<double>& w, int at, double c) {  // w[i - kSinks]
    for (int i = kSinks; i <= at; ++i) v[i] += c * w[i - kSinks], s[at - i] += c * w[i - kSinks];
  }
  void update(double decay, int t, const std::vector<int32_t>& ids, const std::vector<double>& w) {
    for (double& x : v) x *= decay;
    for (double& x : s) x *= decay;
    for (size_t i = 0; i < ids.size(); ++i) v[ids[i]] += w[i] / 2, s[t - ids[i]] += w[i] / 2;
  }
  static void moments(const std::vector<double>& x, int n, double* mean, double* sd,
                      double* kurtosis) {
    // The moments are over n entries: x without the entries that are always 0 (the sinks, the last
    // distances), or x with zeros added.
    double m = 0, m2 = 0, m4 = 0;
    for (double y : x) m += y;
    m /= n;
    for (double y : x) m2 += (y - m) * (y - m), m4 += std::pow(y - m, 4);
    const int more = n - static_cast<int>(x.size());
    m2 += more * m * m, m4 += more * std::pow(m, 4);
    m2 /= n, m4 /= n;
    *mean = m, *sd = std::sqrt(m2), *kurtosis = m4 / (m2 * m2);
  }
  LfpsTables::Thresholds thresholds(int t, double alpha) const {
    double mv, sv, kv, ms, ss, ks;
    moments(v, t + 1 - kSinks, &mv, &sv, &kv);
    moments(s, t + 1 - kSinks, &ms, &ss, &ks);
    return {mv + 2 * alpha * sv * 2 * ks / (kv + ks), ms + 2 * alpha * ss * 2 * kv / (kv + ks), mv,
            ms};
  }
  double at_v(int i) const { return i < static_cast<int>(v.size()) ? v[i] : 0; }
  double at_s(int d) const { return d < static_cast<int>(s.size()) ? s[d] : 0; }
  // Returns I_cand, and in init I_init, within kSinks..t - kRecent. near: positions whose scores
  // are too near a threshold to decide.
  std::set<int> candidates(int t, double alpha, std::set<int>* init, std::set<int>* near) const {
    const LfpsTables::Thresholds th = thresholds(t, alpha);
    const auto close = [](double x, double y) { return std::fabs(x - y) <= 1e-4 * y; };
    std::set<int> all;
    init->clear();
    for (int i = 0; i <= t; ++i) {
      const double x = at_v(i), y = at_s(t - i);
      if (close(x, th.v) || close(y, th.s) || close(x, th.v_mean) || close(y, th.s_mean))
        for (int o = -2; o <= 2; ++o) near->insert(i + o);
      if (x > th.v || y > th.s) init->insert(i);
    }
    for (int i : *init)
      for (int o = -1; o <= 2; ++o) {
        const int j = i + o;
        if (j < 0 || j > t) continue;
        if (o == 0 || at_v(j) > th.v_mean || at_s(t - j) > th.s_mean) all.insert(j);
      }
    const auto clip = [&](std::set<int>& x) {
      std::erase_if(x, [&](int i) { return i < kSinks || i > t - kRecent; });
    };
    clip(*init), clip(all);
    return all;
  }
};

// One KV head's growing KV in f32, attended to by brute force.
struct Scene {
  static constexpr int kB = 32, kD = 16, kG = 2;
  std::mt19937 random{11};
  std::vector<std::vector<std::byte>> store;
  std::vector<std::byte*> blocks;
  std::vector<float> q;
  std::vector<double> drift = std::vector<double>(size_t(kG) * kD, 0.0);
  int n = 0;
  float sink_gain = 0, steady = 0;  // steady: size of a part of the queries that never changes
  bool alike = false;               // all heads have the same query
  Row row;

  float* key(int i) { return reinterpret_cast<float*>(blocks[i / kB]) + i % kB * kD; }
  float* value(int i) { return key(i) + kB * kD; }
  void token() {
    std::normal_distribution<float> normal;
    if (n % kB == 0) {
      store.emplace_back(size_t(2) * kB * kD * sizeof(float));
      blocks.push_back(store.back().data());
    }
    for (int j = 0; j < kD; ++j) key(n)[j] = normal(random), value(n)[j] = normal(random);
    key(n)[0] = n < kSinks ? 10 : 0;  // along this axis a query attends only to the sinks
    ++n;
    // Queries change slowly, so that past weights predict later ones.
    q.resize(drift.size());
    for (size_t j = 0; j < drift.size(); ++j)
      q[j] = static_cast<float>(drift[j] = 0.97 * drift[j] + 0.2 * double(normal(random)));
    for (size_t j = 0; j < q.size(); ++j) q[j] += steady * std::cos(1.7f * static_cast<float>(j));
    for (int h = 0; h < kG; ++h) q[h * kD] = sink_gain;
    for (int h = 1; alike && h < kG; ++h) std::copy_n(q.begin(), kD, q.begin() + h * kD);
  }
  const Row& view(SelectorState* state) {
    row.q = q.data();
    row.g = kG, row.d = kD, row.block_size = kB;
    row.n_tokens = n;
    row.n_blocks = (n + kB - 1) / kB;
    row.n_full = row.n_blocks - 1;
    row.kernels = cpu::kernels(cpu::Isa::Scalar);
    row.blocks = blocks.data();
    row.tail = blocks.back();
    row.type = KvType::F32;
    row.state = state;
    return row;
  }
  StateShape shape() const {
    StateShape s;
    s.n_layers = s.n_kv_heads = 1;
    s.g = kG;
    s.layout = {kB, kD, KvType::F32};
    s.n_ctx = 4096;
    s.kernels = cpu::kernels(cpu::Isa::Scalar);
    return s;
  }
  double score(int h, int i) {
    double sum = 0;
    for (int j = 0; j < kD; ++j) sum += double(q[h * kD + j]) * key(i)[j];
    return sum;
  }
};

inline Selection settings(double top, double alpha, double bypass) {
  Selection s;
  s.selector = SelectorKind::LFPS;
  s.top_tokens = static_cast<float>(top);
  s.alpha = static_cast<float>(alpha);
  s.bypass = static_cast<float>(bypass);
  return s;
}

inline std::vector<int32_t> tokens_of(const Row& row, RowPlan& plan) {
  std::vector<int32_t> out;
  for (int p = 0; p < plan.size(); ++p)
    for (int t = 0; t < row.block_size; ++t)
      if (plan.mask(p) >> t & 1 && plan.at(p) * row.block_size + t < row.n_tokens)
        out.push_back(plan.at(p) * row.block_size + t);
  return out;
}

// Gives a state a prompt of the scene's next `n` tokens, with the queries of the last `last`
// tokens. Adds their weights to eager.
inline void prompt(Scene& scene, SelectorState& state, int n, int last, Eager* eager,
                   double decay) {
  std::vector<float> queries;
  std::vector<std::vector<double>> weights;
  const int used = std::min(last, 32);
  for (int i = 0; i < n; ++i) {
    scene.token();
    if (i < n - last) continue;
    const float up = std::sqrt(float(Scene::kD));
    for (float x : scene.q) queries.push_back(x * up);
    if (i < n - used) continue;
    std::vector<double> mean(scene.n - kSinks, 0.0);
    for (int h = 0; h < Scene::kG; ++h) {
      double sum = 0;
      for (int k = kSinks; k < scene.n; ++k) sum += std::exp(scene.score(h, k));
      for (int k = kSinks; k < scene.n; ++k)
        mean[k - kSinks] += std::exp(scene.score(h, k)) / sum / Scene::kG;
    }
    weights.push_back(mean);
  }
  if (eager) {
    *eager = Eager(scene.n);
    for (int r = 0; r < used; ++r)
      eager->add(weights[r], scene.n - used + r, 1 / (2 * (1 - decay) * used));
  }
  PromptEnd end;
  end.q = queries.data();
  end.stride = Scene::kG * Scene::kD;
  end.n = last;
  end.pos0 = scene.n - last;
  end.blocks = scene.blocks.data();
  state.end_prompt(end);
}

}  // namespace riffle::test::lfps
