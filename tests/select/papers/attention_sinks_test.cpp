// Attention sinks (LayerWeights::sinks) with every selector: a step's output against float64, and
// the factor by which a sink shrinks a selection's output.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "backend/device.h"
#include "tests/kernels/cpu/prompt_rounding.h"
#include "tests/select/papers/tokenselect_settings.h"

using namespace riffle;

namespace {

// One layer of attention on a CPU device, driven as the engine drives it: a prompt, then a step.
// There is no RoPE.
struct SinkScene {
  static constexpr int kHeads = 2, kG = 3, kD = 32, kB = 16, kQueries = kHeads * kG,
                       kWidth = kQueries * kD, kKvWidth = kHeads * kD, kPrompt = 900;
  std::vector<float> q, k, v;

  explicit SinkScene(float q_scale = 2) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    q.resize((kPrompt + 1) * kWidth);
    k.resize((kPrompt + 1) * kKvWidth);
    v.resize(k.size());
    for (auto* x : {&q, &k, &v})
      for (float& y : *x) y = normal(random);
    for (float& x : q) x *= q_scale;
  }

  struct Result {
    std::vector<float> prompt, step;  // outputs of the prompt's last token and of the step
    std::vector<float> coverage;      // coverage of the step, a number for each query head
    int64_t blocks_read = 0;
  };
  Result run(const Selection& s, const std::vector<float>* sinks, bool emu = false) const {
    Model model;
    Config& c = model.config;
    c.n_layers = 1;
    c.n_heads = kQueries;
    c.n_kv_heads = kHeads;
    c.head_dim = kD;
    c.dim = kWidth;
    c.ropes.resize(1);
    c.layers.resize(1);
    c.sinks = sinks != nullptr;
    model.weights.layers.resize(1);
    if (sinks) model.weights.layers[0].sinks = {DType::F32, 1, kQueries, sinks->data()};
    ThreadPool threads(3);
    const auto selector = make_selector(s), dense = make_dense();
    BackendOptions o;
    o.kernels = cpu::kernels(cpu::best_isa());
    o.layout = {kB, kD, KvType::F32};
    o.has_pool = emu;
    o.slots = 40;
    o.options.n_ctx = kPrompt + 16;
    o.options.selection = s;
    const auto device = make_cpu_device(model, o, &threads);
    const RopeFrequencies none[] = {rope_frequencies(c.ropes[0], kD, kPrompt + 1)};
    device->rope_table(kPrompt + 1, none);
    KvStore& kv = device->kv();
    SequenceKv sequence = kv.create(kPrompt + 1, digest_spec(s));
    kv.reserve(sequence, kPrompt + 1, sequence.marks);
    Result result;
    result.prompt.resize(kWidth), result.step.resize(kWidth);
    auto prompt = device->begin_prompt({&sequence, kPrompt, kPrompt, kPrompt});
    prompt->begin_layer(0);
    std::vector<float> keys(k.begin(), k.begin() + kPrompt * kKvWidth);
    prompt->append(keys.data(), v.data(), kPrompt, 0);
    std::vector<float> out(kPrompt * kWidth);
    PromptAttention a;
    a.q = q.data(), a.n = kPrompt, a.ldq = a.ldo = kWidth, a.last = true, a.out = out.data();
    prompt->attend(a);
    std::copy_n(out.end() - kWidth, kWidth, result.prompt.begin());
    prompt->finish_layer();
    prompt.reset();
    sequence.n_tokens = kPrompt;
    device->add_index(*selector, sequence);

    SequenceKv* one = &sequence;
    StepRequest step;
    step.sequences = &one, step.n = 1, step.selector = selector.get(), step.dense = dense.get();
    step.coverage = true;
    step.report = [&](int, const RowReport* rows) {
      for (int h = 0; h < kHeads; ++h) {
        result.blocks_read += rows[h].n_read;
        for (int i = 0; i < kG; ++i) result.coverage.push_back(rows[h].coverage[i]);
      }
    };
    const auto under_way = device->begin_step(step);
    std::vector<float> query(q.end() - kWidth, q.end()), key(k.end() - kKvWidth, k.end());
    under_way->append(0, query.data(), key.data(), &v[kPrompt * kKvWidth]);
    under_way->attend(0, query.data(), result.step.data());
    kv.destroy(sequence);
    return result;
  }

