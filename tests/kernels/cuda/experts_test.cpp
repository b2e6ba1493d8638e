// Mixtures of experts: the router against its scalar twin, the experts' products against float64.
#include "kernels/cuda/experts/experts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/common/routing.h"
#include "tests/kernels/cuda/linear.h"

using namespace riffle::cuda;
using riffle::route_by_biased_softmax;
using riffle::route_by_sigmoid;
using riffle::route_row;
using riffle::Routed;
using riffle::Routing;
using namespace riffle::test;

TEST_CASE("route chooses what the scalar twin chooses", "[cuda][experts]") {
  if (skip()) return;
  Rng g(1);
  for (const auto& [n, used] : {std::pair{1, 1}, {7, 3}, {33, 33}, {128, 8}, {1000, 10}})
    for (const bool renormalised : {true, false}) {
      INFO(n << " experts, " << used << " used, renormalised " << renormalised);
      const int rows = 9;
      std::vector<float> scores = random_floats(g, rows * n, 3);
      for (int e = 0; e < n; e += 2) scores[2 * n + e] = 1;  // equal ones
      scores[3 * n + n / 2] = std::numeric_limits<float>::quiet_NaN();
      const DeviceArray<float> on_device(scores);
      DeviceArray<Routed> routed(std::vector<Routed>(rows * used));
      Route r;
      r.scores = on_device.get();
      r.n = rows;
      r.n_experts = n;
      r.n_used = used;
      r.renormalised = renormalised;
      r.routed = routed.get();
      check_cuda(route(r, nullptr));
      const std::vector<Routed> got = routed.download();
      // With the experts' input, which the same kernel computes.
      for (const int64_t dim : {30, 512, 5000}) {
        const auto x = random_floats(g, rows * dim, 3), norm = random_floats(g, dim);
        const DeviceArray<float> xd(x), norm_d(norm);
        DeviceArray<float> normed(std::vector<float>(rows * dim)),
            want(std::vector<float>(rows * dim));
        DeviceArray<Routed> again(std::vector<Routed>(rows * used));
        r.routed = again.get();
        r.x = xd.get();
        r.norm = norm_d.get();
        r.dim = dim;
        r.eps = 1e-5f;
        r.normed = normed.get();
        check_cuda(route(r, nullptr));
        check_cuda(rmsnorm(r.x, r.norm, rows, dim, r.eps, want.get(), WType::F32, nullptr));
        CHECK(normed.download() == want.download());
        const std::vector<Routed> same = again.download();
        CHECK(std::memcmp(same.data(), got.data(), same.size() * sizeof(Routed)) == 0);
      }
      // Gemma 4 scales scores, and the experts' weights.
      const std::vector<float> scales = random_floats(g, n);
      const DeviceArray<float> scales_d(scales);
      DeviceArray<Routed> scaled(std::vector<Routed>(rows * used));
      r.normed = nullptr;
      r.score_scale = 0.5f;
      r.expert_scales = scales_d.get();
      r.routing.scale = 1.5f;
      r.routed = scaled.get();
      check_cuda(route(r, nullptr));
      const std::vector<Routed> of_scaled = scaled.download();
      for (int i = 0; i < rows; ++i) {
        std::vector<float> halves(scores.begin() + i * n, scores.begin() + (i + 1) * n);
        for (float& s : halves) s *= 0.5f;
        std::vector<Routed> want(used);
        route_row(halves.data(), n, used, renormalised, want.data());
        for (int k = 0; k < used; ++k) {
          const Routed& mine = of_scaled[i * used + k];
          CHECK(mine.expert == want[k].expert);
          if (i != 3)
            CHECK(std::fabs(mine.weight - want[k].weight * scales[want[k].expert] * 1.5f) <= 2e-6);
        }
      }
      for (int i = 0; i < rows; ++i) {
        std::vector<Routed> want(used);
        route_row(&scores[i * n], n, used, renormalised, want.data());
        for (int k = 0; k < used; ++k) {
          CHECK(got[i * used + k].expert == want[k].expert);
          if (i != 3) CHECK(std::fabs(got[i * used + k].weight - want[k].weight) <= 1e-6);
        }
      }
    }
}

