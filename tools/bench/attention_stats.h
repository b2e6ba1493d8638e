// Statistics of attention weights: the few numbers that tell how much a selector can leave out and
// how much of its work the next step can use again. Used by attention_stats.cpp, which records
// them, and selector_bench.cpp, which imitates them.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

namespace riffle::bench {

constexpr int kSinkTokens = 4, kRecentTokens = 16;
constexpr std::array<double, 6> kShares = {0.001, 0.005, 0.01, 0.02, 0.05, 0.1};

// Means over steps, and over the query heads of a KV head where it says so.
struct AttentionStats {
  double sinks = 0, recent = 0;  // weight of the first 4 and of the last 16 tokens; query heads
  std::array<double, kShares.size()>
      top{};           // weight in the top share of the other tokens, of their weight; query heads
  double overlap = 0;  // overlap of a group's top 2% (by mean weight; sinks and the last 16 left
                       // out) from one step to the next
  double seen = 0;     // share of the group's top 2% that was in it in any of the 20 steps before
  double near = 0;     // share of the group's top 2% with another one at most 2 tokens away
};

// Collects the steps of one KV head.
class StatsOf {
 public:
  // weights: [g][n], each row sums to 1.
  void step(const std::vector<std::vector<float>>& weights) {
    const auto n = static_cast<int64_t>(weights[0].size());
    const int64_t first = kSinkTokens, last = n - kRecentTokens;
    std::vector<float> mean(last - first, 0.f), sorted;
    for (const std::vector<float>& w : weights) {
      double sinks = 0, recent = 0, rest = 0;
      for (int64_t i = 0; i < first; ++i) sinks += w[i];
      for (int64_t i = last; i < n; ++i) recent += w[i];
      sorted.assign(w.begin() + first, w.begin() + last);
      for (int64_t i = 0; i < last - first; ++i) mean[i] += w[first + i];
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (float x : sorted) rest += x;
      sum_.sinks += sinks / double(weights.size());
      sum_.recent += recent / double(weights.size());
      double so_far = 0;
      size_t at = 0;
      for (size_t k = 0; k < kShares.size(); ++k) {
        for (const auto end = static_cast<size_t>(kShares[k] * double(sorted.size())); at < end;
             ++at)
          so_far += sorted[at];
        sum_.top[k] += so_far / std::max(rest, 1e-30) / double(weights.size());
      }
    }
    const int64_t k = std::max<int64_t>(1, static_cast<int64_t>(0.02 * double(last - first)));
    std::vector<int32_t> ids(mean.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::nth_element(ids.begin(), ids.begin() + k, ids.end(),
                     [&](int32_t a, int32_t b) { return mean[a] > mean[b]; });
    ids.resize(k);
    std::sort(ids.begin(), ids.end());
    if (seen_at_.size() < mean.size()) seen_at_.resize(mean.size() + 4096, -1000000);
    if (steps_ > 0) {
      double before = 0, seen = 0, near = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        before += seen_at_[ids[i]] == steps_ - 1;
        seen += seen_at_[ids[i]] >= steps_ - 20;
        near +=
            (i > 0 && ids[i] - ids[i - 1] <= 2) || (i + 1 < ids.size() && ids[i + 1] - ids[i] <= 2);
      }
      sum_.overlap += before / double(k);
      sum_.seen += seen / double(k);
      sum_.near += near / double(k);
    }
    for (int32_t i : ids) seen_at_[i] = steps_;
    ++steps_;
  }

  AttentionStats mean() const {
    AttentionStats out = sum_;
    const double n = std::max(steps_, 1), pairs = std::max(steps_ - 1, 1);
    for (double* x : {&out.sinks, &out.recent}) *x /= n;
    for (double& x : out.top) x /= n;
    for (double* x : {&out.overlap, &out.seen, &out.near}) *x /= pairs;
    return out;
  }

 private:
  AttentionStats sum_;
  std::vector<int> seen_at_;
  int steps_ = 0;
};

inline void print_header() {
  std::printf("%-14s %6s %6s |", "", "sinks", "recent");
  for (double s : kShares) std::printf(" %5.1f%%", 100 * s);
  std::printf(" | %7s %6s %6s\n", "overlap", "seen", "near");
}
inline void print(const char* name, const AttentionStats& s) {
  std::printf("%-14s %6.3f %6.3f |", name, s.sinks, s.recent);
  for (double t : s.top) std::printf(" %6.3f", t);
  std::printf(" | %7.3f %6.3f %6.3f\n", s.overlap, s.seen, s.near);
}

inline AttentionStats mean_of(const std::vector<AttentionStats>& all) {
  AttentionStats out;
  const double n = static_cast<double>(all.size());
  for (const AttentionStats& s : all) {
    out.sinks += s.sinks / n;
    out.recent += s.recent / n;
    for (size_t i = 0; i < out.top.size(); ++i) out.top[i] += s.top[i] / n;
    out.overlap += s.overlap / n;
    out.seen += s.seen / n;
    out.near += s.near / n;
  }
  return out;
}

}  // namespace riffle::bench
