// Mixtures of experts on a GPU: a row's bits do not depend on the rows that it shares experts with,
// and steps are replayed as graphs.
#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "backend/cuda/weights.h"
#include "tests/engine/failing_experts.h"
#include "tests/engine/lookups.h"
#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Returns the logits of the first of `sessions` sessions that step together. Each prompt is read on
// its own.
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

// A text of the tiny vocabulary. Its end is clear without a further step.
constexpr const char* kTinyNames = R"(root ::= ([a-d]{2,5} " "){6} "z")";

double largest_difference(const std::vector<std::vector<float>>& a,
                          const std::vector<std::vector<float>>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      most = std::max(most, std::fabs(double(a[i][j]) - b[i][j]));
  return most;
}

}  // namespace

// Experts, and operations that few families have: shared KV, per-layer embeddings, norms of their
// own, query heads by layer, other activations.
TEST_CASE("cuda: a row has the same bits in every batch", "[cuda][experts][families]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name :
       {"qwen3moe_wide", "ernie4_5_moe_wide", "gemma4_moe_wide", "gemma4_e4b", "gemma4_images",
        "laguna_wide", "cohere2_wide", "cohere2_moe_wide", "hunyuan_wide", "apertus_wide",
        "gemma4_512", "glm4_lite_wide", "deepseek3_full", "exaone_moe_wide"}) {
    const TinyCheckpoint c = tiny_checkpoint(name);
    for (const KvKind kv : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      INFO(name << ", KV " << static_cast<int>(kv));
      ContextOptions o = tiny_options(c, options(), kv);
      o.device = DeviceKind::CUDA;
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
    if (c.name != "qwen3moe_wide" && c.name != "gpt_oss" && c.name != "gemma4_moe_wide" &&
        c.name != "cohere2_moe_wide" && c.name != "glm4_lite_wide")
      continue;
    INFO(c.name);
    ContextOptions o = tiny_options(c, options(), KvKind::F32);
    o.device = DeviceKind::CUDA;
    o.n_sessions = 5;
    const std::string folder = tiny_folder(c, temp);
    const auto planned = [&](const Runtime& r, const ContextOptions& of) {
      MemoryPlan plan{};
      REQUIRE(plan_memory(r.model, &of, &plan, nullptr, 0) == RIFFLE_OK);
      return plan;
    };
    o.cpu_experts = 0;
    Runtime on_device(o, folder);
    const auto reference = run_tiny(on_device, 5);
    const MemoryPlan without = planned(on_device, o);
    CHECK(without.host_experts == 0);
    CHECK(without.prompt_host == 0);
    std::vector<std::vector<float>> all_on_host;
    for (const int layers : {1, 100}) {
      INFO(layers << " layers");
      o.cpu_experts = layers;
      Runtime r(o, folder);
      const MemoryPlan plan = planned(r, o);
      CHECK(plan.cpu_experts >= 1);
      CHECK(plan.weights + plan.host_experts == without.weights);
      CHECK(plan.prompt_host == riffle::cuda::weight_staging_bytes());
      all_on_host = run_tiny(r, 5);
      CHECK(largest_difference(all_on_host, reference) < 1e-3);
      // A row's bits depend neither on the other rows nor on whether the step was recorded.
      CHECK(same_bits(run_tiny(r, 5), all_on_host));
      Runtime alone(o, folder);
      CHECK(same_bits(run_tiny(alone, 1), all_on_host));
    }
    // A budget that does not hold all of them.
    o.cpu_experts = -1;
    CHECK(planned(on_device, o).cpu_experts == 0);
    o.gpu_mem = planned(on_device, o).min_gpu_mem;
    Runtime r(o, folder);
    const MemoryPlan plan = planned(r, o);
    const std::string notice = riffle_context_notice(r.context);
    INFO(notice);
    CHECK(plan.cpu_experts > 0);
    CHECK(plan.total <= o.gpu_mem);
    CHECK(notice.find("stay in host memory") != std::string::npos);
    CHECK(largest_difference(run_tiny(r, 5), reference) < 1e-3);
  }
}

