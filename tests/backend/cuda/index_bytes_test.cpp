// The bytes that a step reads to choose blocks, as the CUDA device states them, against the CPU's
// count of its reads. Needs no GPU.
#include "backend/cuda/step_selection.h"
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
};

std::vector<Case> cases() {
  std::vector<Case> out = {{SelectorKind::SHARE, RankBy::DIGESTS, 1000},
                           {SelectorKind::SHARE, RankBy::DIGESTS, 300 * 16 + 5}};
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::TOPK}))
    out.push_back({selector, RankBy::CODES, 1000});
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::DENSE}))
    out.push_back({selector, RankBy::DIGESTS, 1000});
  return out;
}

}  // namespace

TEST_CASE("index bytes of a GPU step are what the CPU counts, and the ends of blocks' codes",
          "[index]") {
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
            // A GPU's codes of a block end in 12 bytes that are not used.
            const bool codes = selection->codes() == cuda::KeyCodes::Int2;
            CHECK(selection->index_bytes(layout, t.n_blocks, t.n_tokens) ==
                  t.index_bytes + (codes ? 12 * (t.n_blocks - 1) : 0));
            ++rows;
          },
          false);
      const int32_t token = 400;
      r.check(riffle_step(r.context, &s, &token, 1));
      CHECK(rows == 8 * 2);
    }
}
