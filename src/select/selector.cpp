#include "select/selector.h"

#include "select/registry.h"
#include "util/error.h"
#include "util/settings.h"

namespace riffle {

const SelectorRegistry& selectors() {
  static const SelectorRegistry registry = [] {
    SelectorRegistry all;
    all.add({.kind = SelectorKind::DENSE,
             .make = [](const Selection&, int64_t) { return make_dense(); }});
    all.add({.kind = SelectorKind::SHARE,
             .make = [](const Selection& s, int64_t) { return make_share(s, 0); }});
    all.add({.kind = SelectorKind::AUTO, .make = make_share});
    add_papers(all);
    return all;
  }();
  return registry;
}

const SelectorRegistry::Entry& SelectorRegistry::of(SelectorKind kind) const {
  for (const Entry& entry : entries_)
    if (entry.kind == kind) return entry;
  fail(RIFFLE_BAD_ARGUMENT,
       "`selection.selector` is %d, which this build lacks: expected %d, %d or %d",
       static_cast<int>(kind), static_cast<int>(SelectorKind::DENSE),
       static_cast<int>(SelectorKind::SHARE), static_cast<int>(SelectorKind::AUTO));
}

void check_selection(const Selection& s) {
  check_settings(OptionsKind::SELECTION, &s);
  if (const auto check = selectors().of(s.selector).check) check(s);
}

DigestSpec digest_spec(const Selection& s) {
  const auto digests = selectors().of(s.selector).digests;
  if (digests) return digests(s);
  DigestSpec none;
  none.kept = false;
  none.kind = static_cast<cpu::DigestKind>(s.digest);
  return none;
}

int64_t row_slots(const Selection& s) {
  const auto slots = selectors().of(s.selector).row_slots;
  return slots ? slots(s) : 1;
}

std::unique_ptr<Selector> make_selector(const Selection& settings, int64_t everything_below) {
  check_selection(settings);
  return selectors().of(settings.selector).make(settings, everything_below);
}

}  // namespace riffle
