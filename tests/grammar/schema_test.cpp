// JSON Schema and regular expressions: which texts their grammars have, and what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "grammar/number_range.h"
#include "grammar/regex.h"
#include "tests/grammar/vocabularies.h"
#include "tests/model/expect_error.h"
#include "tests/rounds.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Case {
  const char* grammar;
  std::vector<std::string> in, out;
};

void check_cases(riffle_grammar_kind kind, const std::vector<Case>& cases) {
  const Vocabulary v = bytes();
  for (const Case& c : cases) {
    INFO(c.grammar);
    const auto g = compiled(v, c.grammar, kind);
    for (const std::string& text : c.in) {
      INFO("'" << text << "' should be accepted");
      CHECK(accepts(g, text));
    }
    for (const std::string& text : c.out) {
      INFO("'" << text << "' should be refused");
      CHECK_FALSE(accepts(g, text));
    }
  }
}

}  // namespace

TEST_CASE("regular expressions: each construct", "[grammar]") {
  check_cases(RIFFLE_GRAMMAR_REGEX,
              {
                  {"abc", {"abc"}, {"", "ab", "xabc", "abcd"}},
                  {"^a|b$", {"a", "b"}, {"ab", ""}},
                  {"(?:a|b)+c?", {"a", "abac", "bc"}, {"", "c", "acc"}},
                  {"(?<name>x){2,3}?", {"xx", "xxx"}, {"x", "xxxx"}},
                  {"[a-c\\d_-]*", {"", "a1_-", "cab"}, {"d", " "}},
                  {"[^a-c]", {"d", "\n", "\xc3\xa9"}, {"a", "", "dd"}},
                  {".", {"a", "\xe4\xb8\xad"}, {"\n", "\r", "", "\xe2\x80\xa8"}},
                  {"\\d\\D\\w\\W\\s\\S", {"1aa! x"}, {"aaaa! x", "11a! x", "1aaa x"}},
                  {"\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\cA\\0\\/\\.",
                   {std::string("A\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80\x01\0/.", 15)},
                   {""}},
                  {"a{,2}", {"a{,2}"}, {"aa", ""}},
                  {"x{1", {"x{1"}, {"x"}},
                  {"(a*)*b", {"b", "aaab"}, {"a"}},
                  {"(^a|b$)", {"a", "b"}, {"ab"}},
                  {"[\\b]", {"\b"}, {"b"}},
                  {"", {""}, {"a"}},
              });
}

TEST_CASE("regular expressions: what is refused", "[grammar]") {
  const Vocabulary v = bytes();
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"(a", {"column 1", "found ( without its )"}},
      {"a)", {"column 2", "expected no ) without its ("}},
      {"[a", {"column 1", "found [ without its ]"}},
      {"*a", {"column 1", "something to repeat"}},
      {"a**", {"column 3", "no second repetition"}},
      {"a{3,2}", {"column 2", "{3,2}"}},
      {"[b-a]", {"column 2", "ends before it begins"}},
      {"(?=a)b", {"column 1", "look-ahead"}},
      {"(?<!a)b", {"column 1", "look-behind"}},
      {"(a)\\1", {"column 4", "back reference"}},
      {"\\bword", {"column 1", "found \\b"}},
      {"\\p{L}", {"column 1", "found \\p"}},
      {"\\q", {"column 1", "found \\q"}},
      {"a^b", {"column 2", "found ^", "at the beginning only"}},
      {"a$b", {"column 3", "$ at the end only"}},
      {"x(^a|b)", {"column 2", "^ and $"}},
      {"(a$)*", {"column 1", "^ and $"}},
      {"a\\", {"column 3", "a character after"}},
      {"\\ud800", {"U+D800"}},
      {std::string(100000, '('), {"nested deeper"}},
  };
  for (const auto& [text, words] : cases) {
    INFO(text.substr(0, 50));
    expect_error(RIFFLE_BAD_ARGUMENT, words, [&] { compiled(v, text, RIFFLE_GRAMMAR_REGEX); });
  }
  // Expressions that make backtracking explode.
  const auto g = compiled(v, "(a|aa|a*)*b", RIFFLE_GRAMMAR_REGEX);
  CHECK(accepts(g, std::string(5000, 'a') + "b"));
  CHECK_FALSE(accepts(g, std::string(5000, 'a')));
  const auto nested = compiled(v, "((((a{0,999}){0,999}){0,999}){0,999})b", RIFFLE_GRAMMAR_REGEX);
  CHECK(accepts(nested, std::string(3000, 'a') + "b"));
}

