// GgufFileWriter against parse_gguf, and the files left after a failure.
#include "formats/gguf_writer.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

FileView view_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "written.gguf"};
}

size_t files_in(const TempDir& temp) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(temp.path()))
    n += entry.is_regular_file();
  return n;
}

}  // namespace

TEST_CASE("GGUF writer: what is written is read back", "[quantize]") {
  const TempDir temp;
  const std::string path = temp / "a.gguf";
  GgufFileWriter w(path, false);
  w.text("general.architecture", "llama");
  w.u32("a.u32", 4000000000u);
  w.f32("a.f32", -0.125f);
  w.boolean("a.bool", true);
  w.text("a.text", std::string("x\0y", 3));
  w.strings("a.strings", {"", "one", "\xC3\xA9"});
  w.floats("a.floats", {1.5f, -2.0f});
  w.integers("a.integers", {-7, 8});
  w.tensor("t", DType::Q8_0, {3, 64});
  w.tensor("norm", DType::F32, {5});
  w.tensor("empty pad", DType::F16, {2, 16});
  w.begin();
  // In pieces, and across what the writer holds back.
  std::string t(3 * 68, 't'), norm(20, 'n'), last(64, 'l');
  w.write(t.data(), 100);
  w.write(t.data() + 100, t.size() - 100);
  w.write(norm.data(), norm.size());
  CHECK_FALSE(std::filesystem::exists(path));
  w.write(last.data(), last.size());
  w.finish();
  CHECK(files_in(temp) == 1);

  const std::string bytes = read_file(path);
  CHECK(bytes.size() == w.file_bytes());
  CHECK(w.weight_bytes() == t.size() + norm.size() + last.size());
  const GgufFile gguf = parse_gguf(view_of(bytes));
  CHECK(gguf.integer("a.u32") == 4000000000u);
  CHECK(gguf.number("a.f32") == -0.125);
  CHECK(gguf.boolean("a.bool") == true);
  CHECK(gguf.string("a.text") == std::string_view("x\0y", 3));
  CHECK(gguf.strings("a.strings") == std::vector<std::string_view>{"", "one", "\xC3\xA9"});
  CHECK(gguf.floats("a.floats") == std::vector<float>{1.5f, -2.0f});
  CHECK(gguf.integers("a.integers") == std::vector<int64_t>{-7, 8});
  REQUIRE(gguf.tensors.size() == 3);
  const auto text_of = [&](const char* name) {
    const RawTensor& raw = gguf.tensors.at(name);
    return std::string(reinterpret_cast<const char*>(raw.data), raw.bytes);
  };
  CHECK(text_of("t") == t);
  CHECK(text_of("norm") == norm);
  CHECK(text_of("empty pad") == last);
  CHECK(gguf.tensors.at("t").shape == std::vector<uint64_t>{3, 64});
  CHECK(gguf.tensors.at("t").type == DType::Q8_0);

  // Copied values, every kind of them.
  const std::string again = temp / "b.gguf";
  GgufFileWriter copy(again, false);
  for (const auto& [key, value] : gguf.metadata) copy.value(key, value);
  copy.begin();
  copy.finish();
  const std::string copied = read_file(again);
  const GgufFile other = parse_gguf(view_of(copied));
  REQUIRE(other.metadata.size() == gguf.metadata.size());
  for (const auto& [key, value] : gguf.metadata) {
    INFO(key);
    const GgufValue& v = other.metadata.at(key);
    CHECK(v.type == value.type);
    CHECK(v.element == value.element);
    CHECK(v.count == value.count);
    REQUIRE(v.bytes == value.bytes);
    CHECK(std::memcmp(v.data, value.data, v.bytes) == 0);
  }
}

TEST_CASE("GGUF writer: every type of weights has its number", "[quantize]") {
  const TempDir temp;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    const std::string path = temp / (std::to_string(i) + ".gguf");
    GgufFileWriter w(path, false);
    w.tensor("t", type, {2, 256});
    w.begin();
    const std::string data(static_cast<size_t>(2 * row_bytes(type, 256)), '\1');
    w.write(data.data(), data.size());
    w.finish();
    const std::string bytes = read_file(path);
    const GgufFile gguf = parse_gguf(view_of(bytes));
    CHECK(gguf.tensors.at("t").type == type);
    CHECK(gguf.tensors.at("t").type_name == dtype_info(type).name);
  }
}

TEST_CASE("GGUF writer: failures leave nothing, and no other file is touched", "[quantize]") {
  const TempDir temp;
  const std::string path = temp / "a.gguf";
  const auto begun = [&](bool overwrite) {
    auto w = std::make_unique<GgufFileWriter>(path, overwrite);
    w->tensor("t", DType::F32, {1000, 1000});
    return w;
  };
  begun(false)->begin();
  CHECK(files_in(temp) == 0);
  expect_error(RIFFLE_INTERNAL, {"a.gguf", "0 of 1 tensors"}, [&] {
    const auto w = begun(false);
    w->begin();
    w->finish();
  });
  expect_error(RIFFLE_INTERNAL, {"a.gguf", "more bytes"}, [&] {
    const auto w = begun(false);
    w->begin();
    const std::string data(4000001, 'x');
    w->write(data.data(), data.size());
  });
  CHECK(files_in(temp) == 0);

  write_file(path, "precious");
  expect_error(RIFFLE_BAD_ARGUMENT, {"a.gguf: the file exists"}, [&] { begun(false); });
  begun(true)->begin();
  CHECK(read_file(path) == "precious");
  CHECK(files_in(temp) == 1);
  // A file that comes to be while ours is written.
  std::filesystem::remove(path);
  {
    GgufFileWriter w(path, false);
    w.begin();
    write_file(path, "precious");
    expect_error(RIFFLE_IO, {"a.gguf"}, [&] { w.finish(); });
  }
  CHECK(read_file(path) == "precious");
  CHECK(files_in(temp) == 1);
  {
    GgufFileWriter w(path, true);
    w.begin();
    w.finish();
  }
  CHECK(read_file(path).substr(0, 4) == "GGUF");

  expect_error(RIFFLE_BAD_ARGUMENT, {"folder"}, [&] { GgufFileWriter(temp.path(), true); });
  expect_error(RIFFLE_BAD_ARGUMENT, {"device"}, [&] { GgufFileWriter("/dev/null", true); });
  expect_error(RIFFLE_IO, {"none/a.gguf"}, [&] { GgufFileWriter(temp / "none/a.gguf", false); });
}

// Simulates a full disk: no file of this process may grow beyond 1 MB.
TEST_CASE("GGUF writer: no room is an error that names the file", "[quantize]") {
  const TempDir temp;
  struct rlimit old;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = old;
  small.rlim_cur = 1 << 20;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  expect_error(RIFFLE_IO, {"big.gguf", "File too large"}, [&] {
    GgufFileWriter w(temp / "big.gguf", false);
    w.tensor("t", DType::F32, {1000, 1000});
    w.begin();
    const std::string data(4000000, 'x');
    w.write(data.data(), data.size());
    w.finish();
  });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  CHECK(files_in(temp) == 0);
}
