// tokenselect with few tokens, for its tests.
#pragma once
#include "riffle.h"

namespace riffle::test {

inline riffle_selection tokenselect_settings(int select, int init, int local) {
  riffle_selection s;
  riffle_selection_defaults(&s);
  s.selector = RIFFLE_SELECTOR_TOKENSELECT;
  s.select_tokens = select;
  s.init_tokens = init;
  s.local_tokens = local;
  return s;
}

}  // namespace riffle::test
