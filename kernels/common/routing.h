// Chooses a row's experts in a mixture of experts: the scalar twin of the device's kernel
// (kernels/cuda/experts/route.cu).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace riffle {

struct Routed {
  int32_t expert = 0;
  float weight = 0;  // factor of the expert's output
};

// The way in which experts are chosen and weighed. By default that is a softmax of the scores.
struct Routing {
  // Each score's sigmoid takes the place of the softmax.
  bool sigmoid = false;
  // Experts are chosen by their sigmoid, or their softmax value, plus a bias, which is no part of
  // their weight.
  bool choice_bias = false;
  // Renormalised weights are divided by their sum plus sum_eps. All weights are then multiplied by
  // the scale; the caller does so after a softmax.
  float sum_eps = 0, scale = 1;
  // After a softmax with a choice_bias, renormalised weights are divided by at least this sum.
  float least_sum = 0;
  // The experts lie in n_groups groups of one size, at most 64. Groups are ranked by the sum of
  // their two best experts, and only experts of the best used_groups groups are chosen
  // (DeepSeek-V3, arXiv 2412.19437).
  int n_groups = 1, used_groups = 1;
};

// Returns a mask of the groups that are used. rank(e): the number by which expert e is chosen.
template <class Rank>
uint64_t choose_groups(const Rank& rank, int n, const Routing& routing) {
  if (routing.n_groups <= 1) return ~uint64_t{0};
  const int size = n / routing.n_groups;
  uint64_t chosen = 0;
  for (int i = 0; i < routing.used_groups; ++i) {
    int best = -1;
    float best_sum = 0;
    for (int g = 0; g < routing.n_groups; ++g) {
      if (chosen >> g & 1) continue;
      float first = rank(g * size), second = -INFINITY;
      for (int e = g * size + 1; e < (g + 1) * size; ++e) {
        const float r = rank(e);
        second = std::max(second, std::min(first, r));
        first = std::max(first, r);
      }
      if (best >= 0 && !(first + second > best_sum)) continue;
      best = g;
      best_sum = first + second;
    }
    chosen |= uint64_t{1} << best;
  }
  return chosen;
}

// Chooses the n_used experts with the largest value plus bias (null: none), in falling order, and
// sets their weights to their values. The first of equal experts wins, and NaN ranks last. Returns
// the sum of the weights.
inline float choose_biased(const float* values, const float* bias, int n, int n_used,
                           const Routing& routing, Routed* out) {
  const auto rank = [&](int e) { return bias ? values[e] + bias[e] : values[e]; };
  const auto before = [&](int a, int b) {
    const bool nan_a = std::isnan(rank(a)), nan_b = std::isnan(rank(b));
    if (nan_a || nan_b) return nan_a == nan_b ? a < b : nan_b;
    return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
  };
  const uint64_t groups = choose_groups(rank, n, routing);
  const int group_size = n / routing.n_groups;
  float sum = 0;
  for (int i = 0; i < n_used; ++i) {
    int best = -1;
    for (int e = 0; e < n; ++e) {
      if (routing.n_groups > 1 && !(groups >> e / group_size & 1)) continue;
      const bool taken = std::any_of(out, out + i, [e](const Routed& r) { return r.expert == e; });
      if (!taken && (best < 0 || before(e, best))) best = e;
    }
    out[i] = {best, values[best]};
    sum += out[i].weight;
  }
  return sum;
}

// Does the same as route_row for sigmoids: chooses the n_used experts with the largest sigmoid of
// their score plus bias (null: none). scores: replaced by their sigmoids.
inline void route_by_sigmoid(float* scores, const float* bias, int n, int n_used, bool renormalised,
                             const Routing& routing, Routed* out) {
  for (int e = 0; e < n; ++e) scores[e] = 1 / (1 + std::exp(-scores[e]));
  const float sum = choose_biased(scores, bias, n, n_used, routing, out);
  const float divisor = renormalised ? sum + routing.sum_eps : 1;
  for (int i = 0; i < n_used; ++i) out[i].weight = out[i].weight / divisor * routing.scale;
}

// Does the same as route_row, but chooses the n_used experts with the largest softmax value plus
// bias. scores: replaced by their softmax values.
inline void route_by_biased_softmax(float* scores, const float* bias, int n, int n_used,
                                    bool renormalised, const Routing& routing, Routed* out) {
  const float most = *std::max_element(scores, scores + n);
  float all = 0;
  for (int e = 0; e < n; ++e) {
    scores[e] = std::exp(scores[e] - most);
    all += scores[e];
  }
  for (int e = 0; e < n; ++e) scores[e] /= all;
  const float sum = choose_biased(scores, bias, n, n_used, routing, out);
  const float divisor = renormalised ? std::max(sum, routing.least_sum) : 1;
  for (int i = 0; i < n_used; ++i) out[i].weight /= divisor;
}

// Chooses the n_used of n experts with the largest scores, in order of falling score. The first of
// equal scores wins, and NaN ranks last. Weights are a softmax over all scores, or, if
// renormalised, over the scores of the chosen experts.
inline void route_row(const float* scores, int n, int n_used, bool renormalised, Routed* out) {
  const auto before = [&](int a, int b) {
    const bool nan_a = std::isnan(scores[a]), nan_b = std::isnan(scores[b]);
    if (nan_a || nan_b) return nan_a == nan_b ? a < b : nan_b;
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  for (int i = 0; i < n_used; ++i) {
    int best = -1;
    for (int e = 0; e < n; ++e) {
      const bool taken = std::any_of(out, out + i, [e](const Routed& r) { return r.expert == e; });
      if (!taken && (best < 0 || before(e, best))) best = e;
    }
    out[i].expert = best;
  }
  const float most = scores[out[0].expert];
  float sum = 0;
  for (int i = 0; i < n_used; ++i) {
    out[i].weight = std::exp(scores[out[i].expert] - most);
    sum += out[i].weight;
  }
  if (!renormalised) {
    sum = 0;
    for (int e = 0; e < n; ++e) sum += std::exp(scores[e] - most);
  }
  for (int i = 0; i < n_used; ++i) out[i].weight /= sum;
}

// Sorts entries by expert. Entry i is routed[i], one of the n_used choices of row i / n_used.
// Entries of expert e take the places [first[e], first[e + 1]), by rising i; first has one element
// more than there are experts. row: the row of each place. at: the place of each entry.
inline void group_by_expert(const Routed* routed, int64_t n_entries, int n_used,
                            std::vector<int64_t>& first, int32_t* row, int32_t* at) {
  std::fill(first.begin(), first.end(), 0);
  for (int64_t i = 0; i < n_entries; ++i) ++first[routed[i].expert + 1];
  for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
  for (int64_t i = 0; i < n_entries; ++i) {  // in this loop first[e] is expert e's next place
    const int64_t place = first[routed[i].expert]++;
    row[place] = static_cast<int32_t>(i / n_used);
    at[i] = static_cast<int32_t>(place);
  }
  std::move_backward(first.begin(), first.end() - 1, first.end());
  first[0] = 0;
}

}  // namespace riffle
