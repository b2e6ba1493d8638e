#include "select/selector.h"

#include "util/error.h"
#include "util/settings.h"

namespace riffle {

static bool ranks_as_psa(const riffle_selection& s) {
  return s.selector == RIFFLE_SELECTOR_PSA ||
         (s.selector == RIFFLE_SELECTOR_TWILIGHT && s.base == RIFFLE_BASE_PSA);
}

void check_selection(const riffle_selection& s) {
  if (s.struct_size != sizeof s)
    fail(RIFFLE_BAD_ARGUMENT, "selection.struct_size is %zu, expected %zu", s.struct_size,
         sizeof s);
  check_settings(RIFFLE_OPTIONS_SELECTION, &s);
  if (ranks_as_psa(s) && s.stop == RIFFLE_STOP_BOUND && s.digest == RIFFLE_DIGEST_MEAN)
    fail(RIFFLE_BAD_ARGUMENT,
         "`selection.stop` is bound, expected paper, last or veto with digest mean: a mean bounds "
         "nothing from above, "
         "digests quest and cuboid-mean do");
}

// Digests rank blocks, and two stop modes bound the rest by them. All other settings look at INT4
// keys, at the keys themselves, or at nothing.
static bool reads_digests(const riffle_selection& s) {
  if (s.selector == RIFFLE_SELECTOR_TWILIGHT) return s.base != RIFFLE_BASE_ALL;
  const bool bounds =
      ranks_as_psa(s) && (s.stop == RIFFLE_STOP_BOUND || s.stop == RIFFLE_STOP_VETO);
  const bool ranks = s.selector == RIFFLE_SELECTOR_PSA || s.selector == RIFFLE_SELECTOR_TOPK;
  return ranks && (!ranks_by_codes(s) || bounds);
}

DigestSpec digest_spec(const riffle_selection& s) {
  DigestSpec spec;
  spec.kept = reads_digests(s);
  spec.kind = static_cast<cpu::DigestKind>(s.digest);
  spec.with_mean = ranks_as_psa(s) && s.stop == RIFFLE_STOP_VETO;
  return spec;
}

std::unique_ptr<Selector> make_selector(const riffle_selection& settings,
                                        int64_t everything_below) {
  check_selection(settings);
  switch (settings.selector) {
    case RIFFLE_SELECTOR_PSA: return make_psa(settings);
    case RIFFLE_SELECTOR_TOPK: return make_topk(settings);
    case RIFFLE_SELECTOR_TWILIGHT: return make_twilight(settings);
    case RIFFLE_SELECTOR_TOKENSELECT: return make_tokenselect(settings);
    case RIFFLE_SELECTOR_LFPS: return make_lfps(settings);
    case RIFFLE_SELECTOR_SHARE: return make_share(settings, 0);
    case RIFFLE_SELECTOR_AUTO: return make_share(settings, everything_below);
    case RIFFLE_SELECTOR_DENSE: break;
  }
  return make_dense();
}

}  // namespace riffle
