// The selectors of this build. The core has dense, share and auto; papers/ adds others.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "select/selector.h"

namespace riffle {

class SelectorRegistry {
 public:
  // A selector, identified by its number in the table of settings.
  struct Entry {
    SelectorKind kind = SelectorKind::DENSE;
    std::unique_ptr<Selector> (*make)(const Selection&, int64_t everything_below) = nullptr;
    // These may be null. Without digests the selector reads none. Without check all settings in
    // range may be combined. Without row_slots an iteration of a row needs one slot.
    DigestSpec (*digests)(const Selection&) = nullptr;
    void (*check)(const Selection&) = nullptr;
    int64_t (*row_slots)(const Selection&) = nullptr;
  };
  // Advice about other selectors, for when key codes or tokens beyond the trained length are a
  // problem. Empty or null: none.
  struct Advice {
    // Changes the selection to the closest one that ranks by digests, and returns its name.
    std::string (*without_codes)(Selection&) = nullptr;
    const char* digests = "";    // a selection that ranks by digests, for errors
    const char* positions = "";  // a way to read tokens beyond the trained length
    // Returns a notice of settings that the selector in force ignores.
    std::string (*unused)(const Selection&, const Selector&) = nullptr;
  };

  void add(const Entry& entry) { entries_.push_back(entry); }
  void advise(const Advice& advice) { advice_ = advice; }
  // Returns the selector with this number. Throws RIFFLE_BAD_ARGUMENT if this build lacks it.
  const Entry& of(SelectorKind kind) const;
  const Advice& advice() const { return advice_; }

 private:
  std::vector<Entry> entries_;
  Advice advice_;
};

// Made once, and never changed.
const SelectorRegistry& selectors();

// Adds the selectors of published papers (papers/). A build of the core alone adds none:
// no_papers.cpp.
void add_papers(SelectorRegistry& registry);

}  // namespace riffle
