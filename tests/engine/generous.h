// Every selector of this build at its most generous: it reads all blocks.
#pragma once
#include <vector>

#include "tests/select/selectors_here.h"
#include "util/options.h"

namespace riffle::test {

struct GenerousSelection {
  const char* name;
  Selection selection;
};

inline std::vector<GenerousSelection> generous_selections() {
  std::vector<GenerousSelection> out;
  // list: the selector; empty if this build lacks it.
  const auto add = [&](const char* name, const std::vector<SelectorKind>& list, auto&& change) {
    for (const SelectorKind selector : list) {
      Selection s;
      s.selector = selector;
      change(s);
      out.push_back({name, s});
    }
  };
  add("psa", here({SelectorKind::PSA}), [](auto& s) { s.epsilon = 1; });
  add("psa by codes", here({SelectorKind::PSA}),
      [](auto& s) { s.epsilon = 1, s.rank = RankBy::CODES; });
  add("topk", here({SelectorKind::TOPK}), [](auto& s) { s.budget = 1; });
  add("twilight", here({SelectorKind::TWILIGHT}),
      [](auto& s) { s.base = BaseSelection::ALL, s.top_p = 1; });
  add("tokenselect", here({SelectorKind::TOKENSELECT}), [](auto& s) { s.select_tokens = 4096; });
  add("share", here({SelectorKind::SHARE}), [](auto& s) { s.share = 0; });
  add("auto", here({SelectorKind::AUTO}), [](auto&) {});
  return out;
}

}  // namespace riffle::test