namespace {

std::string optional_properties(int n, const std::string& more) {
  std::string text = "{\"type\":\"object\",\"properties\":{";
  for (int i = 0; i < n; ++i)
    text += format("%s\"prop_%d\":{\"type\":\"integer\"}", i ? "," : "", i);
  return text + "}" + more + "}";
}

}  // namespace

// Members in order: names that begin like others, that need escapes, and required ones among them.
TEST_CASE("JSON Schema: objects with many properties", "[grammar]") {
  std::mt19937 random(5);
  const Vocabulary v = bytes();
  const char* const letters[] = {"a", "b", "\"", "\\", "é", "日", "_", "\n"};
  for (int round = 0; round < (all_rounds() ? 60 : 12); ++round) {
    std::vector<std::string> names;
    while (names.size() < 49 + random() % 60) {
      std::string name;
      for (size_t k = random() % 6; k > 0; --k) name += letters[random() % std::size(letters)];
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    const bool extra = round % 2 == 0;
    std::vector<bool> required(names.size());
    nlohmann::ordered_json schema = {{"type", "object"}, {"additionalProperties", extra}};
    for (size_t i = 0; i < names.size(); ++i) {
      schema["properties"][names[i]] = {{"type", "integer"}};
      required[i] = round % 3 != 0 && random() % 12 == 0;
      if (required[i]) schema["required"].push_back(names[i]);
    }
    const auto g = compiled(v, schema.dump(), RIFFLE_GRAMMAR_JSON_SCHEMA);
    const auto key = [](const std::string& name) { return nlohmann::json(name).dump() + ":1"; };
    for (int trial = 0; trial < 40; ++trial) {
      std::vector<size_t> chosen;
      for (size_t i = 0; i < names.size(); ++i)
        if (required[i] || random() % 8 == 0) chosen.push_back(i);
      bool good = true, open = true;
      switch (random() % 4) {
        case 0:  // out of order
          if (chosen.size() > 1) {
            std::swap(chosen.front(), chosen.back());
            good = false;
          }
          break;
        case 1:  // one is missing
          if (!chosen.empty()) {
            const size_t at = random() % chosen.size();
            good = !required[chosen[at]];
            chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(at));
          }
          break;
        default: break;
      }
      std::string text = "{";
      for (const size_t i : chosen) text += (text.size() > 1 ? ", " : "") + key(names[i]);
      if (random() % 3 == 0) {  // no name of the schema
        text += (text.size() > 1 ? "," : "") + key("other") + "," + key("zz");
        good = good && extra;
        open = false;
      }
      INFO(schema.dump() << "\n" << text);
      REQUIRE(accepts(g, text + "}") == good);
      if (good && open && !chosen.empty())  // the same member again
        REQUIRE_FALSE(accepts(g, text + "," + key(names[chosen.back()]) + "}"));
    }
  }
}

TEST_CASE("JSON Schema: masks of 1500 optional properties", "[grammar]") {
  // Tokens that reach from one member into the next, and all pieces of names.
  std::vector<std::string> all;
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  for (int i = 0; i < 1500; ++i)
    for (const char* before : {"\"", "", "prop", "\"prop", "_", "1,\"prop_", ", \"p"})
      all.push_back(before + std::to_string(i));
  for (const char* text :
       {"{\"", "\":", "\": ", ",\"", ", \"", "prop", "_", "{\"prop_", "},", "1}"})
    all.emplace_back(text);
  const Vocabulary v(std::move(all));
  for (const char* more : {",\"additionalProperties\":false", "", ",\"required\":[\"prop_700\"]"}) {
    const auto g = compiled(v, optional_properties(1500, more), RIFFLE_GRAMMAR_JSON_SCHEMA);
    const std::string text = "{\"prop_3\": 12, \"prop_70\":3,\"prop_700\": 0,\"prop_1499\":1}";
    grammar::Matcher m(g, {});
    std::vector<uint32_t> mask(v.tokens->mask_words());
    for (const char c : text) {
      REQUIRE(m.allowed(true, mask));
      REQUIRE(bit(mask, 2 + static_cast<uint8_t>(c)));
      REQUIRE(m.accept(std::string_view(&c, 1)));
    }
    CHECK(m.complete());
    CHECK(begins(g, "{\"prop_5\":1,\"prop_6"));
    CHECK_FALSE(begins(g, "{\"prop_50\":1,\"prop_4\""));
  }
}

