// Settings of tokenselect with few tokens, for its tests.
#pragma once
#include "riffle.h"

namespace riffle::test {

inline Selection tokenselect_settings(int select, int init, int local) {
  Selection s;
  s.selector = SelectorKind::TOKENSELECT;
  s.select_tokens = select;
  s.init_tokens = init;
  s.local_tokens = local;
  return s;
}

}  // namespace riffle::test
