// Attention of one layer at list positions (riffle.h, PositionRule) against its definition in
// float64, and keys that change from one convention to the other.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "backend/device.h"
#include "select/papers/tokenselect.h"
#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/select/papers/tokenselect_settings.h"

using namespace riffle;
using test::tokenselect_settings;

namespace {

// One layer of attention on a CPU device, driven as the engine drives it.
struct ListScene {
  static constexpr int kHeads = 2, kG = 2, kD = 32, kB = 16, kWidth = kHeads * kG * kD,
                       kKvWidth = kHeads * kD;
  Model model;
  ThreadPool threads;
  Selection selection;
  std::unique_ptr<Selector> selector, dense = make_dense();
  std::unique_ptr<Device> device;
  SequenceKv sequence;
  int64_t n;                   // tokens of the prompt; steps follow
  std::vector<float> q, k, v;  // before RoPE, as the model's products give them

  ListScene(const Selection& s, int64_t tokens, int64_t steps, bool interleaved, bool emu,
            cpu::Isa isa, int n_threads, KvType type = KvType::F32)
      : threads(n_threads),
        selection(s),
        selector(make_selector(s)),
        n(tokens),
        q((tokens + steps) * kWidth),
        k((tokens + steps) * kKvWidth),
        v(k.size()) {
    Config& c = model.config;
    c.n_layers = 1;
    c.n_heads = kHeads * kG;
    c.n_kv_heads = kHeads;
    c.head_dim = kD;
    c.dim = kWidth;
    c.ropes.resize(1);
    c.ropes[0].theta = 10000;
    c.layers.resize(c.n_layers);
    c.rope_interleaved = interleaved;
    BackendOptions o;
    o.kernels = cpu::kernels(isa);
    o.layout = {kB, kD, type};
    o.has_pool = emu;
    o.slots = 12;
    device = make_cpu_device(model, o, &threads);
    const RopeFrequencies frequencies[] = {
        rope_frequencies(model.config.ropes[0], kD, tokens + steps)};
    device->rope_table(tokens + steps, frequencies);
    std::mt19937 random(99);
    std::normal_distribution<float> normal;
    for (auto* x : {&q, &k, &v})
      for (float& y : *x) y = normal(random);
    sequence = device->kv().create(tokens + steps, {});
    sequence.unrotated = true;
    StateShape shape;
    shape.n_layers = 1;
    shape.n_kv_heads = kHeads;
    shape.g = kG;
    shape.layout = o.layout;
    shape.n_ctx = tokens + steps;
    sequence.selection = selector->make_state(shape);
    device->kv().reserve(sequence, tokens + steps, sequence.marks);
  }
  ~ListScene() { device->kv().destroy(sequence); }