// Each alternative has the white space of its own places, which tokens of white space go through.
TEST_CASE("JSON Schema: masks of 1000 alternatives that begin alike", "[grammar]") {
  std::vector<std::string> all;
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  for (int i = 1; i < 40; ++i) {
    for (const char* before : {"", "\n", "{\n", "\":\n", ":\n"}) {
      all.push_back(before + std::string(static_cast<size_t>(i), ' '));
      all.push_back(before + std::string(static_cast<size_t>(i), '\t'));
    }
  }
  const Vocabulary v(std::move(all));
  std::string schema = "{\"anyOf\":[";
  for (int i = 0; i < 1000; ++i)
    schema += format(
        "%s{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k%d\"},"
        "\"p%d\":{\"type\":\"integer\"}},\"required\":[\"kind\",\"p%d\"],"
        "\"additionalProperties\":false}",
        i ? "," : "", i, i, i);
  const auto g = compiled(v, schema + "]}", RIFFLE_GRAMMAR_JSON_SCHEMA);
  grammar::Matcher m(g, {});
  std::vector<uint32_t> mask(v.tokens->mask_words());
  for (const char c : std::string_view("{\n  \"kind\": \"k77\",\n  \"p77\": 5}")) {
    REQUIRE(m.allowed(true, mask));
    REQUIRE(bit(mask, 2 + static_cast<uint8_t>(c)));
    REQUIRE(m.accept(std::string_view(&c, 1)));
  }
  CHECK(m.complete());
  CHECK_FALSE(begins(g, "{\"kind\":\"k77\",\"p7\""));
}

TEST_CASE("JSON Schema: types, members and items", "[grammar]") {
  check_cases(
      RIFFLE_GRAMMAR_JSON_SCHEMA,
      {
          {"{}",
           {"null", "true", "1", "-0.5e+10", "\"a\\u00e9\\n\"", "[]", "[1, [], {}]", "{}",
            "{\"a\": 1,\"b\":{\"c\":[true]}}", "{\n  \"a\": [\n    1\n  ]\n}"},
           {"", "nul", "01", "1.", "+1", "\"a", "\"\n\"", "[1,]", "{\"a\"}", "{a:1}", "[1 ,2]",
            "\"\\ud800\"", "\"\\x\""}},
          {"true", {"1"}, {"x"}},
          {"{\"type\":[\"integer\",\"null\"]}", {"1", "-7", "0", "null"}, {"1.5", "-0.0", "\"1\""}},
          {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}},"
           "\"required\":[\"a\"],\"additionalProperties\":false}",
           {"{\"a\":1}", "{\"a\": 1, \"b\": []}", "{\"b\":2,\"a\":1}"},
           {"{}", "{\"b\":1}", "{\"a\":\"x\"}", "{\"a\":1,\"a\":1}", "{\"a\":1,\"c\":1}",
            "{\"a\":1,}", "{,\"a\":1}"}},
          {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},"
           "\"additionalProperties\":{\"type\":\"integer\"}}",
           {"{}", "{\"ab\":null}", "{\"a\":1}", "{\"abc\":1,\"ab\":null,\"\":2}", "{\"a\\\"b\":1}"},
           {"{\"ab\":1}", "{\"a\":null}", "{\"\\u0061b\":1}", "{\"a\\u0062\":1}"}},
          {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
           {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
           {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
          {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"c\"],"
           "\"additionalProperties\":false,\"maxProperties\":2,\"minProperties\":2}",
           {"{\"a\":1,\"c\":2}", "{\"c\":1,\"b\":2}"},
           {"{\"c\":1}", "{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":2,\"c\":3}"}},
          {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":{}}}",
           {"{}", "{\"b\":1}", "{\"x\":1}"},
           {"{\"a\":1}"}},
          {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"null\"}],"
           "\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":4}",
           {"[1]", "[1,null]", "[1, null, true]", "[1,null,true,false]"},
           {"[]", "[null]", "[1,1]", "[1,null,1]", "[1,null,true,true,true]"}},
          {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":0}",
           {"[]", "[ ]"},
           {"[1]"}},
          {"{\"type\":\"array\",\"prefixItems\":[{}],\"items\":false}", {"[]", "[1]"}, {"[1,1]"}},
          {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           {"\"ab\"", "\"\xf0\x9f\x98\x80\xc3\xa9z\"", "\"\\ud83d\\ude00\\n\""},
           {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""}},
          {"{\"enum\":[1,\"a\\nb\",null,[1,{\"x\":2}],1.0,\"a\\\"\"]}",
           {"1", "\"a\\nb\"", "null", "[1, {\"x\":2}]", "\"a\\\"\""},
           {"1.5", "\"a\"", "[1]", "[1,{}]"}},
          {"{\"type\":\"integer\",\"enum\":[1,\"a\",2.0,2.5,300],\"maximum\":100}",
           {"1", "2"},
           {"\"a\"", "2.5", "300"}},
          {"{\"const\":{\"a\":1,\"b\":[]}}",
           {"{\"b\": [],\"a\":1}"},
           {"{\"a\":1}", "{\"b\":[],\"a\":2}"}},
          {"{\"title\":\"t\",\"description\":\"d\",\"default\":1,\"x-note\":2,\"type\":\"null\"}",
           {"null"},
           {"1"}},
      });
}

