// Logits stay on the GPU until somebody asks for them.
#include "tests/engine/late_logits.h"
#include "tests/engine/lookups.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

static ContextOptions cuda_options() {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 1024;
  o.n_sessions = 4;
  return o;
}

TEST_CASE("cuda: logits may be asked for late, and those given stay", "[cuda]") {
  if (skip()) return;
  check_late_logits(cuda_options());
}

TEST_CASE("cuda: a step that fails leaves the logits of the one before", "[cuda]") {
  if (skip()) return;
  check_logits_of_failed_step(cuda_options());
}

// More rows than any step before take other memory, while logits of the last step are there.
TEST_CASE("cuda: logits outlive the memory that they were computed in", "[cuda]") {
  if (skip()) return;
  Runtime r(cuda_options());
  riffle_session* const first = r.session(some_tokens(50, 1));
  int32_t token = 400;
  r.check(riffle_step(r.context, &first, &token, 1));
  const auto want = r.logits(first);
  r.check(riffle_session_truncate(first, 50));
  r.check(riffle_step(r.context, &first, &token, 1));
  riffle_session* others[] = {r.session(some_tokens(60, 2)), r.session(some_tokens(70, 3)),
                              r.session(some_tokens(80, 4))};
  const int32_t tokens[] = {500, 501, 502};
  r.check(riffle_step(r.context, others, tokens, 3));
  CHECK(r.logits(first) == want);
}

// Penalties change logits where the token is drawn; a session's logits are the model's own.
TEST_CASE("cuda: logits of a draw with penalties are the model's own", "[cuda][penalties]") {
  if (skip()) return;
  Runtime r(cuda_options());
  const auto prompt = quoting_prompt(5);
  GenerateOptions g = answer_of(40, 0.8f, 9);
  g.sampling.repeat_penalty = 1.3f;
  g.sampling.presence_penalty = 0.4f;
  const Answered penalised = answer(r, prompt, g);
  riffle_session* const twin = r.session(prompt);
  for (size_t i = 0; i < penalised.tokens.size(); ++i) {
    INFO("token " << i);
    REQUIRE(same_bits({penalised.logits[i]}, {r.logits(twin)}));
    r.check(riffle_step(r.context, &twin, &penalised.tokens[i], 1));
  }
}
