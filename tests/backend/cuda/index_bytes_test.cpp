// The bytes that a step reads to choose blocks, as the CUDA device states them, against the CPU's
// count of its reads. Needs no GPU.
#include "backend/cuda/step_selection.h"
#include "riffle_measure.h"
#include "select/int4_keys.h"
#include "select/selector.h"
#include "tests/engine/test_model.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Checked {
  const ContextOptions* o;
  std::unique_ptr<cuda::StepSelection> selection;
  int64_t mean_values;  // bytes of them, which the CPU keeps summed up
  int rows = 0;
};

void look(void* user, const riffle_row_report* t) {
  Checked& c = *static_cast<Checked*>(user);
  BlockLayout layout;
  layout.block_size = c.o->block_size;
  layout.head_dim = 64;
  layout.type = static_cast<cpu::KvType>(c.o->kv_type);
  CHECK(c.selection->index_bytes(layout, t->n_blocks, t->n_tokens) ==
        t->index_bytes + c.mean_values);
  ++c.rows;
}

}  // namespace

TEST_CASE("index bytes of a GPU step are what the CPU counts, and the mean values", "[index]") {
  OneIn one(3);
  struct Case {
    SelectorKind selector;
    RankBy rank;
    int n_tokens;
    int64_t mean_values;  // a head's
  };
  const int64_t value = 64 * 2;
  for (const Case& c : {Case{SelectorKind::SHARE, RankBy::DIGESTS, 1000, 62 * value},
                        Case{SelectorKind::SHARE, RankBy::DIGESTS, 256 * 16 + 5, 256 * value},
                        Case{SelectorKind::SHARE, RankBy::DIGESTS, 300 * 16 + 5,
                             150 * value},  // every second block
                        Case{SelectorKind::PSA, RankBy::CODES, 1000, 0},
                        Case{SelectorKind::TOPK, RankBy::CODES, 1000, 0},
                        Case{SelectorKind::PSA, RankBy::DIGESTS, 1000, 0},
                        Case{SelectorKind::DENSE, RankBy::DIGESTS, 1000, 0}})
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
      Checked checked{&o, cuda::step_selections().make(*make_selector(o.selection)->rule()),
                      c.mean_values};
      r.check(riffle_set_row_report(r.context, look, &checked, false));
      const int32_t token = 400;
      r.check(riffle_step(r.context, &s, &token, 1));
      CHECK(checked.rows == 8 * 2);
    }
}
