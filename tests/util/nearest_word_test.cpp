#include "util/nearest_word.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "riffle_tools.h"

using namespace riffle;

namespace {

std::string nearest(const char* typed, const std::vector<const char*>& words) {
  const char* const found = riffle_nearest_word(typed, words.data(), words.size());
  return found ? found : "";
}

}  // namespace

TEST_CASE("the nearest word is found") {
  const std::vector<const char*> words = {"selector", "seed", "ctx", "budget", "max-tokens"};
  CHECK(nearest("selectr", words) == "selector");
  CHECK(nearest("bugdet", words) == "budget");      // neighbours swapped
  CHECK(nearest("max-to", words) == "max-tokens");  // cut short
  CHECK(nearest("quux", words) == "");
  CHECK(nearest("", words) == "");
  CHECK(nearest(std::string(1000, 's').c_str(), words) == "");
  CHECK(nearest("seed", {}) == "");
  CHECK(riffle_nearest_word(nullptr, words.data(), words.size()) == nullptr);
}

TEST_CASE("of words equally near the first is kept") {
  NearestWord word("abcd");
  CHECK(word.offer("abce"));
  CHECK_FALSE(word.offer("abcf"));
  CHECK(word.offer("abcd"));
}
