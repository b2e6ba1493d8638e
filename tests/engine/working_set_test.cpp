// Working sets as every selector makes them, on both host backends.
#include "import/load_model.h"
#include "tests/engine/working_sets.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

Selection selection_of(SelectorKind selector) {
  Selection s;
  s.selector = selector;
  s.select_tokens = 120;
  s.init_tokens = 20;
  s.local_tokens = 64;
  s.microbatch = 4;
  s.budget = 0.2f;
  s.cache_threshold = 0.9f;
  return s;
}

}  // namespace

TEST_CASE("working sets are the unions of what the last steps read",
          "[engine][model][working_set]") {
  OneIn one(2);
  const auto model = load_model(shipped_model(), {});
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
    for (const SelectorKind selector : all_here())
      for (const PositionRule positions : {PositionRule::TEXT, PositionRule::LIST}) {
        if (one.skips()) continue;
        if (positions == PositionRule::LIST && selector != SelectorKind::TOKENSELECT) continue;
        INFO("device " << device << " selector " << selector << " positions " << positions);
        WorkingSetPlay p;
        p.options = options();
        p.options.device = device;
        p.options.n_ctx = 1024;
        p.options.block_size = 16;
        if (device == DeviceKind::EMU) p.options.slots = 100;
        p.options.selection = selection_of(selector);
        p.options.selection.positions = positions;
        p.fails_in_layer = 3;
        play(*model, p);
      }
}

TEST_CASE("working sets do not depend on the pool, the row reports or the threads",
          "[engine][model][working_set]") {
  const auto model = load_model(shipped_model(), {});
  WorkingSetPlay p;
  p.options = options();
  p.options.n_ctx = 1024;
  p.options.block_size = 16;
  p.options.n_threads = 1;
  p.options.selection = selection_of(psa_or_share());
  p.options.selection.dense_layers = 1;
  const auto want = play(*model, p);
  p.reports = false;
  CHECK(play(*model, p) == want);
  p.options.n_threads = 3;
  p.options.device = DeviceKind::EMU;
  p.options.slots = 90;
  CHECK(play(*model, p) == want);
  p.reports = p.coverage = true;
  CHECK(play(*model, p) == want);
}