TEST_CASE("JSON Schema: combinations and references", "[grammar]") {
  check_cases(
      RIFFLE_GRAMMAR_JSON_SCHEMA,
      {
          {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"type\":[\"string\","
           "\"null\"]}",
           {"\"a\""},
           {"1", "null"}},
          {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}},\"required\":[\"a\"]},"
           "{\"properties\":{\"a\":{\"type\":\"integer\",\"maximum\":5},\"b\":{\"type\":\"null\"}}}"
           "],"
           "\"type\":\"object\"}",
           {"{\"a\":3}", "{\"b\":null,\"a\":5}"},
           {"{\"a\":2}", "{\"a\":6}", "{\"b\":null}", "{\"a\":3,\"b\":1}"}},
          {"{\"oneOf\":[{\"properties\":{\"kind\":{\"const\":\"x\"},\"x\":{\"type\":\"integer\"}},"
           "\"required\":[\"kind\",\"x\"]},{\"properties\":{\"kind\":{\"const\":\"y\"}},"
           "\"required\":[\"kind\"]}],\"type\":\"object\"}",
           {"{\"kind\":\"x\",\"x\":1}", "{\"kind\":\"y\"}"},
           {"{\"kind\":\"x\"}", "{\"kind\":\"z\"}", "{}"}},
          {"{\"oneOf\":[{\"type\":\"integer\",\"maximum\":3},{\"type\":\"integer\",\"minimum\":4},"
           "{\"type\":\"string\",\"maxLength\":1}]}",
           {"3", "4", "\"a\""},
           {"\"ab\"", "null"}},
          {"{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
           "\"next\":{\"$ref\":\"#/$defs/node\"}},\"required\":[\"v\"],"
           "\"additionalProperties\":false}},\"$ref\":\"#/$defs/node\"}",
           {"{\"v\":1}", "{\"v\":1,\"next\":{\"next\":{\"v\":3},\"v\":2}}"},
           {"{}", "{\"v\":1,\"next\":{}}", "{\"v\":1,\"next\":1}"}},
          {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "["}},
          {"{\"definitions\":{\"a~b/c%d\":{\"type\":\"null\"}},\"$ref\":\"#/definitions/"
           "a~0b~1c%25d\"}",
           {"null"},
           {"1"}},
          {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"maxLength\":3}",
           {"\"a\"", "\"abc\""},
           {"\"\"", "\"abcd\"", "\"A\""}},
          {"{\"type\":\"string\",\"pattern\":\"b\"}",
           {"\"b\"", "\"abc\"", "\"\\\"b\\n\""},
           {"\"a\"", "\"\\u0062\""}},
          {"{\"type\":\"string\",\"pattern\":\"^\\\"[^a]$\"}",
           {"\"\\\"\\\\\"", "\"\\\"b\""},
           {"\"\\\"a\""}},
          {"{\"type\":\"string\",\"format\":\"date\"}",
           {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
           {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"",
            "\"24-01-01\""}},
          {"{\"type\":\"string\",\"format\":\"date-time\"}",
           {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.5+01:30\""},
           {"\"2024-02-29\"", "\"2024-02-29T24:00:00Z\"", "\"2024-02-29T10:00:00\""}},
          {"{\"type\":\"string\",\"format\":\"uuid\"}",
           {"\"123e4567-e89b-12d3-a456-426614174000\""},
           {"\"123e4567e89b12d3a456426614174000\""}},
          {"{\"type\":\"string\",\"format\":\"email\"}",
           {"\"joe.bloggs@example.com\""},
           {"\"joe\"", "\"@example.com\"", "\".joe@example.com\"", "\"joe@-a.com\""}},
      });
}

