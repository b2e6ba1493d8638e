// Every selector at its most generous: it reads all blocks.
#pragma once
#include <vector>

#include "riffle.h"

namespace riffle::test {

struct GenerousSelection {
  const char* name;
  riffle_selection selection;
};

inline std::vector<GenerousSelection> generous_selections() {
  std::vector<GenerousSelection> out;
  const auto add = [&](const char* name, riffle_selector selector, auto&& change) {
    riffle_selection s;
    riffle_selection_defaults(&s);
    s.selector = selector;
    change(s);
    out.push_back({name, s});
  };
  add("psa", RIFFLE_SELECTOR_PSA, [](auto& s) { s.epsilon = 1; });
  add("psa by codes", RIFFLE_SELECTOR_PSA,
      [](auto& s) { s.epsilon = 1, s.rank = RIFFLE_RANK_CODES; });
  add("topk", RIFFLE_SELECTOR_TOPK, [](auto& s) { s.budget = 1; });
  add("twilight", RIFFLE_SELECTOR_TWILIGHT, [](auto& s) { s.base = RIFFLE_BASE_ALL, s.top_p = 1; });
  add("tokenselect", RIFFLE_SELECTOR_TOKENSELECT, [](auto& s) { s.select_tokens = 4096; });
  add("share", RIFFLE_SELECTOR_SHARE, [](auto& s) { s.share = 0; });
  add("auto", RIFFLE_SELECTOR_AUTO, [](auto&) {});
  return out;
}

}  // namespace riffle::test