// Experts leave the GPU, those of as few layers as possible, until the pool has room for one whole
// session and an eighth of each other.
TEST_CASE("cuda: dense attention moves experts to the host until its KV fits the pool",
          "[cuda][experts][memory]") {
  if (skip()) return;
  const TempDir temp;
  const TinyCheckpoint c = tiny_checkpoint("qwen3moe_wide");
  ContextOptions o = tiny_options(c, options(), KvKind::F16);
  o.device = DeviceKind::CUDA;
  o.n_ctx = 1024;
  o.selection.selector = SelectorKind::DENSE;
  const Runtime r(o, tiny_folder(c, temp));
  const Config& config = r.model->model->config;
  int64_t blocks = 0;
  for (int layer = 0; layer < config.n_layers; ++layer)
    blocks += config.kv_heads(layer) * ((o.n_ctx + o.block_size - 1) / o.block_size);
  // Returns the plan; none if the budget is too small.
  const auto planned = [&](ContextOptions of) -> std::optional<MemoryPlan> {
    MemoryPlan plan{};
    if (plan_memory(r.model, &of, &plan, nullptr, 0) != RIFFLE_OK) return std::nullopt;
    return plan;
  };
  const auto holds = [&](const MemoryPlan& plan, int sessions) {
    return 8 * plan.slots >= blocks * (7 + sessions);
  };
  const auto at = [&](uint64_t gpu_mem, int layers, int sessions) {
    ContextOptions of = o;
    of.gpu_mem = static_cast<int64_t>(gpu_mem), of.cpu_experts = layers, of.n_sessions = sessions;
    return planned(of);
  };
  const uint64_t without = at(0, 0, 1)->min_gpu_mem, slot_bytes = at(0, 0, 1)->slot_bytes;
  for (const int sessions : {1, 5}) {
    const uint64_t least = at(0, -1, sessions)->min_gpu_mem;
    int moved = 0;
    // With the largest budget of this loop all KV and all experts fit.
    const uint64_t kv =
        2 * static_cast<uint64_t>(blocks) * slot_bytes * static_cast<uint64_t>(sessions);
    for (uint64_t part = 0; part <= 256; ++part) {
      const uint64_t budget = least + (without + kv - least) * part / 256;
      const auto plan = at(budget, -1, sessions);
      REQUIRE(plan);
      INFO("budget " << budget << ", " << sessions << " sessions: " << plan->cpu_experts
                     << " layers, " << plan->slots << " slots, " << blocks << " blocks");
      const int n = plan->cpu_experts;
      if (holds(*plan, sessions) && n > 0) {
        ++moved;
        const auto one_less = at(budget, n - 1, sessions);
        CHECK((!one_less || !holds(*one_less, sessions)));
      }
    }
    CHECK(moved > 0);
  }
}

// An exception on the CPU while the device waits for it: in a step of single operations (the
// first), in one that is recorded (the second) and in one that is replayed.
TEST_CASE("cuda: experts that fail on the CPU are an error, and the step can be tried again",
          "[cuda][experts]") {
  if (skip()) return;
  const TempDir temp;
  const TinyCheckpoint c = tiny_checkpoint("qwen3moe_wide");
  const std::string folder = tiny_folder(c, temp);
  const std::vector<int32_t> ids = tiny_tokens();
  constexpr int kPrompt = 100, kSteps = 7;
  for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
    ContextOptions o = tiny_options(c, options(), KvKind::F32);
    o.device = DeviceKind::CUDA;
    o.selection.selector = selector;
    o.cpu_experts = 100;
    const auto run = [&](int failing, int nth) {
      Runtime r(o, folder);
      riffle_session* s = r.session({ids.begin(), ids.begin() + kPrompt});
      std::vector<std::vector<float>> out;
      for (int step = 0; step < kSteps; ++step) {
        const int32_t token = ids[kPrompt + step];
        // Twice, so that a step follows another one that failed.
        for (int time = 0; step == failing && time < 2; ++time) {
          fail_experts(nth);
          CHECK(riffle_step(r.context, &s, &token, 1) == RIFFLE_OUT_OF_MEMORY);
          CHECK(experts_failed());
          CHECK(riffle_session_length(s) == static_cast<size_t>(kPrompt + step));
        }
        r.check(riffle_step(r.context, &s, &token, 1));
        out.push_back(r.logits(s));
      }
      return out;
    };
    const auto want = run(-1, 0);
    for (const int failing : {0, 1, 2, 5})
      for (const int nth : {1, 2}) {  // the first layer's experts, those of the second
        INFO("selector " << selector << ", step " << failing << ", call " << nth);
        CHECK(same_bits(run(failing, nth), want));
      }
  }
}