TEST_CASE("JSON Schema: branches of oneOf that refer to their parent", "[grammar]") {
  // `left` stands before `type` in the order in which members are compared.
  check_cases(
      RIFFLE_GRAMMAR_JSON_SCHEMA,
      {{R"s({"$defs":{"expr":{"oneOf":[{"$ref":"#/$defs/num"},{"$ref":"#/$defs/add"},{"$ref":"#/$defs/neg"}]},"num":{"type":"object","properties":{"type":{"const":"num"},"value":{"type":"number"}},"required":["type","value"],"additionalProperties":false},"add":{"type":"object","properties":{"type":{"const":"add"},"left":{"$ref":"#/$defs/expr"},"right":{"$ref":"#/$defs/expr"}},"required":["type","left","right"],"additionalProperties":false},"neg":{"type":"object","properties":{"type":{"const":"neg"},"arg":{"$ref":"#/$defs/expr"}},"required":["type","arg"],"additionalProperties":false}},"type":"object","properties":{"root":{"$ref":"#/$defs/expr"}},"required":["root"],"additionalProperties":false})s",
        {R"({"root":{"type":"num","value":1}})",
         R"({"root":{"type":"neg","arg":{"type":"add","left":{"type":"num","value":1},"right":{"type":"num","value":2}}}})"},
        {R"({"root":{"type":"neg","left":{"type":"num","value":1}}})"}}});
}

TEST_CASE("JSON Schema: limits of numbers are exact", "[grammar]") {
  const Vocabulary v = bytes();
  std::mt19937 random(5);
  const auto number = [&](bool whole) {
    std::string text = random() % 2 ? "-" : "";
    text += std::to_string(random() % (random() % 2 ? 20 : 3000));
    if (!whole && random() % 2) {
      text += "." + std::to_string(random() % 100);
      while (text.back() == '0') text.pop_back();
      if (text.back() == '.') text.pop_back();
    }
    return text == "-0" ? std::string("0") : text;
  };
  for (int round = 0; round < (all_rounds() ? 2000 : 300); ++round) {
    const bool whole = random() % 2, has_low = random() % 4, has_high = random() % 4;
    const bool low_out = random() % 2, high_out = random() % 2;
    const std::string low = number(false), high = number(false);
    std::string schema = std::string("{\"type\":\"") + (whole ? "integer" : "number") + "\"";
    if (has_low) schema += (low_out ? ",\"exclusiveMinimum\":" : ",\"minimum\":") + low;
    if (has_high) schema += (high_out ? ",\"exclusiveMaximum\":" : ",\"maximum\":") + high;
    schema += "}";
    INFO(schema);
    std::shared_ptr<const grammar::Grammar> g;
    try {
      g = compiled(v, schema, RIFFLE_GRAMMAR_JSON_SCHEMA);
    } catch (const Error&) {  // nothing is between the limits
    }
    const auto value = [](const std::string& text) { return std::strtod(text.c_str(), nullptr); };
    std::vector<std::string> texts = {"0", "1", "-1", low, high};
    for (const std::string& limit : {low, high})
      for (const char* more : {"1", ".5", "01", ".001"}) {
        const bool point = limit.find('.') != limit.npos;
        if ((more[0] == '.') != point) texts.push_back(limit + more);
      }
    for (int i = 0; i < 30; ++i) texts.push_back(number(whole));
    for (const std::string& text : texts) {
      if (text.size() > 1 && text[0] == '0' && text[1] != '.') continue;
      if (text.starts_with("-0") && text[2] != '.') continue;
      if (whole && text.find('.') != text.npos) continue;
      const double x = value(text);
      const bool want = (!has_low || (low_out ? x > value(low) : x >= value(low))) &&
                        (!has_high || (high_out ? x < value(high) : x <= value(high)));
      const bool got = g && accepts(g, text);
      if (got != want) {
        INFO(text << " should " << (want ? "" : "not ") << "be accepted");
        CHECK(false);
      }
    }
  }
  // A number that is written within a limit is within it as a double too.
  const std::string below_one = "0." + std::string(14, '9');
  check_cases(RIFFLE_GRAMMAR_JSON_SCHEMA,
              {{"{\"type\":\"number\",\"exclusiveMaximum\":1,\"minimum\":0}",
                {below_one, "0", "0.5"},
                {below_one + "9", "1", "0." + std::string(38, '9')}},
               {"{\"type\":\"number\",\"exclusiveMinimum\":41,\"maximum\":50}",
                {"41.000001", "41.500001", "50"},
                {"41.00000000000000000000001", "41"}},
               {"{\"type\":\"number\"}", {"1e99", "-1.5E+7", "12e-30"}, {"1e299", "1e100"}},
               {"{\"type\":\"integer\",\"multipleOf\":7}",
                {"0", "7", "-14", "700"},
                {"1", "-6", "07", "701", "-"}},
               {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":-10,\"exclusiveMaximum\":10}",
                {"-10", "-5", "0", "5"},
                {"10", "-15", "3"}}});
}