// Exponentials of the two devices differ in the last bit, so experts that differ by as much may
// change places; equal ones may not.
TEST_CASE("route by sigmoid chooses what the scalar twin chooses", "[cuda][experts]") {
  if (skip()) return;
  Rng g(6);
  const int rows = 9;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = HUGE_VALF;
  for (const auto& [n, used] :
       {std::pair{1, 1}, {7, 3}, {33, 33}, {64, 4}, {128, 6}, {129, 8}, {512, 10}, {1000, 10}})
    for (const bool renormalised : {true, false})
      for (const bool biased : {true, false}) {
        INFO(n << " experts, " << used << " used, renormalised " << renormalised << ", biased "
               << biased);
        std::vector<float> scores = random_floats(g, rows * n, 3), bias = random_floats(g, n);
        for (int e = 0; e < n; e += 2) scores[2 * n + e] = 1, bias[e] = 0.25f;  // equal ones
        scores[3 * n + n / 2] = nan;
        for (int e = 0; e < n; ++e) scores[4 * n + e] = 40 + uniform(g);  // all sigmoids are 1
        scores[5 * n] = infinity, scores[5 * n + n - 1] = -infinity;
        for (int e = 0; e < n; ++e) scores[6 * n + e] = nan;
        const Routing routing{true, biased, 1e-20f, 2.5f};
        const DeviceArray<float> on_device(scores), bias_d(bias);
        DeviceArray<Routed> routed(std::vector<Routed>(rows * used));
        Route r;
        r.scores = on_device.get();
        r.n = rows;
        r.n_experts = n;
        r.n_used = used;
        r.renormalised = renormalised;
        r.routing = routing;
        r.choice_bias = biased ? bias_d.get() : nullptr;
        r.routed = routed.get();
        check_cuda(route(r, nullptr));
        const std::vector<Routed> got = routed.download();
        const int64_t dim = 512;
        const DeviceArray<float> x(random_floats(g, rows * dim)), norm(random_floats(g, dim));
        DeviceArray<float> normed(static_cast<size_t>(rows * dim));
        routed.poison();
        r.x = x.get(), r.norm = norm.get(), r.dim = dim, r.eps = 1e-5f, r.normed = normed.get();
        check_cuda(route(r, nullptr));
        const std::vector<Routed> again = routed.download();
        CHECK(std::memcmp(again.data(), got.data(), got.size() * sizeof(Routed)) == 0);
        for (int i = 0; i < rows; ++i) {
          std::vector<float> s(scores.begin() + i * n, scores.begin() + (i + 1) * n);
          std::vector<Routed> want(used);
          route_by_sigmoid(s.data(), biased ? bias.data() : nullptr, n, used, renormalised, routing,
                           want.data());
          const auto rank = [&](int e) { return biased ? s[e] + bias[e] : s[e]; };
          int wrong = 0;
          for (int k = 0; k < used; ++k) {
            const Routed &mine = got[i * used + k], &other = want[k];
            REQUIRE((mine.expert >= 0 && mine.expert < n));
            const float apart = std::fabs(rank(mine.expert) - rank(other.expert));
            wrong += mine.expert != other.expert && !(apart > 0 && apart <= 1e-6f);
            const bool same_nan = std::isnan(mine.weight) && std::isnan(other.weight);
            wrong += !same_nan && !(std::fabs(mine.weight - other.weight) <= 3e-6f);
          }
          INFO("row " << i);
          CHECK(wrong == 0);
        }
      }
}

