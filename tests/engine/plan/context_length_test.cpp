// The context length where none is given: the trained one, or what fits of it.
#include "tests/engine/plan/context_length.h"

#include <cstdio>

#include "engine/engine.h"
#include "import/load_model.h"
#include "tests/engine/window_model.h"
#include "tests/model/made_model.h"
#include "tests/select/selectors_here.h"
#include "util/settings.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Returns the host memory of a plan when the sessions are full. made: bytes of weights that no file
// backs.
uint64_t host_bytes(const MemoryPlan& p, int sessions, uint64_t made) {
  return sessions * (p.host_kv + p.selector_state) + p.activations + p.digests + p.prefill_kv +
         p.pool + made;
}

// Against every length tried in turn.
void check_against_all(const Model& model, ContextOptions o, uint64_t made) {
  const int trained = model.config.n_ctx;
  std::vector<uint64_t> takes;  // by multiples of 1024
  for (int n = 1024; n <= trained; n += 1024) {
    o.n_ctx = n;
    ResolvedOptions r = resolve_options(model.config, o);
    takes.push_back(host_bytes(plan_with(model, r, uint64_t(1) << 50), o.n_sessions, made));
    CHECK(r.context_note.empty());
    if (takes.size() > 1) CHECK(takes.back() > takes[takes.size() - 2]);
  }
  o.n_ctx = 0;
  for (size_t i = 0; i < takes.size(); ++i) {
    INFO("memory for " << (i + 1) * 1024 << " tokens");
    // The least memory whose 7/8 are enough, and a little less.
    uint64_t memory = takes[i] / 7 * 8;
    while (memory - memory / 8 < takes[i]) ++memory;
    ResolvedOptions r = resolve_options(model.config, o);
    CHECK(plan_with(model, r, memory).n_ctx == static_cast<int>(i + 1) * 1024);
    CHECK(r.context_note.empty() == (i + 1 == takes.size()));
    if (i == 0) continue;
    ResolvedOptions less = resolve_options(model.config, o);
    CHECK(plan_with(model, less, memory - 2).n_ctx == static_cast<int>(i) * 1024);
    CHECK(less.options.n_ctx == static_cast<int>(i) * 1024);
    CHECK_THAT(less.context_note, Catch::Contains("this machine's memory"));
  }
}

}  // namespace

TEST_CASE("a default context is the longest that fits gpu_mem", "[limits][context]") {
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  check_default_length_in_budget(o, false);
  o.block_size = 64;
  o.pool_per_layer = true;
  check_default_length_in_budget(o, false);
}

TEST_CASE("a default context is the longest whose KV fits this machine", "[limits][context]") {
  const auto model = load_model(shipped_model(), {});
  ContextOptions o = options();
  o.n_sessions = 1;
  check_against_all(*model, o, 0);
  o.n_sessions = 3;
  o.selection.selector = SelectorKind::SHARE;
  check_against_all(*model, o, 0);
  o.device = DeviceKind::EMU;
  o.slots = 500;
  check_against_all(*model, o, 0);
}

TEST_CASE("weights that no file backs count as host memory", "[limits][context]") {
  const auto model = wide_model();
  model->config.n_ctx = 16384;
  ContextOptions o = options();
  o.n_sessions = 1;
  check_against_all(*model, o, model->weight_bytes);
  materialize(*model);  // the same, once they are there
  uint64_t made = 0;
  for (const Buffer& b : model->generated) made += b.size();
  CHECK(made >= model->weight_bytes * 9 / 10);
  check_against_all(*model, o, made);
}

TEST_CASE("a length that is given is kept on the CPU, and a notice says what it takes",
          "[limits][context]") {
  const auto model = load_model(shipped_model(), {});
  ContextOptions o = options();
  o.n_ctx = 32768;
  o.n_threads = 1;
  ResolvedOptions r = resolve_options(model->config, o);
  MemoryPlan plan = plan_with(*model, r, 64 << 20);
  CHECK(plan.n_ctx == 32768);
  CHECK_THAT(plan.context_note,
             Catch::Contains("32768 tokens take") && Catch::Contains("64.0 MiB"));
  Engine engine(*model, r);
  CHECK(engine.n_ctx() == 32768);
  CHECK_THAT(engine.notice(),
             Catch::Contains("32768 tokens take") && Catch::Contains("host memory"));
  // No length fits: the shortest, which says both.
  o.n_ctx = 0;
  r = resolve_options(model->config, o);
  plan = plan_with(*model, r, 1 << 20);
  CHECK(plan.n_ctx == 1024);
  CHECK_THAT(plan.context_note,
             Catch::Contains("holds 1024 of the 32768") && Catch::Contains("1024 tokens take"));
  // emu's pool has to be there from the start.
  o.device = DeviceKind::EMU;
  o.n_ctx = 32768;
  r = resolve_options(model->config, o);
  r.host_memory = 64 << 20;
  CHECK_THROWS_WITH(plan_memory(*model, r, plan), Catch::Contains("this machine has 64.0 MiB"));
}

