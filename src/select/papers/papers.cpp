// Registers the selectors of published papers.
#include "select/papers/papers.h"

#include "select/registry.h"
#include "util/error.h"

namespace riffle {
namespace {

bool ranks_as_psa(const Selection& s) {
  return s.selector == SelectorKind::PSA ||
         (s.selector == SelectorKind::TWILIGHT && s.base == BaseSelection::PSA);
}

void check_bounds(const Selection& s) {
  if (ranks_as_psa(s) && s.stop == StopRule::BOUND && s.digest == BlockDigest::MEAN)
    fail(RIFFLE_BAD_ARGUMENT,
         "`selection.stop` is bound, expected paper, last or veto with digest mean: a mean gives "
         "no upper bound, digests quest and cuboid-mean do");
}

// Digests rank blocks, and two stop modes use them to bound the unread blocks. All other settings
// use key codes, the keys themselves, or nothing.
DigestSpec digests_of(const Selection& s) {
  const bool bounds = ranks_as_psa(s) && (s.stop == StopRule::BOUND || s.stop == StopRule::VETO);
  DigestSpec spec;
  spec.kept = s.selector == SelectorKind::TWILIGHT ? s.base != BaseSelection::ALL
                                                   : !ranks_by_codes(s) || bounds;
  spec.kind = static_cast<cpu::DigestKind>(s.digest);
  spec.with_mean = ranks_as_psa(s) && s.stop == StopRule::VETO;
  return spec;
}

int64_t slots_of_psa(const Selection& s) {
  return int64_t(s.sink_blocks) + s.recent_blocks + int64_t(s.lookahead + 1) * s.microbatch;
}

std::string without_codes(Selection& s) {
  const bool ranks = ranks_by_codes(s);
  if (!ranks) s.selector = SelectorKind::PSA;
  s.rank = RankBy::DIGESTS;
  return ranks ? "`selection.rank` digests" : "`selection.selector` psa";
}

std::string unused_positions(const Selection& s, const Selector& selector) {
  if (s.positions != PositionRule::LIST || selector.lists()) return "";
  return "positions list needs selector tokenselect: the selector in force takes positions from "
         "the text";
}

}  // namespace

void add_papers(SelectorRegistry& all) {
  all.add({.kind = SelectorKind::PSA,
           .make = [](const Selection& s, int64_t) { return make_psa(s); },
           .digests = digests_of,
           .check = check_bounds,
           .row_slots = slots_of_psa});
  all.add({.kind = SelectorKind::TOPK,
           .make = [](const Selection& s, int64_t) { return make_topk(s); },
           .digests = digests_of});
  all.add({.kind = SelectorKind::TWILIGHT,
           .make = [](const Selection& s, int64_t) { return make_twilight(s); },
           .digests = digests_of,
           .check = check_bounds});
  all.add({.kind = SelectorKind::TOKENSELECT,
           .make = [](const Selection& s, int64_t) { return make_tokenselect(s); }});
  all.add({.kind = SelectorKind::LFPS,
           .make = [](const Selection& s, int64_t) { return make_lfps(s); }});
  all.advise({.without_codes = without_codes,
              .digests = "`selection.selector` psa with `selection.rank` digests",
              .positions =
                  ", unless positions are places in a list (selector tokenselect, positions list)",
              .unused = unused_positions});
}

}  // namespace riffle
