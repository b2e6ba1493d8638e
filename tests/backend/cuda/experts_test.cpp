// Mixtures of experts on a GPU: a row's bits do not depend on the rows that it shares experts with,
// and steps are replayed as graphs.
#include <algorithm>
#include <cmath>

#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle::test;

namespace {

// Logits of the first of so many sessions that step together; each prompt is read on its own.
std::vector<std::vector<float>> run_tiny(Runtime& r, int sessions) {
  constexpr int kPrompt = 100, kSteps = 8;
  const std::vector<int32_t> ids = tiny_tokens();
  std::vector<riffle_session*> all;
  for (int i = 0; i < sessions; ++i) {
    all.push_back(r.session());
    const int first = 400 * (i > 0) + 3 * i;
    r.check(riffle_prefill(all[i], ids.data() + first, kPrompt - 2 * i, nullptr, nullptr));
  }
  std::vector<std::vector<float>> out{r.logits(all[0])};
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < sessions; ++i) tokens.push_back(ids[kPrompt + step + 37 * i]);
    r.check(riffle_step(r.context, all.data(), tokens.data(), tokens.size()));
    out.push_back(r.logits(all[0]));
  }
  return out;
}

double largest_difference(const std::vector<std::vector<float>>& a,
                          const std::vector<std::vector<float>>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      most = std::max(most, std::fabs(double(a[i][j]) - b[i][j]));
  return most;
}

}  // namespace

TEST_CASE("cuda: experts give a row the same bits in every batch", "[cuda][experts]") {
  if (skip()) return;
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (c.name != "qwen3moe_wide") continue;
    for (const riffle_kv_type kv : {RIFFLE_KV_F32, RIFFLE_KV_F16}) {
      riffle_context_options o = tiny_options(c, options(), kv);
      o.device = RIFFLE_DEVICE_CUDA;
      o.n_sessions = 20;
      const std::string folder = tiny_folder(c, temp);
      Runtime alone(o, folder);
      const auto reference = run_tiny(alone, 1);
      for (const int sessions : {2, 5, 20}) {
        INFO(sessions << " sessions");
        Runtime r(o, folder);
        CHECK(same_bits(run_tiny(r, sessions), reference));
      }
    }
  }
}

// The CPU computes with them. Steps are replayed as graphs, which call it back.
TEST_CASE("cuda: experts in host memory give the GPU's logits, and the same bits in every batch",
          "[cuda][experts]") {
  if (skip()) return;
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (c.name != "qwen3moe_wide" && c.name != "gpt_oss") continue;
    INFO(c.name);
    riffle_context_options o = tiny_options(c, options(), RIFFLE_KV_F32);
    o.device = RIFFLE_DEVICE_CUDA;
    o.n_sessions = 5;
    const std::string folder = tiny_folder(c, temp);
    const auto planned = [&](const Runtime& r, const riffle_context_options& of) {
      riffle_plan plan{};
      plan.struct_size = sizeof plan;
      REQUIRE(riffle_plan_memory(r.model, &of, &plan, nullptr, 0) == RIFFLE_OK);
      return plan;
    };
    o.cpu_experts = 0;
    Runtime on_device(o, folder);
    const auto reference = run_tiny(on_device, 5);
    const riffle_plan without = planned(on_device, o);
    CHECK(without.host_experts == 0);
    std::vector<std::vector<float>> all_on_host;
    for (const int layers : {1, 100}) {
      INFO(layers << " layers");
      o.cpu_experts = layers;
      Runtime r(o, folder);
      const riffle_plan plan = planned(r, o);
      CHECK(plan.cpu_experts >= 1);
      CHECK(plan.weights + plan.host_experts == without.weights);
      all_on_host = run_tiny(r, 5);
      CHECK(largest_difference(all_on_host, reference) < 1e-3);
      // A row's bits depend neither on those beside it nor on whether the step was recorded.
      CHECK(same_bits(run_tiny(r, 5), all_on_host));
      Runtime alone(o, folder);
      CHECK(same_bits(run_tiny(alone, 1), all_on_host));
    }
    // A budget that does not hold all of them.
    o.cpu_experts = -1;
    CHECK(planned(on_device, o).cpu_experts == 0);
    o.gpu_mem = planned(on_device, o).min_gpu_mem;
    Runtime r(o, folder);
    const riffle_plan plan = planned(r, o);
    const std::string notice = riffle_context_notice(r.context);
    INFO(notice);
    CHECK(plan.cpu_experts > 0);
    CHECK(plan.total <= o.gpu_mem);
    CHECK(notice.find("stay in host memory") != std::string::npos);
    CHECK(largest_difference(run_tiny(r, 5), reference) < 1e-3);
  }
}
