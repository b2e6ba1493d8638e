#include "formats/gguf.h"

#include "tests/formats/gguf_bytes.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("gguf: metadata of every type", "[gguf]") {
  GgufWriter w;
  w.scalar<uint8_t>("u8", 0, 200);
  w.scalar<int8_t>("i8", 1, 7);
  w.scalar<uint16_t>("u16", 2, 60000);
  w.scalar<int16_t>("i16", 3, -5);
  w.scalar<uint32_t>("u32", 4, 4000000000u);
  w.scalar<int32_t>("i32", 5, 12);
  w.scalar<float>("f32", 6, 0.5f);
  w.boolean("bool", true);
  w.text("string", "caf\xc3\xa9");
  w.strings("strings", {"a", "", "ccc"});
  w.scalar<uint64_t>("u64", 10, 1ull << 40);
  w.scalar<uint64_t>("huge", 10, ~0ull);
  w.scalar<int64_t>("i64", 11, 1ll << 41);
  w.scalar<double>("f64", 12, 0.25);
  w.array<float>("floats", 6, {1, 2});
  w.array<int16_t>("shorts", 3, {-3, 4});
  w.array<float>("none", 6, {});
  std::string nested = GgufWriter::array_head(9, 2);  // [[1, 2], ["x"]]
  nested += GgufWriter::array_head(0, 2) + "\1\2" + GgufWriter::array_head(8, 1);
  put<uint64_t>(nested, 1);
  nested += "x";
  w.raw("nested", 9, nested);
  const std::string bytes = w.bytes();
  const GgufFile g = parse_gguf(view_of_gguf(bytes));

  CHECK(g.metadata.size() == 18);
  CHECK(g.integer("u8") == 200u);
  CHECK(g.integer("i8") == 7u);
  CHECK(g.integer("u16") == 60000u);
  CHECK(g.integer("u32") == 4000000000u);
  CHECK(g.integer("i32") == 12u);
  CHECK(g.integer("u64") == 1ull << 40);
  CHECK(g.integer("i64") == 1ull << 41);
  CHECK(g.number("f32") == 0.5);
  CHECK(g.number("f64") == 0.25);
  CHECK(g.number("u8") == 200.0);
  CHECK(g.boolean("bool") == true);
  CHECK(g.string("string") == "caf\xc3\xa9");
  CHECK(*g.strings("strings") == std::vector<std::string_view>{"a", "", "ccc"});
  CHECK(*g.floats("floats") == std::vector<float>{1, 2});
  CHECK(*g.integers("shorts") == std::vector<int64_t>{-3, 4});
  CHECK(g.floats("none")->empty());
  CHECK(!g.integer("absent"));

  expect_error(RIFFLE_BAD_MODEL, {"i16", "-5"}, [&] { g.integer("i16"); });
  expect_error(RIFFLE_BAD_MODEL, {"huge", "18446744073709551615"}, [&] { g.integer("huge"); });
  expect_error(RIFFLE_BAD_MODEL, {"f32", "type F32", "an integer"}, [&] { g.integer("f32"); });
  expect_error(RIFFLE_BAD_MODEL, {"u8", "type U8", "STRING"}, [&] { g.string("u8"); });
  expect_error(RIFFLE_BAD_MODEL, {"strings", "array of STRING"}, [&] { g.floats("strings"); });
  expect_error(RIFFLE_BAD_MODEL, {"u8", "a BOOL"}, [&] { g.boolean("u8"); });
  expect_error(RIFFLE_BAD_MODEL, {"floats"}, [&] { g.strings("floats"); });
  expect_error(RIFFLE_BAD_MODEL, {"floats"}, [&] { g.integers("floats"); });
}