TEST_CASE("JSON Schema: keywords that constrain nothing, nullable, formats", "[grammar]") {
  const std::string group = "0123:4567:89ab:cdef";
  check_cases(
      RIFFLE_GRAMMAR_JSON_SCHEMA,
      {{"{\"type\":\"array\",\"uniqueItems\":false,\"maxItems\":2}", {"[1, 1]"}, {"[1, 1, 1]"}},
       {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"}}", {"{}"}, {"[]"}},
       {"{\"type\":\"integer\",\"nullable\":true}", {"1", "null"}, {"true"}},
       {"{\"nullable\":true,\"type\":\"integer\",\"enum\":[1,2]}", {"1"}, {"null"}},
       {"{\"type\":\"integer\",\"nullable\":false}", {"1"}, {"null"}},
       {"{\"type\":\"string\",\"format\":\"password\"}", {"\"x y\""}, {"1"}},
       {"{\"type\":\"integer\",\"format\":\"int64\"}", {"1"}, {"\"1\""}},
       {"{\"type\":\"string\",\"format\":\"duration\"}",
        {"\"P1Y2M3DT4H5M6S\"", "\"PT1S\"", "\"P2W\"", "\"P1DT1H\""},
        {"\"P\"", "\"PT\"", "\"P1\"", "\"P1Y2D\"", "\"P1DT\"", "\"P2S\"", "\"1D\""}},
       {"{\"type\":\"string\",\"format\":\"hostname\"}",
        {"\"localhost\"", "\"www.ex-ample.com\""},
        {"\"\"", "\"-a\"", "\"a-\"", "\"a..b\"", "\"a.\"", "\"a_b\""}},
       {"{\"type\":\"string\",\"format\":\"ipv4\"}",
        {"\"0.0.0.0\"", "\"255.249.199.10\""},
        {"\"256.0.0.0\"", "\"1.2.3\"", "\"01.2.3.4\"", "\"1.2.3.4.5\""}},
       {"{\"type\":\"string\",\"format\":\"ipv6\"}",
        {"\"" + group + ":" + group + "\"", "\"::\"", "\"::1\"", "\"1::\"", "\"1:2::7:8\"",
         "\"1:2:3:4:5:6:7::\"", "\"::2:3:4:5:6:7:8\""},
        {"\":\"", "\"1:2\"", "\"1::2::3\"", "\"12345::\"", "\"1:2:3:4:5:6:7:8:9\"", "\":1\"",
         "\"1:2:3:4:5:6:7:8::\""}},
       {"{\"type\":\"string\",\"format\":\"uri\"}",
        {"\"https://example.com:80/a/b%20c?x=1&y=/#end\"", "\"mailto:a@b.de\"", "\"urn:a:b\"",
         "\"file:///etc\"", "\"a:\""},
        {"\"\"", "\"//a\"", "\"a/b\"", "\"http://a b\"", "\"http://a/%zz\"", "\"1a:b\"",
         "\"http://a/\\\\\""}}});
}

