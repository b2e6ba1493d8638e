// Selectors that tests go through. A build of the core alone (make CORE=1) lacks those of papers;
// there the tests go through the others.
#pragma once
#include <initializer_list>
#include <vector>

#include "select/registry.h"
#include "util/error.h"

namespace riffle::test {

inline bool is_here(SelectorKind selector) {
  try {
    selectors().of(selector);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns those of the list that this build has, in the list's order.
inline std::vector<SelectorKind> here(std::initializer_list<SelectorKind> list) {
  std::vector<SelectorKind> out;
  for (const SelectorKind selector : list)
    if (is_here(selector)) out.push_back(selector);
  return out;
}

// Returns the first of the list that this build has.
inline SelectorKind first_here(std::initializer_list<SelectorKind> list) {
  return here(list).at(0);
}

inline std::vector<SelectorKind> all_here() {
  return here({SelectorKind::DENSE, SelectorKind::SHARE, SelectorKind::AUTO, SelectorKind::PSA,
               SelectorKind::TOPK, SelectorKind::TWILIGHT, SelectorKind::TOKENSELECT,
               SelectorKind::LFPS});
}

// Returns true if the host may decide residency on a GPU: with parts of papers' selectors.
inline bool host_decides_here() { return is_here(SelectorKind::PSA); }
// Returns the list, without HOST where the host cannot decide.
inline std::vector<ResidencyKind> residencies_here(std::initializer_list<ResidencyKind> list) {
  std::vector<ResidencyKind> out;
  for (const ResidencyKind residency : list)
    if (residency != ResidencyKind::HOST || host_decides_here()) out.push_back(residency);
  return out;
}

// For tests of what no selector changes. Share does not run where the host decides residency.
inline SelectorKind psa_or_share() { return first_here({SelectorKind::PSA, SelectorKind::SHARE}); }
inline SelectorKind psa_or_dense() { return first_here({SelectorKind::PSA, SelectorKind::DENSE}); }

}  // namespace riffle::test
