// The bytes that a step reads to choose blocks, as the CUDA device states them, against the CPU's
// count of its reads. Needs no GPU.
#include "backend/cuda/step_selection.h"
#include "select/int4_keys.h"
#include "select/selector.h"
#include "tests/engine/test_model.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Case {
  SelectorKind selector;
  RankBy rank;
  int n_tokens;
  int64_t mean_values;  // a head's bytes of them, which the CPU keeps summed up
};

std::vector<Case> cases() {
  const int64_t value = 64 * 2;
  std::vector<Case> out = {
      {SelectorKind::SHARE, RankBy::DIGESTS, 1000, 62 * value},
      {SelectorKind::SHARE, RankBy::DIGESTS, 256 * 16 + 5, 256 * value},
      {SelectorKind::SHARE, RankBy::DIGESTS, 300 * 16 + 5, 150 * value}};  // every second block
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::TOPK}))
    out.push_back({selector, RankBy::CODES, 1000, 0});
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::DENSE}))
    out.push_back({selector, RankBy::DIGESTS, 1000, 0});
  return out;
}

}  // namespace

TEST_CASE("index bytes of a GPU step are what the CPU counts, and the mean values", "[index]") {
  OneIn one(3);
  for (const Case& c : cases())
    for (const KvKind kv : {KvKind::F16, KvKind::F32}) {
      if (one.skips()) continue;
      INFO("selector " << c.selector << ", rank " << c.rank << ", " << c.n_tokens << " tokens, KV "
                       << kv);
      ContextOptions o = options();
      o.n_ctx = 8192;
      o.block_size = 16;
      o.kv_type = kv;
      o.selection.selector = c.selector;
      o.selection.rank = c.rank;
      o.selection.dense_layers = 0;
      Runtime r(o);
      riffle_session* s = r.session();
      const auto prompt = some_tokens(c.n_tokens, 3);
      r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
      const auto selection = cuda::step_selections().make(*make_selector(o.selection)->rule());
      BlockLayout layout;
      layout.block_size = o.block_size;
      layout.head_dim = 64;
      layout.type = static_cast<cpu::KvType>(kv);
      int rows = 0;
      r.context->engine->set_row_report(
          [&](const riffle_session*, const Sequence&, int, int, const RowReport& t) {
            CHECK(selection->index_bytes(layout, t.n_blocks, t.n_tokens) ==
                  t.index_bytes + c.mean_values);
            ++rows;
          },
          false);
      const int32_t token = 400;
      r.check(riffle_step(r.context, &s, &token, 1));
      CHECK(rows == 8 * 2);
    }
}