TEST_CASE("gguf: hostile headers name the field", "[gguf]") {
  expect_bad("", {": found 0 bytes, expected a GGUF file"});
  expect_bad("GGU", {": found 3 bytes, expected a GGUF file"});
  expect_bad("GGML" + std::string(20, '\0'),
             {"a file that begins with \"GGML", "expected a GGUF file"});
  expect_bad(
      "\x01\n\xff"
      "a" +
          std::string(20, '\0'),
      {"begins with", "\\x01"});

  GgufWriter w;
  w.version = 4;
  expect_bad(w.bytes(), {"version", "found 4", "expected 2 or 3"});
  w.version = 1;
  expect_bad(w.bytes(), {"version", "GGUF 1"}, RIFFLE_UNSUPPORTED);
  w.version = 2;
  CHECK_NOTHROW(parse_gguf(view_of_gguf(w.bytes())));
  w.version = 0x03000000;
  expect_bad(w.bytes(), {"version", "big-endian"}, RIFFLE_UNSUPPORTED);

  w = {};
  w.n_tensors = ~0ull;
  expect_bad(w.bytes(), {"tensor_count", "18446744073709551615"});
  w.n_tensors = 5000;
  expect_bad(w.bytes() + std::string(100, '\0'), {"tensor_count", "5000", "room"});
  w = {};
  w.n_keys = 1ull << 63;
  expect_bad(w.bytes(), {"metadata_kv_count", "9223372036854775808"});

  w = {};
  w.raw("k", 4, "");  // the value is missing
  expect_bad(w.bytes() + "abc", {"k value", "3 bytes left", "4 bytes"});
  w = {};
  w.raw("k", 13, std::string(16, '\0'));
  expect_bad(w.bytes(), {"k value type", "13", "0 to 12"});
  w = {};
  w.raw("k", 8, std::string(8, '\xff'));
  expect_bad(w.bytes(), {"k string length", "18446744073709551615"});
  w = {};
  w.raw("k", 8, std::string("\x40\0\0\0\0\0\0\0x", 9));
  expect_bad(w.bytes(), {"k string length", "1 bytes left", "64 bytes"});
  w = {};
  w.raw("k", 9, GgufWriter::array_head(12, 1ull << 61));  // times 8 wraps to 0
  expect_bad(w.bytes(), {"k array length", "2305843009213693952"});
  w = {};
  w.raw("k", 9, GgufWriter::array_head(4, 1000) + "1234");
  expect_bad(w.bytes(), {"k array length", "1000", "room"});
  w = {};
  w.raw("k", 9, GgufWriter::array_head(77, 1) + "1234");
  expect_bad(w.bytes(), {"k array element type", "77"});
  w = {};
  w.raw("k", 9, GgufWriter::array_head(8, 1) + std::string(8, '\x7f'));
  expect_bad(w.bytes(), {"k array string length"});
  w = {};
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += GgufWriter::array_head(9, 1);
  w.raw("k", 9, deep);
  expect_bad(w.bytes(), {"k array", "nested"});
  w = {};
  w.raw("k", 7, "\2");
  expect_bad(w.bytes(), {"k value", "byte 2", "BOOL"});
  w = {};
  w.u32("k", 1);
  w.u32("k", 2);
  expect_bad(w.bytes(), {"k", "twice"});
  w = {};
  w.u32("", 1);
  expect_bad(w.bytes(), {"metadata key length"});
  w = {};
  w.u32(std::string(70000, 'k'), 1);
  expect_bad(w.bytes(), {"metadata key length", "70000", "65535"});
}

TEST_CASE("gguf: hostile tensor lists name the tensor", "[gguf]") {
  const std::string data(64, '\0');
  const auto one = [&](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                       const std::string& content) {
    GgufWriter w;
    w.tensor("pad", {16}, 0, data);  // so that there is data at all
    w.tensor_info("t", dims, type, offset);
    return w.bytes() + content;
  };
  expect_bad(one({}, 0, 64, data), {"tensor t n_dims", "found 0"});
  expect_bad(one({1, 1, 1, 1, 1}, 0, 64, data), {"tensor t n_dims", "found 5"});
  expect_bad(one({4, 0}, 0, 64, data), {"tensor t shape", "dimension 1 of 0"});
  expect_bad(one({1ull << 62, 8}, 0, 64, data), {"tensor t shape"});
  expect_bad(one({1ull << 32, 1ull << 32}, 0, 64, data), {"tensor t shape"});
  expect_bad(one({1ull << 62}, 0, 64, data), {"tensor t shape"});
  expect_bad(one({16}, 99, 64, data), {"tensor t type", "99"});
  expect_bad(one({33}, 8, 64, data), {"tensor t shape", "Q8_0", "32"});
  expect_bad(one({16}, 0, 65, data), {"tensor t offset", "65", "multiple of 32"});
  expect_bad(one({17}, 0, 64, data), {"tensor t offset", "68 bytes", "128 bytes"});
  expect_bad(one({16}, 0, 128 + 32, data), {"tensor t offset", "160"});
  expect_bad(one({16}, 0, ~31ull, data), {"tensor t offset", "18446744073709551584"});
  expect_bad(one({8}, 0, 32, data), {"tensor t offset", "overlap"});

  GgufWriter w;
  w.tensor("t", {16}, 0, data);
  w.tensor("t", {16}, 0, data);
  expect_bad(w.bytes(), {"tensor t", "twice"});
  w = {};
  w.tensor_info(std::string(65, 'x'), {1}, 0, 0);
  expect_bad(w.bytes(), {"tensor name length", "65", "64"});
  w = {};
  w.tensor_info("t", {1}, 0, 0);
  expect_bad(w.bytes(), {"file size"});
  for (const uint32_t alignment : {0u, 1u, 24u, 1u << 31}) {
    w = {};
    w.u32("general.alignment", alignment);
    w.tensor("t", {16}, 0, data);
    expect_bad(w.bytes(), {"general.alignment", std::to_string(alignment)});
  }
}