TEST_CASE("cuda: two contexts with experts in host memory step in two threads",
          "[cuda][experts][threads]") {
  if (skip()) return;
  const TempDir temp;
  const TinyCheckpoint c = tiny_checkpoint("qwen3moe_wide");
  const std::string folder = tiny_folder(c, temp);
  const std::vector<int32_t> ids = tiny_tokens();
  constexpr int kSteps = 200, kLogits = 64;
  // No assertions here: Catch is not for several threads.
  const auto work = [&](int which, std::vector<std::vector<float>>& out) {
    ContextOptions o = tiny_options(c, options(), KvKind::F32);
    o.device = DeviceKind::CUDA;
    o.cpu_experts = 100;
    o.n_threads = 2;
    riffle_model* model = nullptr;
    riffle_context* context = nullptr;
    riffle_session* s = nullptr;
    bool fine = riffle_model_load(folder.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK &&
                context_create(model, &o, &context, nullptr, 0) == RIFFLE_OK &&
                riffle_session_create(context, &s) == RIFFLE_OK &&
                riffle_prefill(s, ids.data() + 50 * which, 60, nullptr, nullptr) == RIFFLE_OK;
    for (int step = 0; fine && step < kSteps; ++step) {
      const int32_t token = ids[(110 + 7 * which + step) % 600];
      riffle_status status = riffle_step(context, &s, &token, 1);
      // A step that the other context made impossible fails with an error that says so, and
      // succeeds when tried again.
      for (int again = 0; status == RIFFLE_INTERNAL && again < 3; ++again) {
        fine = std::string(riffle_context_error(context)).find("kernels of another") !=
               std::string::npos;
        if (!fine) break;
        status = riffle_step(context, &s, &token, 1);
      }
      fine = fine && status == RIFFLE_OK;
      if (fine) out.emplace_back(riffle_logits(s), riffle_logits(s) + kLogits);
    }
    riffle_session_free(s);
    riffle_context_free(context);
    riffle_model_free(model);
    return fine;
  };
  std::vector<std::vector<float>> alone[2], both[2];
  for (const int i : {0, 1}) CHECK(work(i, alone[i]));
  bool fine[2] = {};
  std::thread other([&] { fine[1] = work(1, both[1]); });
  fine[0] = work(0, both[0]);
  other.join();
  for (const int i : {0, 1}) {
    INFO("context " << i);
    CHECK(fine[i]);
    CHECK(alone[i].size() == kSteps);
    CHECK(same_bits(alone[i], both[i]));
  }
}

// Masks are found while the device computes, and answers to the device's calls come after them.
TEST_CASE("cuda: answers by a grammar with experts in host memory", "[cuda][experts][grammar]") {
  if (skip()) return;
  const TempDir temp;
  const TinyCheckpoint c = tiny_checkpoint("qwen3moe_wide");
  const std::string folder = tiny_folder(c, temp);
  const std::vector<int32_t> ids = tiny_tokens();
  ContextOptions o = tiny_options(c, options(), KvKind::F32);
  o.device = DeviceKind::CUDA;
  o.cpu_experts = 100;
  o.n_sessions = 3;
  std::vector<Answered> first;
  for (const bool reports : {false, true}) {  // with reports steps are not recorded
    INFO("reports " << reports);
    Runtime r(o, folder);
    if (reports)
      r.context->engine->set_row_report(
          [](const riffle_session*, const Sequence&, int, int, const RowReport&) {}, false);
    const TestGrammar grammar(r, kTinyNames);
    std::vector<riffle_session*> sessions;
    std::vector<GenerateOptions> asked;
    std::vector<Answered> alone;
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> prompt(ids.begin() + 40 * i, ids.begin() + 40 * i + 90);
      asked.push_back(i == 1 ? answer_of(20) : names(grammar, i));  // one without a mask
      asked.back().max_tokens = 60;
      alone.push_back(answer(r, prompt, asked[i]));
      sessions.push_back(r.session(prompt));
    }
    for (const int i : {0, 2}) {
      CHECK(alone[i].result.finish == RIFFLE_FINISH_STOP);
      CHECK(alone[i].text.ends_with("z"));
    }
    if (first.empty()) first = alone;
    const auto together = answers(r, sessions, asked);
    for (const int i : {0, 1, 2}) {
      INFO("session " << i);
      CHECK(alone[i].text == first[i].text);
      CHECK(same_answer(together[i], alone[i]));
    }
  }
}
