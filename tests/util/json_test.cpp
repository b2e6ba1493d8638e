// Trees of JSON against nlohmann's, which reads the text of both.
#include "util/json.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <type_traits>

#include "riffle_text.h"

using namespace riffle;

namespace {

using Other = nlohmann::ordered_json;

constexpr JsonLimits kLimits{.depth = 64, .values = 100000};

Other random_value(std::mt19937_64* random, int depth) {
  static const char* const kTexts[] = {
      "", "a", "\"\\/\b\f\n\r\t\x01\x1f\x7f", "é", "日本", "😀\uffff\u0080", "a~/b", "0"};
  const auto text = [&] { return std::string(kTexts[(*random)() % std::size(kTexts)]); };
  switch ((*random)() % (depth > 0 ? 9 : 7)) {
    case 0: return nullptr;
    case 1: return (*random)() % 2 == 0;
    case 2: return (*random)() >> ((*random)() % 64);
    case 3: return -static_cast<int64_t>((*random)() >> (1 + (*random)() % 63));
    case 4: {
      const auto v = std::bit_cast<double>((*random)());
      return std::isfinite(v) ? v : 0.0;
    }
    case 5:
      return std::ldexp(static_cast<double>((*random)() % 100000),
                        -static_cast<int>((*random)() % 40));
    case 6: return text();
    case 7: {
      Other array = Other::array();
      for (size_t n = (*random)() % 5; n > 0; --n) array.push_back(random_value(random, depth - 1));
      return array;
    }
  }
  Other object = Other::object();
  for (size_t n = (*random)() % 5; n > 0; --n) object[text()] = random_value(random, depth - 1);
  return object;
}

void check_equal(const Json& got, const Other& want) {
  REQUIRE(std::string(got.type_name()) == want.type_name());
  if (want.is_structured()) REQUIRE(got.size() == want.size());
  if (want.is_array())
    for (size_t i = 0; i < want.size(); ++i) check_equal(got[i], want[i]);
  if (want.is_object()) {
    size_t i = 0;
    for (const auto& [key, value] : want.items()) {
      REQUIRE(got.members()[i++].key == key);
      REQUIRE(got.find(key));
      check_equal(*got.find(key), value);
    }
    REQUIRE_FALSE(got.find("no such key"));
  }
  if (want.is_string()) REQUIRE(got.equals(want.get<std::string>()));
  if (want.is_number()) REQUIRE(got.equals(want.get<double>()));
  REQUIRE(got.is_unsigned() == want.is_number_unsigned());
  REQUIRE(got.is_integer() == want.is_number_integer());
  if (want.is_number_integer()) REQUIRE(got.integer() == want.get<int64_t>());
}

JsonError::Kind kind_of(std::string_view text, const JsonLimits& limits = kLimits) {
  try {
    parse_json(text, limits);
  } catch (const JsonError& error) {
    return error.kind;
  }
  FAIL("no error: " << text);
  return JsonError::SYNTAX;
}

}  // namespace

// Vectors of values grow by moving, and a failed allocation while they do must find nothing to
// undo.
static_assert(std::is_nothrow_move_constructible_v<Json> &&
              std::is_nothrow_move_assignable_v<Json>);
static_assert(std::is_nothrow_move_constructible_v<Json::Member>);

TEST_CASE("JSON: random texts give the same trees and texts", "[json]") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const std::string text = random_value(&random, 4).dump(round % 2 == 0 ? -1 : 1);
    const Other want = Other::parse(text);
    INFO(text);
    const Json got = parse_json(text, kLimits);
    check_equal(got, want);
    // The shortest digits of a number may differ in the last one, but not its value.
    REQUIRE(Other::parse(got.dump()) == want);
    REQUIRE(Other::parse(got.dump(true)) == want);
    const Json again = parse_json(got.dump(), kLimits);
    REQUIRE(again.dump(true) == got.dump(true));
  }
  for (const char* text : {"0",
                           "-0",
                           "1.0",
                           "-0.0",
                           "1e3",
                           "0.1",
                           "1e15",
                           "1e14",
                           "123456.75",
                           "1e-4",
                           "1.5e-5",
                           "0.00012",
                           "1e100",
                           "-2.5e-300",
                           "18446744073709551615",
                           "18446744073709551616",
                           "-9223372036854775808",
                           "-9223372036854775809",
                           "\"\\ud83d\\ude00 \\u0000\"",
                           "[1,[],{}]",
                           "{\"a\":{\"b\":null}}"}) {
    CHECK(parse_json(text, kLimits).dump() == Other::parse(text).dump());
    CHECK(parse_json(text, kLimits).dump(true) == Other::parse(text).dump(-1, ' ', true));
  }
}

TEST_CASE("JSON: members in the order of the text or of their keys", "[json]") {
  const std::string_view text = "{\"b\":1,\"a\":2,\"\":3,\"ab\":[]}";
  CHECK(parse_json(text, kLimits).dump() == text);
  JsonLimits sorted = kLimits;
  sorted.sorted = true;
  const Json value = parse_json(text, sorted);
  CHECK(value.dump() == "{\"\":3,\"a\":2,\"ab\":[],\"b\":1}");
  CHECK(value.find("a")->whole() == 2);
  CHECK(value.find("ab")->is_array());
  CHECK_FALSE(value.find("aa"));
  CHECK_FALSE(value.find("c"));
  // A copy is a tree of its own.
  Json copy = value;
  copy = Json(std::string("x"));
  CHECK(copy.equals("x"));
  CHECK(value.size() == 4);
}