TEST_CASE("JSON Schema: what is not supported is refused by name, with its place", "[grammar]") {
  const Vocabulary v = bytes();
  const std::vector<std::tuple<riffle_status, std::string, std::vector<std::string>>> cases = {
      {RIFFLE_BAD_ARGUMENT, "", {"line 1, column 1", "found the end", "expected JSON"}},
      {RIFFLE_BAD_ARGUMENT, "{\n \"type\": }", {"line 2, column 10", "found '}'"}},
      {RIFFLE_BAD_ARGUMENT, "[]", {"at #", "expected an object"}},
      {RIFFLE_BAD_ARGUMENT, "{\"type\":\"int\"}", {"at #/type", "found \"int\"", "integer"}},
      {RIFFLE_BAD_ARGUMENT, "{\"type\":[]}", {"at #/type: found [], expected the name of a type"}},
      {RIFFLE_BAD_ARGUMENT, "{\"minimum\":\"1\"}", {"at #/minimum", "a number"}},
      {RIFFLE_BAD_ARGUMENT, "{\"minLength\":-1}", {"at #/minLength", "whole number"}},
      {RIFFLE_BAD_ARGUMENT, "{\"type\":\"null\",\"type\":\"null\"}", {"\"type\" twice"}},
      {RIFFLE_BAD_ARGUMENT, "{\"$ref\":\"#/$defs/a\"}", {"at #/$ref", "in this schema"}},
      {RIFFLE_BAD_ARGUMENT, "false", {"the schema: found no finite JSON text"}},
      {RIFFLE_BAD_ARGUMENT,
       "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
       {"found no finite JSON text that fits it"}},
      {RIFFLE_BAD_ARGUMENT,
       "{\"type\":\"string\",\"pattern\":\"^a+$\",\"maxLength\":0}",
       {"found no finite JSON text that fits it"}},
      {RIFFLE_BAD_ARGUMENT, "{\"const\":12345678901234567890123}", {"at most 64 bits"}},
      {RIFFLE_UNSUPPORTED, "{\"\\u001b\":1}", {"keyword"}},
      {RIFFLE_UNSUPPORTED, "{\"$ref\":\"#\"}", {"refers to itself"}},
      {RIFFLE_UNSUPPORTED, "{\"allOf\":[{\"$ref\":\"#\"}]}", {"refers to itself"}},
      {RIFFLE_UNSUPPORTED, "{\"$ref\":\"http://a/b\"}", {"at #", "http://a/b"}},
      {RIFFLE_UNSUPPORTED,
       "{\"properties\":{\"a/b\":{\"not\":{}}}}",
       {"at #/properties/a~1b", "not"}},
      {RIFFLE_UNSUPPORTED, "{\"items\":{\"uniqueItems\":true}}", {"at #/items", "uniqueItems"}},
      {RIFFLE_UNSUPPORTED, "{\"if\":{}}", {"keyword if"}},
      {RIFFLE_UNSUPPORTED, "{\"minLenght\":3}", {"minLenght"}},
      {RIFFLE_UNSUPPORTED, "{\"patternProperties\":{\"a\":{}}}", {"patternProperties"}},
      {RIFFLE_UNSUPPORTED, "{\"format\":\"iri\"}", {"format \"iri\"", "date-time"}},
      {RIFFLE_UNSUPPORTED, "{\"uniqueItems\":true}", {"uniqueItems"}},
      {RIFFLE_UNSUPPORTED, "{\"propertyNames\":{\"pattern\":\"a\"}}", {"propertyNames"}},
      {RIFFLE_UNSUPPORTED, "{\"nullable\":true}", {"nullable without type"}},
      {RIFFLE_BAD_ARGUMENT, "{\"type\":\"null\",\"nullable\":1}", {"at #/nullable", "true or"}},
      {RIFFLE_UNSUPPORTED, "{\"multipleOf\":0.1}", {"multipleOf 0.1"}},
      {RIFFLE_UNSUPPORTED, "{\"multipleOf\":3,\"minimum\":1}", {"multipleOf"}},
      {RIFFLE_UNSUPPORTED, "{\"minProperties\":2}", {"minProperties"}},
      {RIFFLE_UNSUPPORTED,
       "{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}",
       {"branches 0 and 1"}},
      {RIFFLE_UNSUPPORTED, "{\"pattern\":\"a.*b\",\"maxLength\":9}", {"pattern", "maxLength"}},
      {RIFFLE_BAD_ARGUMENT, "{\"pattern\":\"(\"}", {"at #/pattern", "column 1"}},
      {RIFFLE_BAD_ARGUMENT,
       "{\"anyOf\":[{\"type\":\"null\"},{\"pattern\":\"(\"}]}",
       {"at #/anyOf/1/pattern:"}},
      {RIFFLE_BAD_ARGUMENT,
       "{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"string\",\"pattern\":\"(\"}]}",
       {"at #/oneOf/1/pattern:"}},
      {RIFFLE_BAD_ARGUMENT,
       "{\"items\":{\"$ref\":\"#/$defs/x\"},\"$defs\":{\"x\":{\"pattern\":\"(\"}}}",
       {"at #/$defs/x/pattern:"}},
      {RIFFLE_BAD_ARGUMENT,
       "{\"type\":\"string\",\"allOf\":[{\"minLength\":1},{\"$ref\":\"#/$defs/x\"}],"
       "\"$defs\":{\"x\":{\"pattern\":\"(\"}}}",
       {"at #/$defs/x/pattern:"}},
      {RIFFLE_UNSUPPORTED, "{\"anyOf\":[{\"format\":\"a\"}]}", {"at #/anyOf/0: found format"}},
      {RIFFLE_UNSUPPORTED,
       "{\"anyOf\":[{\"pattern\":\"a.*b\",\"maxLength\":9}]}",
       {"at #/anyOf/0: found minLength or maxLength"}},
      {RIFFLE_UNSUPPORTED, "{\"anyOf\":[{\"minProperties\":2}]}", {"at #/anyOf/0: found minP"}},
      {RIFFLE_UNSUPPORTED,
       "{\"anyOf\":[{\"multipleOf\":3,\"minimum\":1}]}",
       {"at #/anyOf/0: found multipleOf"}},
      {RIFFLE_UNSUPPORTED,
       "{\"anyOf\":[{\"enum\":[\"a\"],\"pattern\":\"a\"}]}",
       {"at #/anyOf/0: found enum"}},
      {RIFFLE_UNSUPPORTED, "{\"pattern\":\"a\",\"enum\":[\"a\"]}", {"enum"}},
  };
  for (const auto& [status, text, words] : cases) {
    INFO(text);
    expect_error(status, words, [&, t = text] { compiled(v, t, RIFFLE_GRAMMAR_JSON_SCHEMA); });
  }
}

