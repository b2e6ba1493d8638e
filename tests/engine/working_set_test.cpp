// Working sets as every selector makes them, on both host backends.
#include "import/load_model.h"
#include "tests/engine/working_sets.h"
#include "tests/select/papers/tokenselect_settings.h"

using namespace riffle;
using namespace riffle::test;

namespace {

riffle_selection selection_of(int selector) {
  riffle_selection s = tokenselect_settings(120, 20, 64);
  s.selector = static_cast<riffle_selector>(selector);
  s.microbatch = 4;
  s.budget = 0.2f;
  s.cache_threshold = 0.9f;
  return s;
}

}  // namespace

TEST_CASE("working sets are the unions of what the last steps read",
          "[engine][model][working_set]") {
  const auto model = load_model(shipped_model(), {});
  for (const riffle_device device : {RIFFLE_DEVICE_CPU, RIFFLE_DEVICE_EMU})
    for (int selector = RIFFLE_SELECTOR_DENSE; selector <= RIFFLE_SELECTOR_AUTO; ++selector)
      for (const riffle_positions positions : {RIFFLE_POSITIONS_TRUE, RIFFLE_POSITIONS_LIST}) {
        if (positions == RIFFLE_POSITIONS_LIST && selector != RIFFLE_SELECTOR_TOKENSELECT) continue;
        INFO("device " << device << " selector " << selector << " positions " << positions);
        WorkingSetPlay p;
        p.options = options();
        p.options.device = device;
        p.options.n_ctx = 1024;
        p.options.block_size = 16;
        if (device == RIFFLE_DEVICE_EMU) p.options.slots = 100;
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
  p.options.selection = selection_of(RIFFLE_SELECTOR_PSA);
  p.options.selection.dense_layers = 1;
  const auto want = play(*model, p);
  p.reports = false;
  CHECK(play(*model, p) == want);
  p.options.n_threads = 3;
  p.options.device = RIFFLE_DEVICE_EMU;
  p.options.slots = 90;
  CHECK(play(*model, p) == want);
  p.reports = p.coverage = true;
  CHECK(play(*model, p) == want);
}
