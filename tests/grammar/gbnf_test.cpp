// GBNF as it is read: what each construct means, and what each error says.
#include "grammar/gbnf.h"

#include <catch2/catch.hpp>

#include "tests/grammar/vocabularies.h"
#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Case {
  const char* grammar;
  std::vector<std::string> in, out;
};

}  // namespace

TEST_CASE("GBNF: each construct means what llama.cpp's documentation says", "[grammar]") {
  const Vocabulary v = bytes();
  const std::vector<Case> cases = {
      {"root ::= \"abc\"", {"abc"}, {"", "ab", "abcd", "abd"}},
      {"root ::= \"a\" \"b\" | \"c\"", {"ab", "c"}, {"a", "bc", "abc"}},
      {"root ::= \"a\"*", {"", "a", "aaaa"}, {"b", "ab"}},
      {"root ::= \"a\"+", {"a", "aaa"}, {"", "b"}},
      {"root ::= \"a\"?", {"", "a"}, {"aa"}},
      {"root ::= \"a\"{3}", {"aaa"}, {"", "aa", "aaaa"}},
      {"root ::= \"a\"{2,}", {"aa", "aaaaaa"}, {"", "a"}},
      {"root ::= \"a\"{1,3}", {"a", "aa", "aaa"}, {"", "aaaa"}},
      {"root ::= \"a\"{0}", {""}, {"a"}},
      {"root ::= (\"a\" | \"b\"){2}", {"aa", "ab", "ba", "bb"}, {"a", "aba"}},
      {"root ::= \"a\"?*", {"", "a", "aa"}, {"b"}},
      {"root ::= (\"a\"? \"b\"?){0,3}", {"", "a", "bab", "ababab", "bbb"}, {"bbbb", "c"}},
      {"root ::= (\"a\"? \"b\"?){2,3}", {"", "a", "bab", "ababab", "bbb"}, {"bbbb", "c"}},
      {"root ::= [a-cx]", {"a", "b", "c", "x"}, {"", "d", "ab", "-"}},
      {"root ::= [^a-c\\n]", {"d", "\xc3\xa9", "\xf0\x9f\x98\x80"}, {"a", "\n", "", "\xc3"}},
      {"root ::= [a\\-z-]", {"a", "-", "z"}, {"b"}},
      {"root ::= [\\[\\]\\^\\\\\\\"]", {"[", "]", "^", "\\", "\""}, {"a"}},
      {"root ::= .", {"a", "\n", "\xe4\xb8\xad"}, {"", "ab", "\xff"}},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\t\"", {"A\xc3\xa9\xf0\x9f\x98\x80\t"}, {"A"}},
      {"root ::= [\\u00e9-\\u00ff]", {"\xc3\xa9", "\xc3\xbf"}, {"\xc3\xa8", "\xc4\x80"}},
      {"root ::= \"\"", {""}, {"a"}},
      {"root ::=", {""}, {"a"}},
      {"root ::= \"a\" |", {"a", ""}, {"aa"}},
      {"# comment\nroot ::= x # more\n\nx ::= \"y\" # end", {"y"}, {"x"}},
      {"root ::= (\n  \"a\" # one\n  | \"b\"\n)\n", {"a", "b"}, {""}},
      {"root ::=\n  \"a\" |\n  \"b\"\r\n", {"a", "b"}, {""}},
      {"root ::= a-1\na-1 ::= b_2\nb_2 ::= \"x\"", {"x"}, {"a-1"}},
      {"root ::= \"(\" root \")\" | \"x\"", {"x", "(x)", "(((x)))"}, {"(x", "x)", "()"}},
      {"root ::= item (\",\" root)?\nitem ::= [0-9]+", {"1", "1,22,3"}, {"", "1,", ",1"}},
  };
  for (const Case& c : cases) {
    INFO(c.grammar);
    const auto g = compiled(v, c.grammar);
    for (const std::string& text : c.in) {
      INFO("'" << text << "'");
      CHECK(accepts(g, text));
    }
    for (const std::string& text : c.out) {
      INFO("'" << text << "'");
      CHECK_FALSE(accepts(g, text));
    }
  }
}

