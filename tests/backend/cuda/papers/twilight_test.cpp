// Twilight through the engine on a GPU: the CPU's answers and counts, the same bits for every pool,
// batch and repetition.
#include <map>

#include "riffle_measure.h"
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/steps.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions twilight_options(BaseSelection base, float top_p = 0.9f) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.block_size = 32;
  o.selection.selector = SelectorKind::TWILIGHT;
  o.selection.base = base;
  o.selection.base_budget = 0.3f;
  o.selection.top_p = top_p;
  o.selection.microbatch = 4;
  return o;
}

constexpr BaseSelection kBases[] = {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA};

}  // namespace

TEST_CASE("cuda: twilight's answers and counts are the CPU's", "[cuda][twilight]") {
  if (skip()) return;
  const auto prompt = some_tokens(2000, 9), steps = some_tokens(40, 10);
  for (BaseSelection base : kBases)
    for (BlockDigest digest : {BlockDigest::MEAN, BlockDigest::QUEST, BlockDigest::CUBOID_MEAN})
      for (float top_p : {0.7f, 0.95f, 1.0f}) {
        if (base == BaseSelection::ALL && digest != BlockDigest::MEAN) continue;
        INFO("base " << base << " digest " << digest << " top_p " << top_p);
        ContextOptions o = twilight_options(base, top_p);
        o.kv_type = KvKind::F32;
        o.selection.digest = digest;
        Runtime gpu(o);
        o.device = DeviceKind::CPU;
        Runtime cpu(o);
        const auto a = run(gpu, gpu.session(), prompt, steps),
                   b = run(cpu, cpu.session(), prompt, steps);
        double worst = 0;
        for (size_t i = 0; i < a.size(); ++i)
          for (size_t j = 0; j < a[i].size(); ++j) {
            const double diff = std::fabs(a[i][j] - b[i][j]);
            if (!(diff <= worst)) worst = diff;
          }
        const Stats x = gpu.stats(), y = cpu.stats();
        WARN("base " << base << " digest " << digest << " top_p " << top_p
                     << ": largest difference " << worst << ", tokens read " << x.kv_tokens_read
                     << " and " << y.kv_tokens_read << " of " << y.kv_tokens_total << ", blocks "
                     << x.kv_blocks_read << " and " << y.kv_blocks_read << ", index bytes "
                     << x.index_bytes_read << " and " << y.index_bytes_read);
        // A near tie in the ranking, at a threshold or in the test may fall otherwise.
        CHECK(worst <= 0.2);
        CHECK(x.kv_tokens_total == y.kv_tokens_total);
        CHECK(std::fabs(double(x.kv_tokens_read) - double(y.kv_tokens_read)) <=
              0.01 * double(y.kv_tokens_read));
        CHECK(std::fabs(double(x.kv_blocks_read) - double(y.kv_blocks_read)) <=
              0.01 * double(y.kv_blocks_read));
        CHECK(x.kv_tokens_read <= x.kv_tokens_total);
      }
}

TEST_CASE("cuda: twilight has the same bits for every pool and batch",
          "[cuda][twilight][invariance]") {
  if (skip()) return;
  const auto prompt = some_tokens(1500, 7), steps = some_tokens(40, 8);
  for (BaseSelection base : kBases) {
    INFO("base " << base);
    std::vector<std::vector<float>> reference;
    {
      Runtime r(twilight_options(base));
      reference = run(r, r.session(), prompt, steps);
      CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
    }
    for (int64_t slots : {2, 60, 300}) {
      INFO("slots " << slots);
      ContextOptions o = twilight_options(base);
      o.slots = slots;
      Runtime r(o);
      CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
    }
    // Three together, the first of which is the one above; the others are shorter, one than sinks
    // and window.
    ContextOptions o = twilight_options(base);
    o.slots = 100;
    Runtime r(o);
    CHECK(same_bits(run_first_of_three(r, prompt, steps), reference));
  }
}

TEST_CASE("cuda: twilight can be chosen at any time, with dense layers and coverage",
          "[cuda][twilight]") {
  if (skip()) return;
  const auto prompt = some_tokens(1100, 3), steps = some_tokens(40, 4);
  for (BaseSelection base : kBases) {
    INFO("base " << base);
    ContextOptions o = twilight_options(base);
    o.selection.dense_layers =
        2;  // the first layer's step says nothing of the memory that the others want
    Runtime from_start(o);
    const auto want = run(from_start, from_start.session(), prompt, steps);
    ContextOptions dense = o;
    dense.selection.selector = SelectorKind::DENSE;
    Runtime r(dense);
    riffle_session* s = r.session(prompt);
    r.check(set_selection(r.context, &o.selection));
    int seen = 0;
    const auto look = [](void* to, const riffle_row_report*) { ++*static_cast<int*>(to); };
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i == 20) r.check(riffle_set_row_report(r.context, look, &seen, true));
      if (i == 25) r.check(riffle_set_row_report(r.context, nullptr, nullptr, false));
      r.check(riffle_step(r.context, &s, &steps[i], 1));
      CHECK(same_bits({r.logits(s)}, {want[i + 1]}));
    }
    CHECK(seen > 0);
  }
}

TEST_CASE("cuda: twilight keeps to the memory that was planned", "[cuda][twilight][memory]") {
  if (skip()) return;
  riffle_model* model = nullptr;
  char err[512] = "";
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  ContextOptions o = twilight_options(BaseSelection::ALL);
  o.n_ctx = 32768;
  o.gpu_mem = plan_of_least_memory(model, o).min_gpu_mem;
  riffle_context* context = nullptr;
  REQUIRE(context_create(model, &o, &context, err, sizeof err) == RIFFLE_OK);
  riffle_session* s = nullptr;
  REQUIRE(riffle_session_create(context, &s) == RIFFLE_OK);
  const auto prompt = some_tokens(o.n_ctx - 60, 3);
  REQUIRE(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr) == RIFFLE_OK);
  const int32_t token = 400;
  for (int i = 0; i < 40; ++i) REQUIRE(riffle_step(context, &s, &token, 1) == RIFFLE_OK);
  Stats stats{};
  REQUIRE(get_stats(context, &stats) == RIFFLE_OK);
  CHECK(stats.peak_device_bytes <= o.gpu_mem);
  riffle_session_free(s);
  riffle_context_free(context);
  riffle_model_free(model);
}

TEST_CASE("cuda: what of twilight has no GPU kernels is refused by name", "[cuda][twilight]") {
  if (skip()) return;
  riffle_model* model = nullptr;
  char err[512] = "";
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  MemoryPlan plan{};
  for (StopRule stop : {StopRule::BOUND, StopRule::VETO}) {
    ContextOptions o = twilight_options(BaseSelection::PSA);
    o.selection.stop = stop;
    CHECK(plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_UNSUPPORTED);
    CHECK(std::string(err).find("stop bound or veto") != std::string::npos);
  }
  ContextOptions o = twilight_options(BaseSelection::ALL);
  o.residency = ResidencyKind::HOST;
  riffle_context* context = nullptr;
  CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(err).find("residency") != std::string::npos);
  riffle_context_free(context);
  riffle_model_free(model);
}
