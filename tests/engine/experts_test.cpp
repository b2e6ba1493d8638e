// Mixtures of experts: a row's bits do not depend on the rows that it shares experts with.
#include <atomic>
#include <cmath>
#include <map>
#include <new>

#include "backend/cpu/cpu_experts.h"
#include "kernels/common/routing.h"
#include "tests/engine/failing_experts.h"
#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"

using namespace riffle;
using namespace riffle::test;
using riffle::route_by_biased_softmax;
using riffle::route_row;
using riffle::Routed;
using riffle::Routing;

namespace riffle::test {

static std::atomic<int> until_failure{0};

void fail_experts(int nth) { until_failure = nth; }
bool experts_failed() { return until_failure <= 0; }

// CpuExperts::run by the linker's names.
using RunExperts = void(CpuExperts* self, const std::vector<ExpertWeights>& experts,
                        const Routed* routed, const float* in, int64_t n, Phase phase, float* out,
                        int32_t* at);
RunExperts real_run asm(
    "__real__ZN6riffle10CpuExperts3runERKSt6vectorINS_13ExpertWeightsESaIS2_EEPKNS_6RoutedEPKflNS_"
    "5PhaseEPfPi");
RunExperts wrapped_run asm(
    "__wrap__ZN6riffle10CpuExperts3runERKSt6vectorINS_13ExpertWeightsESaIS2_EEPKNS_6RoutedEPKflNS_"
    "5PhaseEPfPi");
void wrapped_run(CpuExperts* self, const std::vector<ExpertWeights>& experts, const Routed* routed,
                 const float* in, int64_t n, Phase phase, float* out, int32_t* at) {
  if (until_failure > 0 && --until_failure == 0) throw std::bad_alloc();
  real_run(self, experts, routed, in, n, phase, out, at);
}

}  // namespace riffle::test

namespace {

constexpr int kPrompt = 150, kSteps = 12;

// Runs the first tokens of the golden text as run of steps.h does, in a session that steps together
// with `others`, which have other texts.
std::vector<std::vector<float>> run_tiny(Runtime& r, int others) {
  const std::vector<int32_t> ids = tiny_tokens();
  std::vector<riffle_session*> sessions;
  for (int i = 0; i <= others; ++i) {
    sessions.push_back(r.session());
    const int first = 400 * (i > 0) + 3 * i;
    r.check(riffle_prefill(sessions[i], ids.data() + first, kPrompt - 9 * i, nullptr, nullptr));
  }
  std::vector<std::vector<float>> out{r.logits(sessions[0])};
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> tokens;
    for (int i = 0; i <= others; ++i) tokens.push_back(ids[kPrompt + step + 37 * i]);
    r.check(riffle_step(r.context, sessions.data(), tokens.data(), tokens.size()));
    out.push_back(r.logits(sessions[0]));
  }
  return out;
}

}  // namespace

TEST_CASE("experts: bits do not depend on the batch, chunks, threads or the device",
          "[experts][invariance][arithmetic][long]") {
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (!c.config.contains("num_experts_per_tok") && !c.config.contains("top_k_experts")) continue;
    DYNAMIC_SECTION(c.name) {
      const std::string folder = tiny_folder(c, temp);
      ContextOptions base = tiny_options(c, options(), KvKind::F16);
      base.n_threads = 2;
      base.n_sessions = 8;
      std::vector<std::vector<float>> reference;
      {
        Runtime r(base, folder);
        reference = run_tiny(r, 0);
      }
      const auto same = [&](const char* how, int others, auto&& change) {
        INFO(how);
        ContextOptions o = base;
        change(o);
        Runtime r(o, folder);
        CHECK(same_bits(run_tiny(r, others), reference));
      };
      same("two others", 2, [](auto&) {});
      same("seven others", 7, [](auto&) {});
      same("one thread", 3, [](auto& o) { o.n_threads = 1; });
      same("five threads", 1, [](auto& o) { o.n_threads = 5; });
      same("chunks of 7", 2, [](auto& o) { o.prefill_chunk = 7, o.n_threads = 3; });
      same("chunks of 100", 2, [](auto& o) { o.prefill_chunk = 100; });
      same("emu", 2, [](auto& o) { o.device = DeviceKind::EMU; });
    }
  }
}