TEST_CASE("JSON: pointers", "[json]") {
  const Json root =
      parse_json("{\"a\":[10,{\"b\":1}],\"\":2,\"x/y\":3,\"m~n\":4,\"0\":5}", kLimits);
  const std::pair<const char*, const char*> found[] = {
      {"/a/0", "10"}, {"/a/1/b", "1"}, {"/", "2"}, {"/x~1y", "3"}, {"/m~0n", "4"}, {"/0", "5"}};
  CHECK(root.at_pointer("") == &root);
  for (const auto& [pointer, value] : found) {
    INFO(pointer);
    REQUIRE(root.at_pointer(pointer));
    CHECK(root.at_pointer(pointer)->dump() == value);
  }
  for (const char* pointer : {"a", "/b", "/a/2", "/a/00", "/a/-", "/a/", "/a/+1", "/a/0/1", "/m~n",
                              "/m~", "/m~2n", "/a/99999999999999999999", "//"}) {
    INFO(pointer);
    CHECK_FALSE(root.at_pointer(pointer));
  }
}

TEST_CASE("JSON: what is refused", "[json]") {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\":1,}", "nul", "01", "\"\xff\"", "1 2", "\"\n\"", "'a'"})
    CHECK(kind_of(text) == JsonError::SYNTAX);
  CHECK(kind_of("[1e999]") == JsonError::NUMBER_TOO_LARGE);
  CHECK(kind_of("{\"a\":1,\"b\":{\"a\":1},\"a\":2}") == JsonError::KEY_TWICE);
  CHECK(kind_of(std::string(65, '[') + std::string(65, ']')) == JsonError::TOO_DEEP);
  CHECK(kind_of(std::string(100000, '[')) == JsonError::TOO_DEEP);
  CHECK_NOTHROW(parse_json(std::string(64, '[') + std::string(64, ']'), kLimits));
  JsonLimits few{.depth = 3, .values = 4};
  CHECK_NOTHROW(parse_json("[1,{\"a\":2}]", few));
  CHECK(kind_of("[1,{\"a\":2,\"b\":3}]", few) == JsonError::TOO_MANY);
  few.count_all = true;
  CHECK(kind_of("[1,{\"a\":2}]", few) == JsonError::TOO_MANY);
}

TEST_CASE("JSON: errors name the character and its place", "[json]") {
  struct Wrong {
    const char* text;
    size_t byte;
    const char* found;
  };
  for (const auto& [text, byte, found] : std::initializer_list<Wrong>{
           {"", 1, "the end of the text at byte 1"},
           {"{\"a\":1", 7, "the end of the text at byte 7"},
           {"[1,\n x]", 6, "'x' in line 2 (byte 6 of the text)"},
           {"[1,\n\n2 3]", 8, "'3' in line 3 (byte 8 of the text)"},
           {"{\"a\":1 \"b\\\"c\"}", 8, "'\"' at byte 8"},  // the string's beginning
           {"[1 25]", 4, "'2' at byte 4"},
           {"[1 true]", 4, "'t' at byte 4"},
           {"{x:1}", 2, "'x' at byte 2"},
           {"[nul]", 5, "']' at byte 5"},
           {"[\"a\tb\"]", 4, "a tab in a string at byte 4"},
           {"[\"a\n\"]", 4, "a line break in a string at byte 4"},
           {"[é]", 2, "'é' at byte 2"},
           {"[\"\\ud800\"]", 9, "half of a surrogate pair at byte 9"},
           {"[\"\xff\"]", 3, "invalid UTF-8 (0xff) at byte 3"}}) {
    INFO(text);
    try {
      parse_json(text, kLimits);
      FAIL("no error");
    } catch (const JsonError& error) {
      CHECK(error.byte == byte);
      CHECK(error.text == found);
    }
  }
}

TEST_CASE("JSON: one text for each kind of error", "[json]") {
  const auto says = [](std::string_view text, const JsonLimits& limits) {
    try {
      parse_json(text, limits);
    } catch (const JsonError& error) {
      return text_of(error, limits);
    }
    return std::string("no error");
  };
  JsonLimits limits{.depth = 3, .values = 4};
  CHECK(says("[x]", limits) == "found 'x' at byte 2, expected JSON");
  CHECK(says("[1e999]", limits) ==
        "found the number 1e999, expected a number from -1.8e308 to 1.8e308");
  CHECK(says("[" + std::string(400, '9') + "]", limits) ==
        "found the number " + std::string(60, '9') +
            "..., expected a number from -1.8e308 to 1.8e308");
  CHECK(says("[[[[", limits) == "found values nested deeper than 3 levels, expected at most 3");
  CHECK(says("[1,2,3,4]", limits) == "found more than 4 values, expected at most 4");
  CHECK(says("{\"a\":1,\"a\":2}", limits) ==
        "found the key \"a\" twice in one object, expected it once");
  limits.exact = true;
  CHECK(says("[18446744073709551616]", limits) ==
        "found the number 18446744073709551616, expected a whole number of at most 64 bits, or one "
        "from -1.8e308 to 1.8e308");
}

TEST_CASE("riffle_check_json: keys may be given twice, numbers beyond a double are refused",
          "[json]") {
  const auto says = [](const std::string& text) {
    char err[256] = "";
    const bool valid = riffle_check_json(text.data(), text.size(), err, sizeof err);
    CHECK(valid == !*err);
    return std::string(err);
  };
  CHECK(says("{\"a\":1,\"a\":2}").empty());
  CHECK(says("[\n1,\n}") == "found '}' in line 3 (byte 6 of the text), expected JSON");
  CHECK(says("1e999") == "found the number 1e999, expected a number from -1.8e308 to 1.8e308");
  CHECK(says(std::string(257, '[')) ==
        "found values nested deeper than 256 levels, expected at most 256");
}
