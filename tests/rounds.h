// Slow tests run fewer rounds and combinations unless RIFFLE_TEST_ROUNDS=all.
#pragma once
#include <cstdlib>
#include <string_view>

namespace riffle::test {

inline bool all_rounds() {
  const char* rounds = std::getenv("RIFFLE_TEST_ROUNDS");
  return rounds && std::string_view(rounds) == "all";
}

}  // namespace riffle::test
