// Synthetic keys, values and queries of one KV head whose attention has the statistics of a
// recorded one (attention_stats.h), at any length and head_dim.
//
// A score is a sum of two parts, each with dimensions of its own:
//   content  keys follow one another with correlation key_run (so that important tokens lie in
//            runs); a query is sigma times a unit-variance vector, of which the share `steady`
//            never changes (the vertical pattern), and the rest is renewed, each step keeping
//            kDrift of it. Heads of a group share kShared of theirs. Log-normal weights.
//   place    keys and queries turn with their positions at RoPE's frequencies: `reach` at
//            distance 0, fading with the logarithm of the distance (the slash pattern).
// sigma, reach, key_run and steady are fitted (selector_bench --fit) to the weight in the top 2%,
// the weight of the last 16 tokens, the share of top tokens with a near neighbour, and the overlap
// from step to step.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace riffle::bench {

struct TraceParameters {
  double sigma = 2, reach = 4, key_run = 0.5, steady = 0.5;
};

class TraceLike {
 public:
  static constexpr int kPlaceDims = 32, kFittedTokens = 30000;
  static constexpr double kDrift = 0.2, kShared = 0.7;

  // Where more tokens share the weight, those at hand need a larger score for the same share: reach
  // grows with the log.
  TraceLike(const TraceParameters& p, int g, int d, int64_t n_tokens, uint64_t seed)
      : p_(p),
        g_(g),
        d_(d),
        reach_(p.reach + std::log(double(n_tokens) / kFittedTokens)),
        keys_(seed),
        queries_(seed + 1),
        content_(d - kPlaceDims),
        run_(content_),
        steady_(size_t(g + 1) * content_),
        loose_(steady_.size()) {
    for (float& x : run_) x = draw(keys_);
    for (float& x : steady_) x = draw(queries_);
    for (float& x : loose_) x = draw(queries_);
  }

  // The next position's key and value, from 0 on.
  void key(float* k, float* v) {
    const auto keep = static_cast<float>(p_.key_run), fresh = std::sqrt(1 - keep * keep);
    for (int j = 0; j < content_; ++j) k[j] = run_[j] = keep * run_[j] + fresh * draw(keys_);
    place(at_key_++, 1, k + content_);
    for (int j = 0; j < d_; ++j) v[j] = draw(keys_);
  }
  // A query at a position: [g][d], not scaled by 1/sqrt(d). Queries wander with every call.
  void query(int64_t position, float* q) {
    const double fresh = std::sqrt(1 - kDrift * kDrift);
    for (float& x : loose_) x = static_cast<float>(kDrift * x + fresh * draw(queries_));
    const double unit = p_.sigma * std::sqrt(double(d_) / content_);
    const double a = std::sqrt(p_.steady), b = std::sqrt(1 - p_.steady),
                 own = std::sqrt(1 - kShared), shared = std::sqrt(kShared);
    for (int h = 0; h < g_; ++h) {
      const float *s0 = steady_.data(), *l0 = loose_.data(), *s1 = s0 + (h + 1) * content_,
                  *l1 = l0 + (h + 1) * content_;
      for (int j = 0; j < content_; ++j)
        q[h * d_ + j] = static_cast<float>(
            unit * (shared * (a * s0[j] + b * l0[j]) + own * (a * s1[j] + b * l1[j])));
      place(position, static_cast<float>(reach_ * std::sqrt(double(d_)) / (kPlaceDims / 2)),
            q + h * d_ + content_);
    }
  }

 private:
  static float draw(std::mt19937_64& random) {  // uniform sums to nearly normal, and is quick
    const uint64_t x = random();
    const int sum =
        int(x & 0xffff) + int(x >> 16 & 0xffff) + int(x >> 32 & 0xffff) + int(x >> 48) - 2 * 0xffff;
    return static_cast<float>(sum) * static_cast<float>(1.0 / (65536 * 0.57735));
  }
  static void place(int64_t position, float scale, float* out) {
    for (int f = 0; f < kPlaceDims / 2; ++f) {
      const double angle = double(position) * std::pow(500000.0, -f / double(kPlaceDims / 2));
      out[2 * f] = scale * static_cast<float>(std::cos(angle));
      out[2 * f + 1] = scale * static_cast<float>(std::sin(angle));
    }
  }

  TraceParameters p_;
  int g_, d_;
  double reach_;
  std::mt19937_64 keys_, queries_;
  int content_;
  std::vector<float> run_, steady_, loose_;  // [content]; [1 + g][content], the shared part first
  int64_t at_key_ = 0;
};

}  // namespace riffle::bench