TEST_CASE("slots that do not do are refused whatever the length", "[limits][context]") {
  const auto model = load_model(shipped_model(), {});
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  o.slots = 3;
  ResolvedOptions r = resolve_options(model->config, o);
  MemoryPlan plan;
  const auto refused = [&](riffle_status status, const std::string& text) {
    r.host_memory = 64 << 20;
    try {
      plan_memory(*model, r, plan);
      FAIL("no error");
    } catch (const Error& e) {
      CHECK(e.status() == status);
      CHECK_THAT(e.what(), Catch::Contains(text));
    }
    // A shorter context would not help, so none is tried.
    CHECK(plan.n_ctx == 32768);
    CHECK(r.options.n_ctx == 32768);
    CHECK(r.context_note.empty());
  };
  refused(RIFFLE_NO_SLOT, "slots is 3");
  o.gpu_mem = uint64_t(1) << 40;  // has nothing to do with it
  r = resolve_options(model->config, o);
  refused(RIFFLE_NO_SLOT, "slots is 3");
  o.slots = 1 << 24;
  r = resolve_options(model->config, o);
  refused(RIFFLE_OUT_OF_MEMORY, "slots take");
  o.gpu_mem = uint64_t(1) << 30;
  r = resolve_options(model->config, o);
  refused(RIFFLE_OUT_OF_MEMORY, "gpu-mem is 1.00 GiB");
  o.gpu_mem = 0;
  r = resolve_options(model->config, o);
  refused(RIFFLE_OUT_OF_MEMORY, "slots take");
}

TEST_CASE("sessions that take more than 64 bits can count are too many", "[limits][context]") {
  const auto model = wide_model();
  Config& c = model->config;
  ContextOptions o = options();
  o.selection.selector = SelectorKind::DENSE;
  o.n_ctx = 1 << 28;
  c.n_layers = 1024, c.n_heads = c.n_kv_heads = 16, c.head_dim = 256;
  c.layers.resize(c.n_layers);
  // Powers of two: 2^52 bytes a session, 2^72 in all, of which the lower 64 bits are 0.
  o.n_sessions = 1 << 20;
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    o.device = device;
    ResolvedOptions r = resolve_options(c, o);
    r.host_memory = uint64_t(1) << 63;
    MemoryPlan plan;
    if (device == DeviceKind::EMU) {
      CHECK_THROWS_WITH(plan_memory(*model, r, plan), Catch::Contains("slots take"));
      continue;
    }
    plan_memory(*model, r, plan);
    CHECK(plan.host_kv == uint64_t(1) << 52);
    CHECK_THAT(plan.context_note, Catch::Contains("in each of 1048576 sessions take"));
  }
}

TEST_CASE("RoPE that follows the context's length follows the one that was chosen",
          "[limits][context][rope]") {
  const TempDir temp;
  TinyCheckpoint c = tiny_checkpoint("llama_dynamic");
  c.config["max_position_embeddings"] = 8192;
  c.config["rope_scaling"]["original_max_position_embeddings"] = 256;
  const std::string path = tiny_folder(c, temp);
  ContextOptions o = sparse(SelectorKind::DENSE);
  o.device = DeviceKind::EMU;
  o.n_ctx = 2048;
  MemoryPlan plan{};
  {
    Runtime r(o, path);
    plan_error(r.model, o, RIFFLE_OK, &plan);
  }
  const uint64_t gpu_mem = plan.min_gpu_mem;
  const auto logits = [&](int n_ctx, uint64_t budget) {
    o.n_ctx = n_ctx;
    o.gpu_mem = budget;
    Runtime r(o, path);
    CHECK(riffle_context_length(r.context) == static_cast<size_t>(budget || n_ctx ? 2048 : 8192));
    return run(r, r.session(), ids(0, 300), ids(300, 304));
  };
  {
    o.n_ctx = 0;
    o.gpu_mem = gpu_mem;
    Runtime r(o, path);
    CHECK_THAT(riffle_context_notice(r.context),
               Catch::Contains("changes this model's text") && Catch::Contains("dynamic"));
  }
  const auto chosen = logits(0, gpu_mem);
  CHECK(same_bits(chosen, logits(2048, 0)));
  CHECK(!same_bits(chosen, logits(0, 0)));
}
