// Checks of decode attention on the device against selectors of the CPU (for order and stopping)
// and a float64 softmax (for values).
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "kernels/cuda/attend/decode_parts.h"
#include "tests/kernels/cuda/decode_scene.h"

namespace riffle::test {

inline constexpr float kEpsilon = 0.9f;

// The selector that the device has to follow.
inline std::unique_ptr<Selector> selector_for(const ReadRule& r, double) {
  Selection s;
  s.selector = SelectorKind::DENSE;
  s.sink_blocks = r.sink_blocks;
  s.recent_blocks = r.recent_blocks;
  return make_selector(s);
}
// The difference of scores up to which two blocks may change places.
inline double tie_of(const ReadRule&, double) { return 1e-4; }

struct Download {
  std::vector<float> out, lse;
  std::vector<cuda::RowResult> results;
  std::vector<int32_t> order;
  template <class Rule>
  explicit Download(const SceneDeviceOf<Rule>& d)
      : out(d.out.download()),
        lse(d.lse.download()),
        results(d.results.download()),
        order(d.order.download()) {}
};

// One row of a result: the order is the CPU's up to near ties, the stop is where the CPU's test
// (with a tolerance) has it, and the values are the exact softmax over what was read.
template <class Rule>
void check_row(const SceneOf<Rule>& scene, const Download& got, int i, int head, double epsilon,
               double tolerance) {
  const SceneSequence& s = scene.sequences[i];
  const SceneShape& shape = scene.shape;
  const int row_index = i * shape.n_kv_heads + head, g = shape.g;
  const cuda::RowResult& result = got.results[row_index];
  const int32_t* order = got.order.data() + row_index * scene.max_blocks;
  INFO("sequence " << i << " tokens " << s.n_tokens << " head " << head << " n_read "
                   << result.n_read);

  std::vector<float> q_row;
  const Row row = scene.row(s, head, q_row);
  const auto selector = selector_for(scene.ranked, epsilon);
  RowPlan plan;
  selector->begin(row, plan);
  REQUIRE(result.n_blocks == s.n_blocks);
  REQUIRE(result.n_read >= std::min(plan.n_forced(), plan.size()));
  REQUIRE(result.n_read <= plan.size());

  std::set<int> seen;
  for (int p = 0; p < result.n_read; ++p) {
    REQUIRE(order[p] >= 0);
    REQUIRE(order[p] < s.n_blocks);
    REQUIRE(seen.insert(order[p]).second);
    if (order[p] == plan.at(p)) continue;
    INFO("position " << p << " block " << order[p] << " expected " << plan.at(p));
    REQUIRE(p >= plan.n_forced());
    const double a = plan.scores[order[p] - plan.first_candidate()],
                 b = plan.scores[plan.at(p) - plan.first_candidate()];
    REQUIRE(std::fabs(a - b) <= tie_of(scene.ranked, a));
  }

  // The stop: a plan that is a little too easily satisfied, and one a little too hard to.
  using Exact = typename SceneOf<Rule>::Exact;
  std::vector<Exact> exact(g);
  if (selector->microbatch() == 0) {
    REQUIRE(result.n_read == plan.size());
    for (int p = 0; p < result.n_read; ++p)
      for (int h = 0; h < g; ++h) scene.attend(s, head, h, order[p], exact[h]);
  } else {
    constexpr float kMargin = 3e-4f;
    RowPlan easy, hard;
    selector->begin(row, easy);
    selector->begin(row, hard);
    int p = 0;
    for (; p < plan.n_forced(); ++p)
      for (int h = 0; h < g; ++h) scene.attend(s, head, h, order[p], exact[h]);
    while (p < result.n_read) {
      const int n = std::min(selector->microbatch(), plan.size() - p);
      INFO("position " << p);
      REQUIRE(p + n <= result.n_read);  // whole microbatches
      std::vector<float> easy_l, hard_l, easy_blocks, hard_blocks;
      for (int j = 0; j < n; ++j, ++p)
        for (int h = 0; h < g; ++h) {
          Exact one;
          scene.attend(s, head, h, order[p], one);
          scene.attend(s, head, h, order[p], exact[h]);
          easy_blocks.push_back(float(one.lse()) - kMargin);
          hard_blocks.push_back(float(one.lse()) + kMargin);
        }
      for (int h = 0; h < g; ++h) {
        easy_l.push_back(float(exact[h].lse()) + kMargin);
        hard_l.push_back(float(exact[h].lse()) - kMargin);
      }
      const bool may = selector->done(row, easy, p, easy_l.data(), easy_blocks.data(), n);
      const bool must = selector->done(row, hard, p, hard_l.data(), hard_blocks.data(), n);
      if (p == plan.size()) break;
      if (p == result.n_read) {
        REQUIRE(may);
      } else {
        REQUIRE_FALSE(must);
      }
    }
  }

  for (int h = 0; h < g; ++h) {
    const int q_head = head * g + h;
    const float* out = got.out.data() + (int64_t(i) * scene.n_heads() + q_head) * shape.d;
    double norm = 0, error = 0;
    const double sink =
        shape.sinks.empty() ? 0 : std::exp(double(shape.sinks[q_head]) - exact[h].m);
    for (int j = 0; j < shape.d; ++j) {
      const double want = exact[h].o[j] / (exact[h].s + sink), diff = want - out[j];
      norm += want * want, error += diff * diff;
    }
    REQUIRE(std::sqrt(error) <= tolerance * std::sqrt(norm));
    REQUIRE(std::fabs(got.lse[i * scene.n_heads() + q_head] - exact[h].lse()) <=
            2e-5 * (1 + std::fabs(exact[h].lse())));
  }
}

template <class Rule>
void check_all(const SceneOf<Rule>& scene, const Download& got, double epsilon = kEpsilon) {
  // K and V are exact in both, sums are f32: about 1e-6. The probabilities carry ex2's 2 ulp.
  const double tolerance = 1e-5;
  for (size_t i = 0; i < scene.sequences.size(); ++i)
    for (int head = 0; head < scene.shape.n_kv_heads; ++head)
      check_row(scene, got, int(i), head, epsilon, tolerance);
}

// Runs with a pool that holds everything, few blocks, nothing; twice each. All the same bits, all
// right.
template <class Rule>
void check_scene(const SceneOf<Rule>& scene, double epsilon = kEpsilon) {
  const int parts = cuda::row_parts(scene.shape.g);  // each looks up all blocks that the row reads
  int64_t all = 0;
  for (const SceneSequence& s : scene.sequences)
    all += int64_t(s.n_blocks) * scene.shape.n_kv_heads;
  SceneDeviceOf none(scene, 0);
  none.run();
  const Download first(none);
  check_all(scene, first, epsilon);
  for (int64_t slots : {int64_t(7), all}) {
    SceneDeviceOf device(scene, slots);
    for (int turn = 0; turn < 3; ++turn) {
      INFO("slots " << slots << " turn " << turn);
      device.run();
      const Download got(device);
      REQUIRE(same_bits(got.out, first.out));
      REQUIRE(same_bits(got.lse, first.lse));
      for (size_t r = 0; r < got.results.size(); ++r) {
        const cuda::RowResult &a = got.results[r], &b = first.results[r];
        REQUIRE(a.n_read == b.n_read);
        REQUIRE(a.lookups == parts * (a.n_read - 1));  // all but the tail
        REQUIRE(b.misses == b.lookups);
        if (slots == all && turn > 0) REQUIRE(a.misses == 0);
        // The second part may find blocks that the first one has just moved into slots.
        if (slots == all && turn == 0) REQUIRE(a.misses >= a.n_read - 1);
        if (slots == all && turn == 0) REQUIRE(a.misses <= a.lookups);
        for (int p = 0; p < a.n_read; ++p)
          REQUIRE(got.order[r * scene.max_blocks + p] == first.order[r * scene.max_blocks + p]);
      }
    }
  }
}

// Whatever rows are expected to read: the same bits, blocks and stops, and right counts.
template <class Rule>
void check_expectations(const SceneOf<Rule>& scene) {
  const SceneShape& shape = scene.shape;
  SceneDeviceOf plain(scene, 0);
  plain.run();
  const Download want(plain);
  check_all(scene, want);
  int64_t all = 0;
  for (const SceneSequence& s : scene.sequences) all += int64_t(s.n_blocks) * shape.n_kv_heads;
  for (int64_t slots : {int64_t(0), int64_t(25), all})
    for (int expected : {0, 5, 40, 68, 150, 100000}) {
      SceneDeviceOf device(scene, slots);
      device.set_expected(expected);
      for (int turn = 0; turn < 3; ++turn) {  // from the second on it is what the row reads
        INFO("slots " << slots << " expected " << expected << " turn " << turn);
        device.run();
        const Download got(device);
        REQUIRE(same_bits(got.out, want.out));
        REQUIRE(same_bits(got.lse, want.lse));
        const std::vector<int32_t> learnt = device.expected.download();
        for (int r = 0; r < device.rows(); ++r) {
          const cuda::RowResult& x = got.results[r];
          REQUIRE(x.n_read == want.results[r].n_read);
          REQUIRE(x.lookups >= x.n_read - 1);
          if (turn > 0) REQUIRE(x.lookups == x.n_read - 1);  // nothing was fetched in vain
          if (slots == 0) REQUIRE(x.misses == x.lookups);
          if (slots == all && turn == 0) REQUIRE(x.misses == x.lookups);
          if (slots == all && turn > 0) REQUIRE(x.misses == 0);
          const int i = r / shape.n_kv_heads, head = r % shape.n_kv_heads;
          REQUIRE(learnt[(i * shape.n_layers + shape.layer) * shape.n_kv_heads + head] == x.n_read);
          for (int p = 0; p < x.n_read; ++p)
            REQUIRE(got.order[r * scene.max_blocks + p] == want.order[r * scene.max_blocks + p]);
        }
      }
      for (uint32_t left : device.arrivals.download()) REQUIRE(left == 0);
    }
}

// Each of these goes through all the rules.

template <class Rule>
void check_lengths(const std::vector<Rule>& rules) {
  for (const Rule& rule : rules)
    for (int B : {16, 32}) {
      SceneShape shape;
      shape.block_size = B;
      shape.tokens = {1, B, B + 1, 3 * B, 4 * B + 3, 40 * B - 1, 200 * B + 5};
      INFO("rule " << &rule - rules.data() << " B " << B);
      check_scene(SceneOf(shape, rule));
    }
}

template <class Rule>
void check_masks(const std::vector<Rule>& rules) {
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (const Rule& rule : rules)
      for (int B : {16, 32, 64})
        for (int g : {1, 4, 8}) {
          SceneShape shape;
          shape.block_size = B, shape.g = g, shape.type = type;
          shape.d = type == cuda::KvType::F32 ? 64 : 128;
          shape.tokens = {1, B + 1, 40 * B - 1, 90 * B + 5};
          SceneOf scene(shape, rule);
          scene.random_masks(unsigned(B + g));
          INFO("type " << int(type) << " rule " << &rule - rules.data() << " B " << B << " g "
                       << g);
          check_scene(scene);
        }
}

template <class Rule>
void check_batch(const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    SceneShape shape;
    shape.tokens = {2500, 32 * 90, 777, 4001, 5, 3333, 1234};
    const SceneOf together(shape, rule);
    SceneDeviceOf all(together, 50);
    all.run();
    INFO("rule " << &rule - rules.data());
    check_alone<SceneDeviceOf<Rule>>(together, all.out.download());
  }
}