  struct Exact {
    std::vector<double> out, deviation;  // [d]; deviation: standard deviation due to `rounding`
    double lse = 0;                      // log-sum-exp of the scores of all keys
  };
  // Returns the attention of query head h at token t in float64. rounding: the relative deviation
  // of each product that an inexact kernel computes.
  Exact exact(int h, int64_t t, double sink, double rounding = 0) const {
    std::vector<double> weights, squares;  // for each key: its weight; the variance of its score
    Exact e;
    e.out.resize(kD), e.deviation.resize(kD);
    double sum = 0;
    for (int64_t i = 0; i <= t; ++i) {
      double dot = 0, square = 0;
      for (int j = 0; j < kD; ++j) {
        const double x = double(q[t * kWidth + h * kD + j]) * k[i * kKvWidth + h / kG * kD + j];
        dot += x, square += x * x;
      }
      weights.push_back(std::exp(dot / std::sqrt(double(kD))));
      squares.push_back(square / kD * rounding * rounding);
      sum += weights.back();
    }
    const double all = sum + std::exp(sink);
    for (int j = 0; j < kD; ++j) {
      const auto value = [&](int64_t i) { return double(v[i * kKvWidth + h / kG * kD + j]); };
      for (int64_t i = 0; i <= t; ++i) e.out[j] += weights[i] / all * value(i);
      double variance = 0;
      for (int64_t i = 0; i <= t; ++i) {
        const double p = weights[i] / all, far = value(i) - e.out[j], product = rounding * value(i);
        variance += p * p * (far * far * squares[i] + product * product);
      }
      e.deviation[j] = std::sqrt(variance);
    }
    e.lse = std::log(sum);
    return e;
  }
};

Selection of(SelectorKind selector) {
  Selection s;
  s.selector = selector;
  return s;
}

struct Named {
  const char* name;
  Selection settings;
};

// Returns settings with which every selector reads everything.
std::vector<Named> generous() {
  std::vector<Named> all = {{"dense", of(SelectorKind::DENSE)}};
  Selection s = of(SelectorKind::PSA);
  s.epsilon = 1;
  all.push_back({"psa", s});
  s.rank = RankBy::CODES;
  all.push_back({"psa by codes", s});
  s = of(SelectorKind::TOPK);
  s.budget = 1;
  all.push_back({"topk", s});
  s = of(SelectorKind::TWILIGHT);
  s.base = BaseSelection::ALL;
  s.top_p = 1;
  all.push_back({"twilight", s});
  s = of(SelectorKind::SHARE);
  s.share = 0;
  all.push_back({"share", s});
  s.selector = SelectorKind::AUTO;
  all.push_back({"auto", s});
  all.push_back({"tokenselect", test::tokenselect_settings(1000, 64, 64)});
  s = of(SelectorKind::LFPS);
  s.top_tokens = 1;
  s.bypass = 1;
  all.push_back({"lfps", s});
  return all;
}

// Returns settings with which every selector leaves something out.
std::vector<Named> sparse() {
  Selection s = of(SelectorKind::PSA);
  s.epsilon = 0.6f;
  std::vector<Named> all = {{"psa", s}};
  s = of(SelectorKind::TOPK);
  s.budget = 0.3f;
  all.push_back({"topk", s});
  s = of(SelectorKind::TWILIGHT);
  s.top_p = 0.6f;
  all.push_back({"twilight", s});
  s = of(SelectorKind::SHARE);
  s.share = 0.03f;
  all.push_back({"share", s});
  all.push_back({"tokenselect", test::tokenselect_settings(100, 32, 32)});
  s = of(SelectorKind::LFPS);
  s.top_tokens = 0.1f;
  all.push_back({"lfps", s});
  return all;
}

const std::vector<float> kSinks = {7, 9.5f, -40, 8, 12, 3};
constexpr double kF32Rounding = 2e-6;

}  // namespace

