// Prompts of a large layer, which is in no file, under the smallest budget of GPU memory.
#include "riffle_measure.h"
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/test_model.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("cuda: a short prompt after a long one keeps to the budget", "[cuda][memory]") {
  if (skip()) return;
  riffle_model* model = nullptr;
  char err[1024] = "";
  REQUIRE(riffle_model_synthetic("llama-3-70b-layer", "q8_0", &model, err, sizeof err) ==
          RIFFLE_OK);
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 131072;  // a layer of KV is 512 MiB
  o.block_size = 16;
  o.selection.selector = SelectorKind::PSA;
  o.selection.microbatch = 4;
  o.gpu_mem = plan_of_least_memory(model, o).min_gpu_mem;
  riffle_context* context = nullptr;
  REQUIRE(context_create(model, &o, &context, err, sizeof err) == RIFFLE_OK);
  riffle_session* s = nullptr;
  REQUIRE(riffle_session_create(context, &s) == RIFFLE_OK);
  for (int n : {131000, 60000, 50000, 100000, 65000}) {
    INFO(n << " tokens: " << riffle_context_error(context));
    const auto prompt = some_tokens(n, 2);
    CHECK(riffle_session_truncate(s, 0) == RIFFLE_OK);
    CHECK(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr) == RIFFLE_OK);
    const int32_t token = 400;
    CHECK(riffle_step(context, &s, &token, 1) == RIFFLE_OK);
  }
  Stats stats{};
  CHECK(get_stats(context, &stats) == RIFFLE_OK);
  CHECK(stats.peak_device_bytes <= o.gpu_mem);
  riffle_session_free(s);
  riffle_context_free(context);
  riffle_model_free(model);
}
