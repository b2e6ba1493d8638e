#include "cli/session.h"

#include <catch2/catch.hpp>
#include <cstdint>

using namespace riffle::cli;

TEST_CASE("dates that a session's file may name", "[cli][session_file]") {
  for (const int64_t beyond : {INT64_MAX, INT64_MIN}) CHECK(date_text(beyond) == "an unknown date");
  CHECK(date_text(951868800).substr(0, 6) == "2000-0");  // March 1, or the day before
}
