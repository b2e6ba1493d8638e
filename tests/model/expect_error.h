// One line for "this must fail so".
#pragma once
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "util/error.h"

namespace riffle::test {

// Runs work, which must throw Error with this status, in one line that holds every one of words.
inline void expect_error(riffle_status status, const std::vector<std::string>& words,
                         const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    const std::string text = e.what();
    INFO(text);
    CHECK(e.status() == status);
    CHECK(text.find('\n') == std::string::npos);
    for (const std::string& word : words) {
      INFO("missing: " << word);
      CHECK(text.find(word) != std::string::npos);
    }
    return;
  }
  INFO("expected an error with: " << (words.empty() ? std::string() : words[0]));
  CHECK(false);
}

}  // namespace riffle::test