// The same for softmax values plus a bias and for groups. There are no NaNs: in a group they may
// count for more here than they do on the CPU.
TEST_CASE("route by biased softmax, and in groups, chooses what the scalar twin chooses",
          "[cuda][experts]") {
  if (skip()) return;
  Rng g(7);
  const int rows = 9;
  struct Shape {
    int n, used, groups, used_groups;
  };
  for (const auto& [n, used, groups, used_groups] : {Shape{1, 1, 1, 1},
                                                     {7, 3, 1, 1},
                                                     {64, 6, 1, 1},
                                                     {64, 6, 8, 3},
                                                     {64, 4, 32, 2},
                                                     {128, 8, 64, 4},
                                                     {256, 8, 8, 4},
                                                     {1000, 10, 4, 1}})
    for (const bool renormalised : {true, false})
      for (const bool sigmoid : {true, false}) {
        INFO(n << " experts in " << groups << " groups, " << used << " used, renormalised "
               << renormalised << ", sigmoid " << sigmoid);
        std::vector<float> scores = random_floats(g, rows * n, 3),
                           bias = random_floats(g, n, sigmoid ? 1 : 0.02f);
        for (int e = 0; e < n; e += 2) scores[2 * n + e] = 1, bias[e] = 0.01f;  // equal ones
        for (int e = 0; e < n; ++e) scores[4 * n + e] = sigmoid ? 40 : 0;       // all are equal
        Routing routing;
        routing.sigmoid = sigmoid;
        routing.choice_bias = true;
        routing.least_sum = 1e-12f;
        routing.scale = 2.5f;
        routing.n_groups = groups;
        routing.used_groups = used_groups;
        const DeviceArray<float> on_device(scores), bias_d(bias);
        DeviceArray<Routed> routed(std::vector<Routed>(rows * used));
        Route r;
        r.scores = on_device.get();
        r.n = rows;
        r.n_experts = n;
        r.n_used = used;
        r.renormalised = renormalised;
        r.routing = routing;
        r.choice_bias = bias_d.get();
        r.routed = routed.get();
        check_cuda(route(r, nullptr));
        const std::vector<Routed> got = routed.download();
        for (int i = 0; i < rows; ++i) {
          std::vector<float> s(scores.begin() + i * n, scores.begin() + (i + 1) * n);
          std::vector<Routed> want(used);
          if (sigmoid)
            route_by_sigmoid(s.data(), bias.data(), n, used, renormalised, routing, want.data());
          else
            route_by_biased_softmax(s.data(), bias.data(), n, used, renormalised, routing,
                                    want.data());
          int wrong = 0;
          for (int k = 0; k < used; ++k) {
            const Routed &mine = got[i * used + k], &other = want[k];
            REQUIRE((mine.expert >= 0 && mine.expert < n));
            const float apart = std::fabs(s[mine.expert] + bias[mine.expert] - s[other.expert] -
                                          bias[other.expert]);
            wrong += mine.expert != other.expert && !(apart > 0 && apart <= 1e-6f);
            const float weight = sigmoid ? other.weight : other.weight * routing.scale;
            wrong += !(std::fabs(mine.weight - weight) <= 6e-6f);
          }
          INFO("row " << i);
          CHECK(wrong == 0);
        }
      }
}

TEST_CASE("group puts the entries of an expert together", "[cuda][experts]") {
  if (skip()) return;
  Rng g(3);
  for (const int n : {1, 2, 8, 31, 256, 257, 700})
    for (const int experts : {1, 5, 128}) {
      INFO(n << " entries, " << experts << " experts");
      std::vector<Routed> routed(n);
      for (Routed& r : routed) r.expert = static_cast<int32_t>(g() % experts);
      const DeviceArray<Routed> on_device(routed);
      DeviceArray<Place> places(std::vector<Place>(n, Place{-1, -1}));
      check_cuda(group(on_device.get(), n, places.get(), nullptr));
      const std::vector<Place> got = places.download();
      std::vector<int32_t> order(n);
      for (int i = 0; i < n; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return routed[a].expert < routed[b].expert; });
      int wrong = 0;
      for (int p = 0; p < n; ++p) {
        const int32_t expert = routed[order[p]].expert;
        const auto is_expert = [&](int32_t e) { return routed[e].expert == expert; };
        const auto first = std::find_if(order.begin(), order.end(), is_expert) - order.begin(),
                   total = std::count_if(order.begin(), order.end(), is_expert);
        const int64_t nth = p - first;
        wrong += got[p].entry != order[p];
        wrong += got[p].count != (nth % kGroup == 0 ? std::min<int64_t>(kGroup, total - nth) : 0);
      }
      CHECK(wrong == 0);
    }
}

namespace {

// Rows x, each sent to `used` experts, and what they add to y.
struct Scene {
  int n, used, experts;
  int64_t dim, hidden;
  Weights w1, w3, w2;
  std::vector<float> x, before;
  std::vector<Routed> routed;
  Gate gate = Gate::Silu;
  bool has_gate = true;           // without: relu squared
  std::vector<float> b1, b3, b2;  // none, or [experts][hidden] twice, [experts][dim]