TEST_CASE("GBNF: errors name line, column, what was found and what was expected", "[grammar]") {
  const Vocabulary v = bytes();
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"no rule root"}},
      {"x ::= \"a\"", {"no rule root"}},
      {"root ::= \"a\"\nroot ::= \"b\"",
       {"line 2, column 1", "found rule root, which is defined twice"}},
      {"root ::= x y\nx ::= \"a\"", {"line 1, column 12", "rule y", "not defined"}},
      {"root := \"a\"", {"line 1, column 6", "found ':'", "expected ::="}},
      {"root ::= \"a", {"line 1, column 12", "found the end"}},
      {"root ::= \"a\n\"", {"line 1, column 12", "found the end of the line"}},
      {"root ::= \"\\q\"", {"line 1, column 12", "found 'q'"}},
      {"root ::= \"\\u12\"", {"column 15", "4 hexadecimal digits"}},
      {"root ::= \"\\ud800\"", {"column 11", "U+D800"}},
      {"root ::= [b-a]", {"column 11", "ends before it begins"}},
      {"root ::= []", {"column 10", "empty class"}},
      {"root ::= (\"a\"", {"line 1, column 10", "expected )"}},
      {"root ::= \"a\")", {"column 13", "found ')'"}},
      {"root ::= \"\xc3\xa9\" !", {"line 1, column 14", "found '!'"}},
      {"root ::= \"a\"{3,2}", {"column 13", "{3,2}"}},
      {"root ::= \"a\"{,2}", {"column 14", "expected a number"}},
      {"root ::= \"a\"{99999999999}", {"column 14", "too large"}},
      {"root ::= <[1]>", {"column 10", "not supported"}},
      {"root ::= root \"a\" | \"b\"", {"rule root: found left recursion"}},
      {"root ::= a\na ::= \"x\"? b\nb ::= a \"y\"", {"left recursion"}},
      {"root ::= \"a\" root", {"rule root: found no text"}},
  };
  for (const auto& [text, words] : cases) {
    INFO(text);
    expect_error(RIFFLE_BAD_ARGUMENT, words, [&] { compiled(v, text); });
  }
  expect_error(RIFFLE_BAD_TEXT, {"byte 11 is not valid UTF-8"},
               [&] { compiled(v, "root ::= \"\xff\""); });
}

TEST_CASE("GBNF: hostile grammars are errors or answers in bounded time", "[grammar]") {
  const Vocabulary v = bytes();
  const std::string deep(100000, '(');
  expect_error(RIFFLE_BAD_ARGUMENT, {"nested deeper"}, [&] { compiled(v, "root ::= " + deep); });
  // Chains of rules, forwards and backwards.
  for (const bool forwards : {true, false}) {
    std::string chain = "root ::= r0\n";
    constexpr int kRules = 50000;
    for (int i = 0; i < kRules; ++i) {
      const int at = forwards ? i : kRules - 1 - i;
      chain += "r" + std::to_string(at) + " ::= \"a\" " +
               (at + 1 < kRules ? "r" + std::to_string(at + 1) : std::string("\"b\"")) + "\n";
    }
    const auto g = compiled(v, chain);
    CHECK(accepts(g, std::string(kRules, 'a') + "b"));
    CHECK_FALSE(begins(g, std::string(kRules, 'a') + "a"));
  }
  // 100,000 alternatives, and words of which one begins another.
  std::string many = "root ::= \"w0\"";
  for (int i = 1; i < 100000; ++i) many += " | \"w" + std::to_string(i) + "\"";
  const auto words = compiled(v, many);
  CHECK(accepts(words, "w99999"));
  CHECK_FALSE(accepts(words, "w100000"));
  std::string rules, ways_in = "root ::= r0";
  for (int i = 0; i < 5000; ++i) {
    rules += "r" + std::to_string(i) + " ::= [a-z] \"" + std::to_string(i) + "\"\n";
    ways_in += " | r" + std::to_string(i);
  }
  expect_error(RIFFLE_UNSUPPORTED, {"too ambiguous"}, [&] { compiled(v, rules + ways_in + "\n"); });
  // Limits cost no states.
  const auto limits = compiled(v, "root ::= (\"a\"{0,2000000000} \"b\"?){5,2000000000}");
  CHECK(accepts(limits, "aabab"));
  // A state that holds each way to read a text is an error, not a crash.
  const auto ways = compiled(v, "root ::= x x x x x x \"!\"\nx ::= (\"a\" x \"b\" | \"a\")*");
  CHECK(begins(ways, std::string(12, 'a')));
  // Nesting ends somewhere: the bracket is then not allowed any more.
  const auto nested = compiled(v, "root ::= \"[\" root \"]\" | \"x\"");
  const std::string open(4000, '['), close(4000, ']');
  CHECK(accepts(nested, open + "x" + close));
  CHECK_FALSE(begins(nested, std::string(5000, '[')));
}