TEST_CASE("experts: memory that runs out in a step leaves the session as it was", "[experts]") {
  const TempDir temp;
  const TinyCheckpoint c = tiny_checkpoint("qwen3moe");
  const std::string folder = tiny_folder(c, temp);
  const ContextOptions o = tiny_options(c, options(), KvKind::F16);
  Runtime reference(o, folder);
  const auto want = run_tiny(reference, 0);
  const std::vector<int32_t> ids = tiny_tokens();
  for (const int nth : {1, 2}) {
    INFO("call " << nth);
    Runtime r(o, folder);
    riffle_session* s = r.session({ids.begin(), ids.begin() + kPrompt});
    fail_experts(nth);
    CHECK(riffle_step(r.context, &s, &ids[kPrompt], 1) == RIFFLE_OUT_OF_MEMORY);
    CHECK(experts_failed());
    CHECK(riffle_session_length(s) == kPrompt);
    for (int step = 0; step < kSteps; ++step) {
      r.check(riffle_step(r.context, &s, &ids[kPrompt + step], 1));
      CHECK(r.logits(s) == want[1 + step]);
    }
  }
}

TEST_CASE("experts: routing by hand", "[experts]") {
  const float scores[] = {1, 3, 3, -2, 2};
  Routed out[5];
  route_row(scores, 5, 3, true, out);
  const double e1 = std::exp(-1.0), all = 2 + e1;
  CHECK(out[0].expert == 1);  // the first of equal ones
  CHECK(out[1].expert == 2);
  CHECK(out[2].expert == 4);
  CHECK(std::fabs(out[0].weight - 1 / all) <= 1e-7);
  CHECK(out[0].weight == out[1].weight);
  CHECK(std::fabs(out[2].weight - e1 / all) <= 1e-7);
  route_row(scores, 5, 3, false, out);
  const double every = all + std::exp(-2.0) + std::exp(-5.0);
  CHECK(std::fabs(out[0].weight - 1 / every) <= 1e-7);
  CHECK(std::fabs(out[2].weight - e1 / every) <= 1e-7);
  route_row(scores, 5, 5, true, out);
  CHECK(out[3].expert == 0);
  CHECK(out[4].expert == 3);
  // NaN ranks last, and all NaN still choose different experts.
  const float nan = std::numeric_limits<float>::quiet_NaN(), with_nan[] = {nan, 0, nan, -1};
  route_row(with_nan, 4, 3, true, out);
  CHECK(out[0].expert == 1);
  CHECK(out[1].expert == 3);
  CHECK(out[2].expert == 0);
}

TEST_CASE("experts: a bias chooses among shares of a softmax, and is no part of weights",
          "[experts]") {
  const float given[] = {1, 3, 3, -2, 2}, bias[] = {0.9f, 0, 0, 0, 0.5f};
  const double every = 2 * std::exp(2.0) + 1 + std::exp(1.0) + std::exp(-3.0);
  Routed out[5];
  const auto route = [&](bool renormalised, float least_sum) {
    float scores[5];
    std::copy_n(given, 5, scores);
    Routing routing;
    routing.choice_bias = true;
    routing.least_sum = least_sum;
    route_by_biased_softmax(scores, bias, 5, 2, renormalised, routing, out);
  };
  route(false, 0);
  CHECK(out[0].expert == 0);
  CHECK(out[1].expert == 4);
  CHECK(std::fabs(out[0].weight - 1 / every) <= 1e-7);
  CHECK(std::fabs(out[1].weight - std::exp(1.0) / every) <= 1e-7);
  route(true, 0);
  CHECK(std::fabs(out[0].weight - 1 / (1 + std::exp(1.0))) <= 1e-6);
  CHECK(std::fabs(out[0].weight + out[1].weight - 1) <= 1e-6);
  route(true, 0.5f);  // more than their sum
  CHECK(std::fabs(out[0].weight - 2 / every) <= 1e-6);
}
