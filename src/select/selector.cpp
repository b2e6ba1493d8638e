#include "select/selector.h"

#include "util/error.h"
#include "util/settings.h"

namespace riffle {

static bool ranks_as_psa(const Selection& s) {
  return s.selector == SelectorKind::PSA ||
         (s.selector == SelectorKind::TWILIGHT && s.base == BaseSelection::PSA);
}

void check_selection(const Selection& s) {
  check_settings(OptionsKind::SELECTION, &s);
  if (ranks_as_psa(s) && s.stop == StopRule::BOUND && s.digest == BlockDigest::MEAN)
    fail(RIFFLE_BAD_ARGUMENT,
         "`selection.stop` is bound, expected paper, last or veto with digest mean: a mean bounds "
         "nothing from above, "
         "digests quest and cuboid-mean do");
}

// Digests rank blocks, and two stop modes bound the rest by them. All other settings look at INT4
// keys, at the keys themselves, or at nothing.
static bool reads_digests(const Selection& s) {
  if (s.selector == SelectorKind::TWILIGHT) return s.base != BaseSelection::ALL;
  const bool bounds = ranks_as_psa(s) && (s.stop == StopRule::BOUND || s.stop == StopRule::VETO);
  const bool ranks = s.selector == SelectorKind::PSA || s.selector == SelectorKind::TOPK;
  return ranks && (!ranks_by_codes(s) || bounds);
}

DigestSpec digest_spec(const Selection& s) {
  DigestSpec spec;
  spec.kept = reads_digests(s);
  spec.kind = static_cast<cpu::DigestKind>(s.digest);
  spec.with_mean = ranks_as_psa(s) && s.stop == StopRule::VETO;
  return spec;
}

std::unique_ptr<Selector> make_selector(const Selection& settings, int64_t everything_below) {
  check_selection(settings);
  switch (settings.selector) {
    case SelectorKind::PSA: return make_psa(settings);
    case SelectorKind::TOPK: return make_topk(settings);
    case SelectorKind::TWILIGHT: return make_twilight(settings);
    case SelectorKind::TOKENSELECT: return make_tokenselect(settings);
    case SelectorKind::LFPS: return make_lfps(settings);
    case SelectorKind::SHARE: return make_share(settings, 0);
    case SelectorKind::AUTO: return make_share(settings, everything_below);
    case SelectorKind::DENSE: break;
  }
  return make_dense();
}

}  // namespace riffle
