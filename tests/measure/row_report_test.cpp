// riffle_set_row_report on layers that differ.
#include "riffle_measure.h"
#include "tests/engine/uneven_model.h"
#include "tests/engine/window_model.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("uneven layers: rows are reported with their layer's query group", "[uneven]") {
  ContextOptions o = sparse(SelectorKind::TOPK);
  o.device = DeviceKind::EMU;
  Runtime r(o, uneven_model);
  riffle_session* const s = r.session(ids(0, 200));
  struct Seen {
    int rows[std::size(kUnevenWindowed)] = {};
    bool good = true;
  } seen;
  r.check(riffle_set_row_report(
      r.context,
      [](void* user, const riffle_row_report* t) {
        Seen& all = *static_cast<Seen*>(user);
        const bool windowed = kUnevenWindowed[t->layer];
        ++all.rows[t->layer];
        all.good &= t->n_group == (windowed ? 2 : 4);
        all.good &= t->n_tokens == (windowed ? kUnevenWindow : 201);
        for (int h = 0; h < t->n_group; ++h)
          all.good &= t->coverage[h] <= 1 && (!windowed || t->coverage[h] > 0.9999f);
      },
      &seen, true));
  const int32_t token = 7;
  r.check(riffle_step(r.context, &s, &token, 1));
  CHECK(seen.good);
  for (size_t i = 0; i < std::size(kUnevenWindowed); ++i)
    CHECK(seen.rows[i] == (kUnevenWindowed[i] ? 4 : 2));
}