  const TokenSelection& state() const {
    return static_cast<TokenSelectState*>(sequence.selection.get())->layers[0];
  }
  std::vector<int32_t> list(int64_t n_tokens) const {
    if (!state().everything) return state().list;
    std::vector<int32_t> all(n_tokens);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // Rotates x[d], which is before RoPE, to a position. Angles are rounded to f32, as in training.
  std::vector<double> rotated(const float* x, int64_t position) const {
    std::vector<double> out(kD);
    for (int j = 0; j < kD / 2; ++j) {
      const float frequency =
          1.0f / std::pow(model.config.ropes[0].theta, float(2 * j) / float(kD));
      const double angle = float(position) * frequency;
      const bool pairs = model.config.rope_interleaved;
      const double a = x[pairs ? 2 * j : j], b = x[pairs ? 2 * j + 1 : j + kD / 2];
      out[j] = a * std::cos(angle) - b * std::sin(angle);
      out[j + kD / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  }

  // Returns the largest error of out[h] against the definition: the attention of `token`, which is
  // the last of list[0, end), over these tokens.
  double error(const std::vector<int32_t>& list, int64_t end, int64_t token,
               const float* out) const {
    double worst = 0;
    for (int h = 0; h < kHeads * kG; ++h) {
      const auto query = rotated(&q[token * kWidth + h * kD], end - 1);
      std::vector<double> w(end), o(kD);
      double top = -1e300, sum = 0;
      for (int64_t i = 0; i < end; ++i) {
        const auto key = rotated(&k[list[i] * kKvWidth + h / kG * kD], i);
        for (int j = 0; j < kD; ++j) w[i] += query[j] * key[j] / std::sqrt(double(kD));
        top = std::max(top, w[i]);
      }
      for (double& x : w) sum += x = std::exp(x - top);
      for (int64_t i = 0; i < end; ++i)
        for (int j = 0; j < kD; ++j) o[j] += w[i] / sum * v[list[i] * kKvWidth + h / kG * kD + j];
      for (int j = 0; j < kD; ++j) worst = std::max(worst, std::abs(o[j] - out[h * kD + j]));
    }
    return worst;
  }

  // Checks that the selection is the vote of the mean of queries [first, first + m), with all keys
  // at position 0.
  void check_vote(int64_t first, int64_t m) const {
    const int64_t n_tokens = first + m, begin = selection.init_tokens,
                  end = n_tokens - selection.local_tokens;
    std::vector<double> votes(end - begin);
    for (int h = 0; h < kHeads * kG; ++h) {
      std::vector<double> mean(kD), w(end - begin);
      for (int64_t i = 0; i < m; ++i) {
        const auto x = rotated(&q[(first + i) * kWidth + h * kD], selection.local_tokens + i);
        for (int j = 0; j < kD; ++j) mean[j] += x[j] / double(m);
      }
      double top = -1e300, sum = 0;
      for (int64_t t = begin; t < end; ++t) {
        const auto key = rotated(&k[t * kKvWidth + h / kG * kD], 0);
        for (int j = 0; j < kD; ++j) w[t - begin] += mean[j] * key[j];
        top = std::max(top, w[t - begin]);
      }
      for (double& x : w) sum += x = std::exp(x - top);
      for (size_t i = 0; i < w.size(); ++i) votes[i] += w[i] / sum;
    }
    const std::set<int32_t> chosen(state().selected.begin(), state().selected.end());
    REQUIRE(chosen.size() == size_t(selection.select_tokens));
    double in = 1e300, out = -1e300;
    for (int64_t t = begin; t < end; ++t) {
      const double vote = votes[t - begin];
      if (chosen.count(static_cast<int32_t>(t))) in = std::min(in, vote);
      else out = std::max(out, vote);
    }
    CHECK(in >= out * (1 - 1e-4));
  }

  // Prefills in chunks and returns the outputs [n][kWidth]. Checks every chunk if asked to.
  std::vector<float> prefill(int64_t chunk, double tolerance) {
    std::vector<float> out(n * kWidth);
    const auto prompt = device->begin_prompt({&sequence, n, n, chunk});
    prompt->begin_layer(0);
    for (int64_t first = 0; first < n; first += chunk) {
      const int64_t m = std::min(chunk, n - first);
      std::vector<float> keys(k.begin() + first * kKvWidth, k.begin() + (first + m) * kKvWidth);
      prompt->append(keys.data(), &v[first * kKvWidth], m, first);
      PromptAttention a;
      a.q = &q[first * kWidth];
      a.n = m;
      a.ldq = a.ldo = kWidth;
      a.pos0 = first;
      a.last = first + m == n;
      a.out = &out[first * kWidth];
      a.selector = selector.get();
      a.query_position = selection.local_tokens;
      prompt->attend(a);
      if (!(tolerance > 0)) continue;
      const auto seen = list(first + m);
      if (!state().everything) check_vote(first, m);
      double worst = 0;
      for (int64_t i = 0; i < m; i += 5)
        worst = std::max(worst, error(seen, int64_t(seen.size()) - m + i + 1, first + i,
                                      &out[(first + i) * kWidth]));
      CHECK(worst <= tolerance);
    }
    prompt->finish_layer();
    sequence.n_tokens = n;
    return out;
  }

  std::vector<float> step(double tolerance) {
    const int64_t t = sequence.n_tokens;
    SequenceKv* one = &sequence;
    StepRequest step;
    step.sequences = &one;
    step.n = 1;
    step.selector = selector.get();
    step.dense = dense.get();
    step.query_position = selection.local_tokens;
    const auto under_way = device->begin_step(step);
    std::vector<float> query(&q[t * kWidth], &q[t * kWidth] + kWidth),
        key(&k[t * kKvWidth], &k[t * kKvWidth] + kKvWidth);
    std::vector<float> out(kWidth);
    under_way->append(0, query.data(), key.data(), &v[t * kKvWidth]);
    under_way->attend(0, query.data(), out.data());
    if (tolerance > 0) {
      const auto seen = list(t + 1);
      if (!state().everything && !state().cached) check_vote(t, 1);
      CHECK(error(seen, static_cast<int64_t>(seen.size()), t, out.data()) <= tolerance);
    }
    ++sequence.n_tokens;
    device->kv().commit(sequence);
    return out;
  }
};

}  // namespace

TEST_CASE("attention at list positions is rotation by list index, then softmax",
          "[tokenselect][arithmetic]") {
  for (const bool interleaved : {false, true})
    for (const cpu::Isa isa : {cpu::Isa::Scalar, cpu::best_isa()}) {
      INFO("interleaved " << interleaved << " isa " << cpu::kernels(isa)->name);
      ListScene scene(tokenselect_settings(60, 10, 40), 300, 40, interleaved, false, isa, 2);
      scene.prefill(32, 2e-5);
      for (int i = 0; i < 40; ++i) scene.step(2e-5);
    }
}

TEST_CASE("list positions: the same bits for any threads, behind a pool or in place",
          "[tokenselect][arithmetic]") {
  std::vector<std::vector<float>> first;
  for (const bool emu : {false, true})
    for (const int threads : {1, 3}) {
      ListScene scene(tokenselect_settings(60, 10, 40), 300, 40, true, emu, cpu::best_isa(),
                      threads, KvType::F16);
      std::vector<std::vector<float>> all{scene.prefill(32, 0)};
      for (int i = 0; i < 40; ++i) all.push_back(scene.step(0));
      if (first.empty()) first = all;
      CHECK(test::same_bits(first, all));
    }
}

TEST_CASE("list positions: while the list holds everything, chunks do not matter",
          "[tokenselect][arithmetic]") {
  std::vector<std::vector<float>> first;
  for (const int chunk : {7, 32, 64, 200}) {
    ListScene scene(tokenselect_settings(100, 10, 200), 200, 8, false, false, cpu::best_isa(), 2);
    std::vector<std::vector<float>> all{scene.prefill(chunk, 0)};
    for (int i = 0; i < 8; ++i) all.push_back(scene.step(0));
    if (first.empty()) first = all;
    CHECK(test::same_bits(first, all));
  }
}

TEST_CASE("keys go from one convention to the other and back", "[tokenselect][arithmetic]") {
  for (const KvType type : {KvType::F32, KvType::F16})
    for (const bool emu : {false, true}) {
      ListScene scene(tokenselect_settings(60, 10, 40), 101, 40, true, emu, cpu::best_isa(), 2,
                      type);
      scene.prefill(32, 0);
      for (int i = 0; i < 20; ++i) scene.step(0);
      const BlockLayout layout{ListScene::kB, ListScene::kD, type};
      const cpu::Kernels* kernels = cpu::kernels(cpu::Isa::Scalar);
      const auto key = [&](int h, int64_t t) {
        std::vector<float> x(ListScene::kD);
        kernels->attention.kv_load(scene.sequence.heads[h].blocks[t / ListScene::kB] +
                                       t % ListScene::kB * layout.row_bytes(),
                                   ListScene::kD, type, x.data());
        return x;
      };
      const double tolerance =
          type == KvType::F32 ? 1e-5 : 4e-3;  // |x| up to 4 of 11 bits, rounded twice
      for (const bool unrotated : {false, true, true, false}) {
        scene.device->change_positions(scene.sequence, unrotated);
        CHECK(scene.sequence.unrotated == unrotated);
        CHECK(!scene.sequence.selection);
        double worst = 0;
        for (int h = 0; h < ListScene::kHeads; ++h)
          for (int64_t t = 0; t < scene.sequence.n_tokens; ++t) {
            const auto want = scene.rotated(&scene.k[t * ListScene::kKvWidth + h * ListScene::kD],
                                            unrotated ? 0 : t);
            const auto have = key(h, t);
            for (int j = 0; j < ListScene::kD; ++j)
              worst = std::max(worst, std::abs(want[j] - have[j]));
          }
        CHECK(worst <= tolerance);
        for (const HeadKv& head : scene.sequence.heads) {  // digests are those of the current keys
          REQUIRE(head.bound_factor.size() == 121 / ListScene::kB);
          for (size_t b = 0; b < head.bound_factor.size(); ++b) {
            std::vector<uint16_t> digest(2 * ListScene::kD);
            cpu::kernels(cpu::best_isa())
                ->attention.digest_build(head.blocks[b], type, ListScene::kB, ListScene::kD,
                                         cpu::DigestKind::CuboidMean, false, digest.data());
            CHECK(
                std::equal(digest.begin(), digest.end(), head.digests.begin() + b * digest.size()));
          }
        }
      }
    }
}

TEST_CASE("list positions: models that rotate a part of each head are refused by name",
          "[tokenselect]") {
  using namespace riffle::test;
  const TempDir temp;
  const std::string folder = tiny_folder(tiny_checkpoint("qwen35"), temp);
  riffle_model* model = nullptr;
  char err[512];
  REQUIRE(riffle_model_load(folder.c_str(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  ContextOptions o = options();
  o.selection.selector = SelectorKind::TOKENSELECT;
  o.selection.positions = PositionRule::LIST;
  riffle_context* context = nullptr;
  CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK_THAT(std::string(err), Catch::Contains("dimensions of a head"));
  riffle_model_free(model);
}
