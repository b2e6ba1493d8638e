// Layers with a sliding window: what is read, that no selector, pool, thread, chunk or batch
// changes the result, and what does not work with them. Parity with transformers: parity_test.cpp.
#include "tests/engine/window_model.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Seen {
  int64_t n_tokens, n_tokens_read;
  int n_read;
  bool whole;  // coverage is 1 for every head
};

}  // namespace

TEST_CASE("window: every selector gives the dense logits, wherever the KV is",
          "[window][arithmetic]") {
  const TempDir temp;
  const auto prompt = ids(0, 300), steps = ids(300, 340);
  for (const int window : {20, 64, 100}) {
    INFO("window " << window);
    const std::string path = mistral(temp, window);
    std::vector<std::vector<float>> reference;
    {
      Runtime r(sparse(SelectorKind::DENSE), path);
      reference = run(r, r.session(), prompt, steps);
    }
    for (const SelectorKind selector : kSelectors) {
      INFO("selector " << selector);
      ContextOptions o = sparse(selector);
      Runtime r(o, path);
      CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
      const Stats stats = r.stats();
      const uint64_t rows = 2 * 2 * steps.size();  // two layers, two KV heads
      CHECK(stats.kv_tokens_total == rows * window);
      CHECK(stats.kv_tokens_read == rows * window);
      CHECK(stats.kv_blocks_total == stats.kv_blocks_read);
      CHECK(stats.kv_blocks_total < rows * (window / 16 + 2));
      CHECK(stats.index_bytes_read == 0);

      o.n_threads = 1;
      o.prefill_chunk = 48;
      Runtime chunks(o, path);
      CHECK(same_bits(run(chunks, chunks.session(), prompt, steps), reference));
      o.n_threads = 3;
      o.prefill_chunk = 500;
      o.device = DeviceKind::EMU;
      for (const int slots : {8, 16, 60}) {
        INFO("slots " << slots);
        o.slots = slots;
        Runtime pooled(o, path);
        CHECK(same_bits(run(pooled, pooled.session(), prompt, steps), reference));
      }
    }
  }
}

TEST_CASE("window: steps give what a prefill gives", "[window][arithmetic]") {
  const TempDir temp;
  for (const int window : {1, 17, 100}) {
    const std::string path = mistral(temp, window);
    for (const KvKind type : {KvKind::F32, KvKind::F16}) {
      ContextOptions o = sparse(SelectorKind::DENSE);
      o.kv_type = type;
      Runtime r(o, path);
      const auto rows = run(r, r.session(), ids(0, 150), ids(150, 260));
      for (const int n : {1, 2, 60, 110}) {
        riffle_session* s = r.session();
        const auto all = ids(0, 150 + n);
        r.check(riffle_prefill(s, all.data(), all.size(), nullptr, nullptr));
        const TinyDifference d = tiny_difference(r.logits(s), rows[n], "step " + std::to_string(n));
        INFO(d.where << ", window " << window);
        CHECK(d.relative <= (type == KvKind::F32
                                 ? 1e-4
                                 : 1e-3));  // f16: values near the middle may round the other way
      }
    }
  }
}

TEST_CASE("window: only the layers that have one, and all of it", "[window][arithmetic]") {
  const TempDir temp;
  const std::string path = qwen(temp, 50);
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
    for (const SelectorKind selector : kSelectors) {
      INFO("selector " << selector);
      ContextOptions o = sparse(selector);
      o.device = device;
      Runtime r(o, path);
      riffle_session* s = r.session();
      const auto prompt = ids(0, 200);
      r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
      std::vector<std::vector<Seen>> layers(2);
      const int group = r.model->model->config.n_heads / 2;
      r.context->engine->set_row_report(
          [&](const riffle_session*, const Sequence&, int layer, int, const RowReport& t) {
            bool whole = true;
            for (int h = 0; h < group; ++h) whole = whole && t.coverage[h] > 0.9999f;
            layers[layer].push_back({t.n_tokens, t.tokens_read, t.n_read, whole});
          },
          true);
      for (const int32_t token : ids(200, 230)) r.check(riffle_step(r.context, &s, &token, 1));
      for (int layer = 0; layer < 2; ++layer) {
        const int heads = static_cast<int>(layers[layer].size()) / 30;
        for (size_t i = 0; i < layers[layer].size(); ++i) {
          const Seen& row = layers[layer][i];
          const int64_t held = 201 + static_cast<int64_t>(i) / heads;
          CHECK(row.n_tokens == (layer == 0 ? held : 50));
          if (layer == 1) {
            CHECK(row.n_tokens_read == 50);
            CHECK(row.n_read == (held - 1) / 16 - (held - 50) / 16 + 1);
            CHECK(row.whole);
          }
        }
      }
    }
}

TEST_CASE("window: sequences stepped together give what each gives alone", "[window][arithmetic]") {
  OneIn one(2);
  const TempDir temp;
  const std::string path = mistral(temp, 64);
  for (const int slots : {0, 16}) {
    if (one.skips()) continue;
    ContextOptions o = sparse(psa_or_share());
    const ContextOptions alone = o;
    if (slots) o.device = DeviceKind::EMU, o.slots = slots;
    check_together(alone, o, path);
  }
}

// A model may have a window that its context never fills; there selectors choose as always.
TEST_CASE("window: one that holds the whole context changes nothing", "[window][arithmetic]") {
  const TempDir temp;
  const std::string with = mistral(temp, 1024), without = mistral(temp, 0);
  for (const SelectorKind selector : kSelectors) {
    INFO("selector " << selector);
    Runtime a(sparse(selector), with), b(sparse(selector), without);
    CHECK(same_bits(run(a, a.session(), ids(0, 300), ids(300, 320)),
                    run(b, b.session(), ids(0, 300), ids(300, 320))));
  }
}
