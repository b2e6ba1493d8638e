#include "cli/printable.h"

#include <catch2/catch.hpp>
#include <string>

using namespace riffle::cli;

TEST_CASE("Printable text: controls become escapes, and text stays", "[cli]") {
  CHECK(printable("caf\u00e9 \u4f60\u597d \U0001F600\n\ttab") ==
        "caf\u00e9 \u4f60\u597d \U0001F600\n\ttab");
  CHECK(printable("a\033]52;c;SGVsbG8=\007b\033[2J") == "a\\u001b]52;c;SGVsbG8=\\u0007b\\u001b[2J");
  CHECK(printable(std::string("\0\x7f", 2)) == "\\u0000\\u007f");
  CHECK(printable("\xC2\x9B"
                  "31m \xC2\x9D") == "\\u009b31m \\u009d");
  CHECK(printable("a\r\nb\rc\r") == "a\nb\\u000dc\\u000d");
  CHECK(printable("\u202Eabc\u202D") == "\\u202eabc\\u202d");
  CHECK(printable("\u202B\u2067\u200F\u05D0\u2069") == "\u202B\u2067\u200F\u05D0\u2069");
}

TEST_CASE("Printable text: bytes that are no UTF-8 become U+FFFD", "[cli]") {
  CHECK(printable("\x9B"
                  "2J") == "\uFFFD2J");
  CHECK(printable("\xC4\x9B") == "\u011B");  // the second byte alone would be a control
  CHECK(printable("\xC4\033[m") == "\uFFFD\\u001b[m");
  CHECK(printable("\xE2\x82") == "\uFFFD");
  CHECK(printable("\xC0\x9B\xED\xA0\x80\xF5") == "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(printable("\xE0\x80\x9B") == "\uFFFD\uFFFD\uFFFD");
}

TEST_CASE("Printable text: pieces are cut anywhere", "[cli]") {
  const std::string text = "x\xC2\x9By\033[m\r\n\xE2\x82\xAC\r.\xC3";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Printable p;
    std::string out = p.put(text.substr(0, cut));
    out += p.put(text.substr(cut));
    CHECK(out + p.finish() == printable(text));
  }
  Printable bytes;
  std::string out;
  for (const char c : text) out += bytes.put({&c, 1});
  CHECK(out + bytes.finish() == "x\\u009by\\u001b[m\n\u20AC\\u000d.\uFFFD");
}

TEST_CASE("Printable text: a cell of a table is one line", "[cli]") {
  CHECK(one_line("N\n\tX\033") == "N\\u000a\\u0009X\\u001b");
}
