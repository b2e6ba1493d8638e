#include "formats/safetensors.h"

#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

void expect_bad(const std::string& bytes, const std::vector<std::string>& words) {
  std::vector<std::string> all = words;
  all.push_back("t.safetensors: ");
  expect_error(RIFFLE_BAD_MODEL, all, [&] {
    TensorTable table;
    parse_safetensors(
        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "t.safetensors"}, table);
  });
}

void expect_bad_header(const std::string& header, const std::vector<std::string>& words,
                       size_t data_bytes = 16) {
  expect_bad(SafetensorsWriter::with_header(header, std::string(data_bytes, '\0')), words);
}

// One tensor "t"; the rest as given.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

}  // namespace

TEST_CASE("safetensors: tensors lie where the header says", "[safetensors]") {
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[4,12]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
      "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[12,20]}}   ";
  const std::string bytes = SafetensorsWriter::with_header(header, std::string(20, 'x'));
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  TensorTable table;
  parse_safetensors({data, bytes.size(), "t"}, table);
  REQUIRE(table.size() == 3);
  const RawTensor& b = table.at("b");
  CHECK(b.type == DType::BF16);
  CHECK(b.shape == std::vector<uint64_t>{2, 2});
  CHECK(b.data == data + 8 + header.size() + 4);
  CHECK(b.bytes == 8);
  CHECK(!table.at("c").type);
  CHECK(table.at("c").type_name == "I64");
}

TEST_CASE("safetensors: hostile headers name the field", "[safetensors]") {
  expect_bad("", {"file size"});
  expect_bad("1234567", {"file size", "7 bytes"});
  std::string bytes;
  put<uint64_t>(bytes, 100);
  expect_bad(bytes + "{}", {"header length", "100", "at most 2"});
  bytes.clear();
  put<uint64_t>(bytes, ~0ull - 3);
  expect_bad(bytes + "{}", {"header length", "18446744073709551612", "100000000"});

  expect_bad_header("", {"header", "JSON"});
  expect_bad_header("{\"t\":", {"header", "JSON"});
  expect_bad_header("[1]", {"header", "array"});
  expect_bad_header("{\"\xff\":1}", {"header", "JSON"});
  expect_bad_header("{\"t\":\n1,,\n}", {"header", "JSON"});
  expect_bad_header("{\"t\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
                    {"header", "nested deeper than 32 levels"});
  std::string objects;
  for (int i = 0; i < 50000; ++i) objects += "{\"a\":";
  expect_bad_header(objects, {"header", "nested deeper than 32 levels"});
  std::string many = "{\"t\":[0";
  for (int i = 0; i < 2100000; ++i) many += ",0";
  expect_bad_header(many + "]}", {"header", "more than 2000000 values"});

  expect_bad_header("{\"t\":1}", {"tensor t", "number", "an object"});
  expect_bad_header("{\"t\":{}}", {"tensor t dtype", "none"});
  expect_bad_header(entry("\"F32\"", "[4]", "[0,16]").replace(2, 1, "t\\u000a"), {"tensor t\\x0a"},
                    15);
  expect_bad_header(entry("\"Q4_K\"", "[4]", "[0,16]"), {"tensor t dtype", "Q4_K"});
  expect_bad_header(entry("7", "[4]", "[0,16]"), {"tensor t dtype", "7"});
  expect_bad_header(entry("\"F32\"", "4", "[0,16]"), {"tensor t shape", "array"});
  expect_bad_header(entry("\"F32\"", "[-4]", "[0,16]"), {"tensor t shape", "-4"});
  expect_bad_header(entry("\"F32\"", "[4.0]", "[0,16]"), {"tensor t shape", "4.0"});
  expect_bad_header(entry("\"F32\"", "[0]", "[0,0]"), {"tensor t shape", "dimension of 0"});
  expect_bad_header(entry("\"F32\"", "[\"4\"]", "[0,16]"), {"tensor t shape", "\"4\""});
  expect_bad_header(entry("\"F32\"", "[1,1,1,1,1,1,1,1,4]", "[0,16]"),
                    {"tensor t shape", "9 dimensions"});
  expect_bad_header(entry("\"F32\"", "[4294967296,4294967296,4]", "[0,16]"),
                    {"tensor t shape", "2^64"});
  expect_bad_header(entry("\"F32\"", "[18446744073709551616]", "[0,16]"), {"tensor t shape"});
  expect_bad_header(entry("\"F4\"", "[3]", "[0,2]"), {"tensor t shape", "12 bits"});
  expect_bad_header(entry("\"F32\"", "[4]", "[0]"), {"tensor t data_offsets"});
  expect_bad_header(entry("\"F32\"", "[4]", "[0,-16]"), {"tensor t data_offsets", "-16"});
  expect_bad_header(entry("\"F32\"", "[4]", "[16,0]"), {"tensor t data_offsets", "[16, 0]"});
  expect_bad_header(entry("\"F32\"", "[4]", "[0,12]"),
                    {"tensor t data_offsets", "[0, 12]", "16 bytes"});
  expect_bad_header(entry("\"F32\"", "[5]", "[0,20]"),
                    {"tensor t data_offsets", "[0, 20]", "16 bytes of data"});
  expect_bad_header(entry("\"F32\"", "[4]", "[18446744073709551600,18446744073709551616]"),
                    {"tensor t data_offsets"});
  expect_bad_header(entry("\"F32\"", "[3]", "[18446744073709551603,18446744073709551615]"),
                    {"tensor t data_offsets"});
  expect_bad_header(entry("\"F32\"", "[3]", "[4,16]"), {"tensor t data_offsets", "begin at 0"});
  expect_bad_header(entry("\"F32\"", "[3]", "[0,12]"), {"file size", "16 bytes", "12"});

  const std::string a = "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}";
  const std::string b = "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}";
  expect_bad_header("{" + a + "," + b + "}", {"tensor b data_offsets", "begin at 12"});
  expect_bad_header("{" + a + "," + a + "}", {"a", "twice"});
  expect_bad_header(entry("\"F32\",\"dtype\":\"F16\"", "[4]", "[0,16]"), {"dtype", "twice"});
}

TEST_CASE("safetensors: a name may be in one file only", "[safetensors]") {
  SafetensorsWriter w;
  w.tensor("t", "F32", {1}, "1234");
  const std::string bytes = w.bytes();
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  TensorTable table;
  parse_safetensors({data, bytes.size(), "one"}, table);
  expect_error(RIFFLE_BAD_MODEL, {"two: tensor t", "in one too"}, [&] {
    parse_safetensors({data, bytes.size(), "two"}, table);
  });
}
