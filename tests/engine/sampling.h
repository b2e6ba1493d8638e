// Settings of the sampler for tests, and what the checks of such settings say.
#pragma once
#include <catch2/catch.hpp>
#include <string>

#include "riffle.h"
#include "util/error.h"
#include "util/options.h"

namespace riffle::test {

inline Sampling sampling() {
  Sampling s;
  return s;
}

// The text of the error RIFFLE_BAD_ARGUMENT that a check throws; "" if it throws none.
template <class Check>
std::string refusal_of(const Check& check) {
  try {
    check();
  } catch (const Error& e) {
    CHECK(e.status() == RIFFLE_BAD_ARGUMENT);
    return e.what();
  }
  return "";
}

}  // namespace riffle::test
