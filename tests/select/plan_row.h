// Makes a row's plan on the calling thread alone.
#pragma once
#include "select/selector.h"

namespace riffle::test {

// backwards: the parts that threads would share are done in the opposite order, each with new
// memory.
inline void plan_row(const Selector& selector, const Row& row, RowPlan& plan,
                     bool backwards = false) {
  const int n = selector.prepare(row, plan);
  Buffer scratch;
  for (int i = 0; i < n; ++i) {
    if (backwards) scratch = Buffer();
    selector.part(row, plan, backwards ? n - 1 - i : i, scratch);
  }
  selector.begin(row, plan);
}

}  // namespace riffle::test