TEST_CASE("JSON Schema: hostile schemas are errors or answers in bounded time", "[grammar]") {
  const Vocabulary v = bytes();
  const auto schema = [&](const std::string& text) {
    return compiled(v, text, RIFFLE_GRAMMAR_JSON_SCHEMA);
  };
  std::string many = "{\"enum\":[";
  for (int i = 0; i < 100000; ++i) many += (i ? ",\"v" : "\"v") + std::to_string(i) + "\"";
  const auto g = schema(many + "]}");
  CHECK(accepts(g, "\"v99999\""));
  CHECK_FALSE(accepts(g, "\"v100000\""));
  std::string deep, wide = "{\"anyOf\":[{}";
  for (int i = 0; i < 5000; ++i) deep += "{\"items\":";
  expect_error(RIFFLE_UNSUPPORTED, {"nested deeper"}, [&] { schema(deep); });
  for (int i = 0; i < 20; ++i) wide += ",{\"minimum\":" + std::to_string(i) + "}";
  wide += "]}";
  std::string product = "{\"allOf\":[" + wide;
  for (int i = 0; i < 20; ++i) product += "," + wide;
  expect_error(RIFFLE_UNSUPPORTED, {"alternatives"}, [&] { schema(product + "]}"); });
  std::string places = "{\"properties\":{\"" + std::string(1000000, 'k') + "\":{\"properties\":{";
  for (int i = 0; i < 200; ++i) places += (i ? ",\"p" : "\"p") + std::to_string(i) + "\":{}";
  expect_error(RIFFLE_UNSUPPORTED, {"64 MB"}, [&] { schema(places + "}}}}"); });
  std::string branches = "{\"oneOf\":[";
  for (int i = 0; i < 120; ++i) {
    branches += i ? ",{\"enum\":[" : "{\"enum\":[";
    for (int j = 0; j < 400; ++j) branches += (j ? "," : "") + std::to_string(400 * i + j);
    branches += "]}";
  }
  expect_error(RIFFLE_UNSUPPORTED, {"more than 2000000 values"}, [&] { schema(branches + "]}"); });
  // Schemas that merge into ever new ones.
  std::string chain = "{\"$defs\":{";
  for (int i = 0; i < 200; ++i)
    chain += (i ? ",\"d" : "\"d") + std::to_string(i) + "\":{\"$ref\":\"#/$defs/d" +
             std::to_string(i + 1) + "\"}";
  expect_error(RIFFLE_UNSUPPORTED, {"deeper"},
               [&] { schema(chain + ",\"d200\":{}},\"$ref\":\"#/$defs/d0\"}"); });
  std::string members = "{\"type\":\"object\",\"properties\":{", required;
  for (int i = 0; i < 60; ++i) {
    members += (i ? ",\"p" : "\"p") + std::to_string(i) + "\":{\"type\":\"integer\"}";
    required += (i ? ",\"p" : "{\"p") + std::to_string(i) + "\":" + std::to_string(i);
  }
  const auto ordered = schema(members + "},\"required\":[\"p59\"],\"additionalProperties\":false}");
  CHECK(accepts(ordered, required + "}"));
  CHECK(accepts(ordered, "{\"p3\":1,\"p59\":2}"));
  CHECK_FALSE(accepts(ordered, "{\"p59\":1,\"p3\":2}"));
  CHECK_FALSE(accepts(ordered, "{\"p3\":1}"));
  std::string name(100000, 'a');
  CHECK(accepts(schema("{\"properties\":{\"" + name + "\":{\"type\":\"null\"}}}"),
                "{\"" + name + "b\":1}"));
  CHECK_FALSE(accepts(schema("{\"properties\":{\"" + name + "\":{\"type\":\"null\"}}}"),
                      "{\"" + name + "\":1}"));
}