// f32 rounds by 2e-6 here. A prompt's attention may round by more (product_rounding).
TEST_CASE("sinks: whoever reads everything gives float64's attention",
          "[select][sinks][arithmetic]") {
  const SinkScene scene;
  const double rounding = test::product_rounding(cpu::best_isa());
  SinkScene::Exact prompt[SinkScene::kQueries], step[SinkScene::kQueries];
  for (int h = 0; h < SinkScene::kQueries; ++h) {
    prompt[h] = scene.exact(h, SinkScene::kPrompt - 1, kSinks[h], rounding);
    step[h] = scene.exact(h, SinkScene::kPrompt, kSinks[h]);
  }
  for (const bool emu : {false, true})
    for (const auto& [name, settings] : generous()) {
      INFO(name << (emu ? " on emu" : "") << " isa " << cpu::kernels(cpu::best_isa())->name);
      const SinkScene::Result got = scene.run(settings, &kSinks, emu);
      double worst = 0, deviations = 0;
      for (int h = 0; h < SinkScene::kQueries; ++h) {
        for (int j = 0; j < SinkScene::kD; ++j) {
          const int at = h * SinkScene::kD + j;
          worst = std::max(worst, std::fabs(step[h].out[j] - got.step[at]));
          const double beyond =
              std::max(0.0, std::fabs(prompt[h].out[j] - got.prompt[at]) - kF32Rounding);
          if (beyond > 0)
            deviations = std::max(deviations, beyond / std::max(prompt[h].deviation[j], 1e-30));
        }
        CHECK(got.coverage[h] > 0.9999f);  // the sink is not a token
      }
      CHECK(worst <= kF32Rounding);
      CHECK(deviations <= test::kRoundingDeviations);
    }
}

// With a sink a, an output is the output without the sink times M / (M + e^a). M is the selection's
// sum over the keys: over the keys that were read, or about that over all keys if samples stand for
// the others.
TEST_CASE("sinks: what they leave of a sparse output", "[select][sinks][arithmetic]") {
  const SinkScene scene;
  for (const auto& [name, settings] : sparse()) {
    INFO(name);
    const SinkScene::Result plain = scene.run(settings, nullptr),
                            with = scene.run(settings, &kSinks);
    CHECK(with.blocks_read == plain.blocks_read);
    CHECK(with.coverage == plain.coverage);
    double least = 1;
    for (int h = 0; h < SinkScene::kQueries; ++h) {
      INFO("head " << h);
      least = std::min<double>(least, plain.coverage[h]);
      const double lse = scene.exact(h, SinkScene::kPrompt, 0).lse;
      double dot = 0, norm = 0, error = 0;
      const float *a = &with.step[h * SinkScene::kD], *b = &plain.step[h * SinkScene::kD];
      for (int j = 0; j < SinkScene::kD; ++j)
        dot += double(a[j]) * b[j], norm += double(b[j]) * b[j];
      const double left = dot / norm;
      for (int j = 0; j < SinkScene::kD; ++j)
        error = std::max(error, std::fabs(a[j] - left * b[j]));
      CHECK(error <= 1e-6);
      const bool all = settings.selector == SelectorKind::SHARE;
      const double mass = std::exp(lse) * (all ? 1 : double(plain.coverage[h])),
                   want = mass / (mass + std::exp(double(kSinks[h])));
      // lfps estimates the mass of its stand-in for the rest.
      if (settings.selector != SelectorKind::LFPS)
        CHECK(std::fabs(left - want) <= (all ? 0.02 : 1e-5));
      else CHECK((left > 0 && left <= 1));
    }
    CHECK(least < 0.95);  // something was left out
  }
}

// The blocks that are read whatever they hold have almost none of a head's weight, and the unread
// share is 1 in float. Samples stand for it; they do not count as covered.
TEST_CASE("sinks: share stays finite where it reads none of the weight",
          "[select][sinks][arithmetic]") {
  SinkScene scene;
  for (int h = 0; h < SinkScene::kQueries; ++h)
    for (int j = 0; j < SinkScene::kD; ++j)
      scene.q[SinkScene::kPrompt * SinkScene::kWidth + h * SinkScene::kD + j] = j == 0 ? 30 : 0;
  for (int64_t t = 0; t <= SinkScene::kPrompt; ++t)
    for (int h = 0; h < SinkScene::kHeads; ++h)  // blocks that are always read, and the others
      scene.k[t * SinkScene::kKvWidth + h * SinkScene::kD] =
          t < SinkScene::kB || t >= SinkScene::kPrompt - 3 * SinkScene::kB ? -8.0f : 8.0f;
  Selection s = of(SelectorKind::SHARE);
  s.share = 0.5f;
  for (const float sink : {-100.0f, 0.0f, 40.0f, 300.0f}) {
    INFO("sink " << sink);
    const std::vector<float> sinks(SinkScene::kQueries, sink);
    const SinkScene::Result got = scene.run(s, &sinks);
    CHECK(got.coverage[0] < 1e-6f);
    CHECK(got.blocks_read > SinkScene::kHeads * 4);  // a sink, a window of two and the tail
    int finite = 0;
    for (const float x : got.step) finite += std::isfinite(x) && std::fabs(x) < 10;
    CHECK(finite == SinkScene::kWidth);
  }
}
