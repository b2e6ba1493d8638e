#include "util/size_text.h"

#include <catch2/catch.hpp>
#include <string>

using namespace riffle;

TEST_CASE("sizes are read with their suffixes") {
  CHECK(size_of("4096", false) == 4096u);
  CHECK(size_of("32K", false) == 32768u);
  CHECK(size_of("1.5k", false) == 1536u);
  CHECK(size_of("12GiB", true) == uint64_t{12} << 30);
  CHECK(size_of("12gb", true) == uint64_t{12} << 30);
  CHECK(size_of("1T", true) == uint64_t{1} << 40);
  CHECK(size_of("0", true) == 0u);
}

TEST_CASE("texts that are no size are refused") {
  for (const char* text :
       {"", "K", "-1", "1.5", "12X", "12GiBs", "1e400", "nan", "1 K", "9.3e18"}) {
    CAPTURE(text);
    CHECK_FALSE(size_of(text, true).has_value());
  }
  CHECK_FALSE(size_of("12GB", false).has_value());
  CHECK_FALSE(size_of(std::string(400, '9'), true).has_value());
}