// Sinks join the sum once, when the CTAs' states are merged; orders, stops and lse are as without.
template <class Rule>
void check_sinks(const std::vector<Rule>& rules) {
  unsigned seed = 700;
  for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8})
    for (const Rule& rule : rules)
      for (int g : {1, 5, 8})
        for (int window : {0, 100}) {
          if (window > 0 && !rule.everything) continue;
          SceneShape shape;
          shape.type = type, shape.d = 64, shape.block_size = 32, shape.g = g, shape.seed = ++seed;
          shape.tokens = {1, 33, 500, 32 * 90, 4001};
          // From far below all scores to far above what most heads sum up to.
          const float sinks[] = {4, -200, 0, 9, 6, 2, -3, 12};
          for (int h = 0; h < g * shape.n_kv_heads; ++h) shape.sinks.push_back(sinks[h * 3 % 8]);
          Rule ranked = rule;
          ranked.window = window;
          const SceneOf scene(shape, ranked);
          INFO("type " << int(type) << " rule " << &rule - rules.data() << " g " << g << " window "
                       << window);
          if (window == 0) {
            check_scene(scene);
          } else {
            SceneDeviceOf device(scene, 40);
            device.run();
            check_all(scene, Download(device));
          }
          SceneShape without = shape;
          without.sinks.clear();
          const SceneOf plain_scene(without, ranked);
          SceneDeviceOf device(scene, 40), plain(plain_scene, 40);
          device.run();
          plain.run();
          const Download got(device), want(plain);
          CHECK(same_bits(got.lse, want.lse));
          CHECK(!same_bits(got.out, want.out));
          for (size_t r = 0; r < got.results.size(); ++r)
            CHECK(got.results[r].n_read == want.results[r].n_read);
        }
}

template <class Rule>
void check_graph(const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    SceneShape shape;
    shape.tokens = {5000, 700};
    const SceneOf scene(shape, rule);
    SceneDeviceOf plain(scene, 64), device(scene, 64);
    plain.run();
    const Download want(plain);
    cudaStream_t stream;
    check_cuda(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check_cuda(cuda::select_victims(device.step.pool, device.victims_scratch.get(), stream));
    check_cuda(device.attend(stream), "captured");
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (int turn = 0; turn < 3; ++turn) {
      device.poison();
      check_cuda(cudaGraphLaunch(exec, stream));
      check_cuda(cudaStreamSynchronize(stream));
      const Download got(device);
      CHECK(same_bits(got.out, want.out));
      CHECK(same_bits(got.lse, want.lse));
    }
    check_cuda(cudaGraphExecDestroy(exec));
    check_cuda(cudaGraphDestroy(graph));
    check_cuda(cudaStreamDestroy(stream));
  }
}

}  // namespace riffle::test