  // gpt-oss; large enough that some values reach the limit.
  void clamp_and_bias(Rng& g) {
    gate = Gate::ClampedSilu;
    b1 = random_floats(g, experts * hidden, 5);
    b3 = random_floats(g, experts * hidden, 5);
    b2 = random_floats(g, experts * dim, 5);
  }
  double gated(double g, double up) const {
    if (!has_gate) return up > 0 ? up * up : 0;
    if (gate == Gate::Silu) return silu(g) * up;
    g = std::min(g, 7.0);
    return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up, -7.0, 7.0) + 1);
  }
  static double at(const std::vector<float>& bias, int64_t i) { return bias.empty() ? 0 : bias[i]; }

  Scene(Rng& g, WType type, int n_rows, int64_t d, int64_t h)
      : n(n_rows),
        used(2),
        experts(5),
        dim(d),
        hidden(h),
        w1(g, type, experts * h, d),
        w3(g, type, experts * h, d),
        w2(g, type, experts * d, h),
        x(random_floats(g, n * d)),
        before(random_floats(g, n * d)) {
    for (int i = 0; i < n; ++i) {  // some experts have more rows than a group, some have one
      const auto first = static_cast<int32_t>(i % 3 == 2 ? i % experts : 4);
      routed.push_back({first, 0.75f / static_cast<float>(1 + i)});
      routed.push_back({(first + 1 + i % 4) % experts, 0.25f});
    }
  }

  struct Result {
    std::vector<float> between, y;
  };
  // Computes rows [from, from + count).
  Result run(int from, int count, bool grouped) const {
    const std::vector<float> some_x(x.begin() + from * dim, x.begin() + (from + count) * dim),
        some_y(before.begin() + from * dim, before.begin() + (from + count) * dim);
    const std::vector<Routed> some(routed.begin() + from * used,
                                   routed.begin() + (from + count) * used);
    const DeviceArray<float> xd(some_x);
    const DeviceArray<Routed> rd(some);
    const int64_t entries = int64_t(count) * used;
    DeviceArray<Place> places{static_cast<size_t>(entries)};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    DeviceArray<float> between(std::vector<float>(entries * hidden, nan)),
        parts(std::vector<float>(entries * dim, nan)), y(some_y);
    ExpertsStep step;
    step.x = xd.get(), step.n = count, step.n_used = used, step.routed = rd.get();
    if (has_gate) step.w1 = w1.matrix();
    step.w3 = w3.matrix(), step.w2 = w2.matrix();
    step.hidden = hidden, step.between = between.get(), step.parts = parts.get();
    const DeviceArray<float> b1_d(b1), b3_d(b3), b2_d(b2);
    step.b1 = b1_d.get(), step.b3 = b3_d.get(), step.b2 = b2_d.get(), step.gate = gate;
    if (grouped) {
      check_cuda(group(rd.get(), entries, places.get(), nullptr));
      step.places = places.get();
    }
    check_cuda(experts_up(step, nullptr));
    check_cuda(experts_down(step, nullptr));
    check_cuda(
        combine_rows(parts.get(), rd.get(), nullptr, count, used, dim, y.get(), false, nullptr));
    return {between.download(), y.download()};
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("experts of a step against float64, every type", "[cuda][experts]") {
  if (skip()) return;
  Rng g(2);
  for (const WType type : kTypes)
    for (const int size : {0, 1, 2}) {
      if (size == 2 && type > WType::BF16 && static_cast<int>(type) % 2 == 0) continue;
      // Rows of quantised types are whole blocks; 8, 16 and 32 lanes go through one.
      const int64_t dim = type > WType::BF16 ? std::array{512, 1280, 2560}[size]
                                             : std::array{328, 75, 600}[size],
                    hidden = type > WType::BF16 ? std::array{256, 256, 1024}[size]
                                                : std::array{40, 21, 33}[size];
      INFO(name_of(type) << ", rows of " << dim << " and " << hidden);
      for (const int kind : {0, 1, 2, 3}) {
        if (kind > 1 && size == 2) continue;  // time
        const bool biased = kind % 2 == 1;
        INFO("with biases: " << biased << ", with a gate: " << (kind < 2));
        Scene s(g, type, 11, dim, hidden);
        if (biased) s.clamp_and_bias(g);
        s.has_gate = kind < 2;
        const Scene::Result got = s.run(0, s.n, false);
        int wrong = 0;
        for (int entry = 0; entry < s.n * s.used; ++entry)
          for (int64_t r = 0; r < hidden; ++r) {
            const int64_t row = s.routed[entry].expert * hidden + r;
            double a = 0, b = 0;
            const float* in = &s.x[entry / s.used * dim];
            const double gate = reference(s.w1, row, in, nullptr, 0, &a) + s.at(s.b1, row),
                         up = reference(s.w3, row, in, nullptr, 0, &b) + s.at(s.b3, row),
                         want = s.gated(gate, up);
            if (!s.has_gate) a = b;  // W3's product takes the place of both
            a += std::fabs(s.at(s.b1, row)), b += std::fabs(s.at(s.b3, row)) + biased;
            wrong += !(std::fabs(got.between[entry * hidden + r] - want) <=
                       2e-5 * (a * (std::fabs(up) + biased) +
                               b * std::fabs(s.has_gate ? gate : up) + a * b * 1e-3));
          }
        CHECK(wrong == 0);
        for (int i = 0; i < s.n; ++i)
          for (int64_t r = 0; r < dim; ++r) {
            double want = s.before[i * dim + r], size = std::fabs(want), part = 0;
            for (int k = 0; k < s.used; ++k) {
              const Routed& to = s.routed[i * s.used + k];
              const float* between = &got.between[(i * s.used + k) * hidden];
              const double bias = s.at(s.b2, to.expert * dim + r);
              want += to.weight *
                      (reference(s.w2, to.expert * dim + r, between, nullptr, 0, &part) + bias);
              size += to.weight * (part + std::fabs(bias));
            }
            wrong += !(std::fabs(got.y[i * dim + r] - want) <= 1e-5 * size);
          }
        CHECK(wrong == 0);
        // Rows that share the reads of an expert, and a row alone, have the same bits.
        const Scene::Result grouped = s.run(0, s.n, true);
        CHECK(same(grouped.between, got.between));
        CHECK(same(grouped.y, got.y));
        for (const int i : {0, 4, 8}) {
          const std::vector<float> alone = s.run(i, 1, false).y;
          CHECK(same(alone, {got.y.begin() + i * dim, got.y.begin() + (i + 1) * dim}));
        }
      }
    }
}

TEST_CASE("rows of a prompt go to their experts and back", "[cuda][experts]") {
  if (skip()) return;
  Rng g(4);
  const int64_t n = 6, dim = 77;
  const int used = 3;
  const std::vector<float> x = random_floats(g, n * dim), y = random_floats(g, n * used * dim);
  std::vector<int32_t> from(n * used), at(n * used);
  std::vector<Routed> routed(n * used);
  for (int i = 0; i < n * used; ++i) {
    from[i] = static_cast<int32_t>(i * 5 % n);
    at[i] = static_cast<int32_t>((i * 7 + 2) % (n * used));
    routed[i] = {0, uniform(g)};
  }
  const DeviceArray<float> xd(x), yd(y);
  const DeviceArray<int32_t> from_d(from), at_d(at);
  const DeviceArray<Routed> routed_d(routed);
  DeviceArray<float> out(x.size() * used);
  check_cuda(gather_rows(xd.get(), from_d.get(), n * used, dim, out.get(), WType::F32, nullptr));
  const std::vector<float> gathered = out.download();
  int wrong = 0;
  for (int64_t j = 0; j < n * used; ++j)
    for (int64_t c = 0; c < dim; ++c) wrong += gathered[j * dim + c] != x[from[j] * dim + c];
  CHECK(wrong == 0);
  for (const bool ordered : {true, false}) {
    DeviceArray<float> sum(x);
    check_cuda(combine_rows(yd.get(), routed_d.get(), ordered ? at_d.get() : nullptr, n, used, dim,
                            sum.get(), false, nullptr));
    const std::vector<float> got = sum.download();
    DeviceArray<float> only(x.size());
    only.poison();
    check_cuda(combine_rows(yd.get(), routed_d.get(), ordered ? at_d.get() : nullptr, n, used, dim,
                            only.get(), false, nullptr, {}, false));
    const std::vector<float> sums = only.download();
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < dim; ++c) {
        float want = 0;
        for (int64_t k = i * used; k < (i + 1) * used; ++k)
          want = std::fma(routed[k].weight, y[(ordered ? at[k] : k) * dim + c], want);
        wrong += got[i * dim + c] != x[i * dim + c] + want;
        wrong += sums[i * dim + c] != want;
      }
    CHECK(wrong == 0);
    // The shared expert's output comes on top, with and without its share, times a factor.
    constexpr float kScale = 0.75f;
    const std::vector<float> shared = random_floats(g, n * dim);
    const std::vector<float> shares = {0, 1.5f, -2, 200, -200, HUGE_VALF};
    const DeviceArray<float> shared_d(shared), shares_d(shares);
    for (const bool gated : {true, false}) {
      DeviceArray<float> both(x);
      check_cuda(combine_rows(yd.get(), routed_d.get(), ordered ? at_d.get() : nullptr, n, used,
                              dim, both.get(), false, nullptr,
                              {shared_d.get(), gated ? shares_d.get() : nullptr, kScale}));
      const std::vector<float> with = both.download();
      for (int64_t i = 0; i < n * dim; ++i) {
        const double share = gated ? 1 / (1 + std::exp(-double(shares[i / dim]))) : 1,
                     want = got[i] + kScale * share * shared[i];
        wrong += !(std::fabs(with[i] - want) <= 2e-6 * (1 + std::fabs(want)));
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("rows of a prompt times their experts' matrices, against float64", "[cuda][experts]") {
  if (skip()) return;
  const DeviceLimits limits = device_limits();
  Rng g(14);
  // Rows of each expert: tiles that are full, have one row or lack one, and experts without rows.
  const std::vector<int64_t> counts = {0, 1, 127, 0, 128, 129, 17, 300, 0};
  const int n_experts = static_cast<int>(counts.size());
  std::vector<ExpertTile> tiles;
  std::vector<int> expert_of, first_tile, used;
  for (int e = 0; e < n_experts; ++e) {
    first_tile.push_back(static_cast<int>(tiles.size()));
    for (int64_t row = 0; row < counts[e]; row += kExpertTileRows)
      tiles.push_back({e, static_cast<int32_t>(used.size()),
                       static_cast<int32_t>(expert_of.size() + row),
                       static_cast<int32_t>(std::min<int64_t>(kExpertTileRows, counts[e] - row))});
    if (counts[e] > 0) used.push_back(e);
    expert_of.insert(expert_of.end(), counts[e], e);
  }
  first_tile.push_back(static_cast<int>(tiles.size()));
  const auto n = static_cast<int64_t>(expert_of.size());
  CHECK(static_cast<int64_t>(tiles.size()) <= most_expert_tiles(n, n_experts));
  const DeviceArray<ExpertTile> tiles_d(tiles);
  for (const WType type : {WType::F16, WType::BF16})
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{130, 72}, {2, 8}, {64, 200}, {384, 704}, {258, 64}}) {
      REQUIRE(prompt_product_supported(type, rows, cols, limits) == (limits.compute >= 80));
      if (limits.compute < 80) continue;
      const Weights w(g, type, n_experts * rows, cols), a(g, type, n, cols);
      const std::vector<float> bias = random_floats(g, n_experts * rows);
      const DeviceArray<float> bias_d(bias);
      // The matrices of the experts that have rows, side by side.
      DeviceArray<uint16_t> compact(used.size() * rows * cols);
      const auto size = static_cast<size_t>(rows * cols) * sizeof(uint16_t);
      for (size_t i = 0; i < used.size(); ++i)
        check_cuda(cudaMemcpy(compact.get() + i * rows * cols,
                              rows_of(w.matrix(), used[i] * rows, rows).data, size,
                              cudaMemcpyDeviceToDevice));
      for (const WType out_type : {WType::F32, WType::F16, WType::BF16})
        for (const int trial : {0, 1, 2, 3}) {
          const bool biased = trial % 2 == 1, by_mma = trial / 2 == 1;
          INFO(name_of(type) << ", " << rows << " x " << cols << " to " << name_of(out_type)
                             << ", with biases: " << biased << ", by mma.sync: " << by_mma);
          // A device of compute capability 9.0 can run the kernel of older ones too.
          DeviceLimits used_limits = limits;
          if (by_mma) used_limits.compute = std::min(limits.compute, 89);
          DeviceArray<uint8_t> out(n * rows * bytes_of(out_type));
          out.poison();
          PromptProduct p;
          p.a = a.matrix().data, p.rows = rows, p.bias = biased ? bias_d.get() : nullptr;
          p.out = out.get(), p.out_type = out_type;
          // First from the matrices of all experts, then, in a second launch, from some of those
          // that have rows.
          for (const int begin : {0, 3}) {
            const int first = begin == 0 ? 0 : used[begin];
            p.first_used = begin == 0 ? -1 : begin;
            p.w = begin == 0 ? w.matrix()
                             : Matrix{type, static_cast<int64_t>(used.size() - begin) * rows, cols,
                                      compact.get() + begin * rows * cols};
            p.tiles = tiles_d.get() + first_tile[first];
            p.n_tiles =
                (begin == 0 ? first_tile[used[3]] : first_tile[n_experts]) - first_tile[first];
            check_cuda(prompt_product(p, used_limits, nullptr));
          }
          const std::vector<uint8_t> got = out.download();
          const double rounding = out_type == WType::F32 ? 0 : out_type == WType::F16 ? 5e-4 : 4e-3;
          int wrong = 0;
          for (int64_t i = 0; i < n; ++i)
            for (int64_t r = 0; r < rows; ++r) {
              double size = 0;
              const int64_t row = expert_of[i] * rows + r;
              const double want = reference(w, row, &a.values[i * cols], nullptr, 0, &size) +
                                  (biased ? bias[row] : 0);
              wrong += !(std::fabs(element_of(got.data(), out_type, i * rows + r) - want) <=
                         4e-6 * (size + 1) + rounding * std::fabs(want) + 1e-7);
            }
          CHECK(wrong == 0);
        }
    }
  CHECK(!prompt_product_supported(WType::F32, 64, 64, limits));
  CHECK(!prompt_product_supported(WType::F16, 63, 64, limits));
  CHECK(!prompt_product_supported(WType::F16, 64, 60, limits));
}

TEST_CASE("a stream waits for the host and uses its result", "[cuda][experts]") {
  if (skip()) return;
  constexpr int kDim = 3000, kCalls = 100;
  Rng g(5);
  const std::vector<float> x = random_floats(g, kDim);
  DeviceArray<float> there(x);
  const DeviceArray<int32_t> row(std::vector<int32_t>{0});
  float* shared = nullptr;  // memory that both see: kDim values, then the two numbers
  const size_t bytes = (kDim + 64) * sizeof(float);
  check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&shared), bytes, cudaHostAllocDefault));
  std::memset(shared, 0, bytes);
  auto* const numbers = reinterpret_cast<uint32_t*>(shared + kDim);
  for (int call = 0; call < kCalls; ++call) {
    check_cuda(gather_rows(there.get(), row.get(), 1, kDim, shared, WType::F32, nullptr));
    check_cuda(call_host({numbers, numbers + 32}, nullptr));
    check_cuda(gather_rows(shared, row.get(), 1, kDim, there.get(), WType::F32, nullptr));
  }
  std::atomic_ref<uint32_t> asked(numbers[0]), answered(numbers[32]);
  for (uint32_t call = 1; call <= kCalls; ++call) {
    while (asked.load(std::memory_order_acquire) != call) {
    }
    for (int i = 0; i < kDim; ++i) shared[i] += 1;
    answered.store(call, std::memory_order_release);
  }
  const std::vector<float> got = there.download();
  int wrong = 0;
  for (int i = 0; i < kDim; ++i) {
    float want = x[i];
    for (int call = 0; call < kCalls; ++call) want += 1;
    wrong += got[i] != want;
  }
  CHECK(wrong == 0);
  check_cuda(cudaFreeHost(shared));
}
