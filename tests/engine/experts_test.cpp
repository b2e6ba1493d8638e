// A mixture of experts: a token's bits depend on its own sequence alone.
#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"

using namespace riffle::test;

TEST_CASE("experts: bits do not depend on threads, chunks and the batch", "[experts]") {
  const TempDir temp;
  const std::vector<int32_t> ids = tiny_tokens();
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (!c.config.contains("num_experts")) continue;
    INFO(c.name);
    const std::string path = tiny_folder(c, temp);
    riffle_context_options o = tiny_options(c, options(), RIFFLE_KV_F32);
    o.n_sessions = 4;
    const auto read = [&](Runtime& r, int n) {
      riffle_session* s = r.session();
      r.check(riffle_prefill(s, ids.data(), static_cast<size_t>(n), nullptr, nullptr));
      return s;
    };
    Runtime plain(o, path);
    riffle_session* alone = read(plain, 100);
    const std::vector<float> prefilled = plain.logits(alone);
    plain.check(riffle_step(plain.context, &alone, &ids[100], 1));
    const std::vector<float> stepped = plain.logits(alone);
    o.prefill_chunk = 7;
    o.n_threads = 3;
    Runtime other(o, path);
    riffle_session* sessions[3] = {read(other, 40), read(other, 100), read(other, 71)};
    CHECK(same_bits({other.logits(sessions[1])}, {prefilled}));
    const int32_t next[3] = {ids[40], ids[100], ids[71]};
    other.check(riffle_step(other.context, sessions, next, 3));
    CHECK(same_bits({other.logits(sessions[1])}, {stepped}));
  }
}
