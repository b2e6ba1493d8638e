// Every selector at its most generous: it reads all blocks.
#pragma once
#include <vector>

#include "util/options.h"

namespace riffle::test {

struct GenerousSelection {
  const char* name;
  Selection selection;
};

inline std::vector<GenerousSelection> generous_selections() {
  std::vector<GenerousSelection> out;
  const auto add = [&](const char* name, SelectorKind selector, auto&& change) {
    Selection s;
    s.selector = selector;
    change(s);
    out.push_back({name, s});
  };
  add("psa", SelectorKind::PSA, [](auto& s) { s.epsilon = 1; });
  add("psa by codes", SelectorKind::PSA, [](auto& s) { s.epsilon = 1, s.rank = RankBy::CODES; });
  add("topk", SelectorKind::TOPK, [](auto& s) { s.budget = 1; });
  add("twilight", SelectorKind::TWILIGHT,
      [](auto& s) { s.base = BaseSelection::ALL, s.top_p = 1; });
  add("tokenselect", SelectorKind::TOKENSELECT, [](auto& s) { s.select_tokens = 4096; });
  add("share", SelectorKind::SHARE, [](auto& s) { s.share = 0; });
  add("auto", SelectorKind::AUTO, [](auto&) {});
  return out;
}

}  // namespace riffle::test
