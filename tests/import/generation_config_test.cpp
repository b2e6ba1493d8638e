// generation_config.json in a folder with config.json: the tokens that end answers, and a bad file
// that is refused by name.
#include "import/load_model.h"
#include "import/read_config.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// A folder whose config.json says that token 2 ends answers. with() returns its model's end tokens
// with this file in the folder.
struct Folder {
  TempDir dir;
  std::string path = dir / "hf", file = path + "/generation_config.json";
  Folder() { write_tiny_folder(path, tiny_model(3), DType::F16); }
  std::vector<int> with(const std::string& text) const {
    write_file(file, text);
    const auto model = load_model(path, {});
    CHECK(model->config.eos_id == 2);
    return model->config.eos_ids;
  }
  void refused(riffle_status status, const std::string& text,
               const std::vector<std::string>& words) const {
    INFO(text.substr(0, 100));
    write_file(file, text);
    expect_error(status, words, [&] { load_model(path, {}); });
  }
};

std::string numbers(int from, int to) {
  std::string out;
  for (int i = from; i < to; ++i) out += (out.empty() ? "" : ", ") + std::to_string(i);
  return "{\"eos_token_id\": [" + out + "]}";
}

}  // namespace

TEST_CASE("generation_config.json: its end tokens are added to config.json's", "[hf][model]") {
  const Folder folder;
  const std::vector<int> alone = load_model(folder.path, {})->config.eos_ids;
  CHECK(alone == std::vector<int>{2});
  CHECK(folder.with("{}") == alone);
  CHECK(folder.with("{\"eos_token_id\": null}") == alone);
  CHECK(folder.with("{\"eos_token_id\": []}") == alone);
  CHECK(folder.with("{\"eos_token_id\": -1}") == alone);
  CHECK(folder.with("{\"eos_token_id\": 2}") == alone);
  CHECK(folder.with("{\"eos_token_id\": 0}") == std::vector<int>{2, 0});
  CHECK(folder.with("{\"eos_token_id\": [7, 2, 7, -1, 319]}") == std::vector<int>{2, 7, 319});
  // Other fields of such files say how to sample, which is the user's choice here.
  CHECK(folder.with(
            "{\"bos_token_id\": 1, \"do_sample\": true, \"eos_token_id\": [9], \"pad_token_id\": "
            "99999, "
            "\"temperature\": 0.6, \"top_p\": \"high\", \"transformers_version\": \"4.43.0\"}") ==
        std::vector<int>{2, 9});
  CHECK(folder.with(numbers(0, 256)).size() == 256);
}

TEST_CASE("generation_config.json: the end token of a model whose config.json has none",
          "[hf][model]") {
  Config c;
  c.vocab_size = 10;
  const std::string text = "{\"eos_token_id\": [9, 4]}";
  add_generation_config(
      {reinterpret_cast<const uint8_t*>(text.data()), text.size(), "generation_config.json"}, &c);
  CHECK(c.eos_id == 9);
  CHECK(c.eos_ids == std::vector<int>{9, 4});
}

TEST_CASE("generation_config.json: a bad file is refused by name", "[hf][model]") {
  const Folder folder;
  const auto bad_id = [&](const std::string& value, const std::string& shown) {
    folder.refused(RIFFLE_BAD_MODEL, "{\"eos_token_id\": " + value + "}",
                   {"generation_config.json: eos_token_id", shown, "below vocab_size = 320"});
  };
  bad_id("320", "320");
  bad_id("[2, 320]", "320");
  bad_id("-2", "-2");
  bad_id("2.0", "2.0");
  bad_id("-1.0", "-1.0");
  bad_id("[-1, 18446744073709551615]", "18446744073709551615");
  bad_id("1e300", "1e+300");
  bad_id("true", "true");
  bad_id("\"</s>\"", "</s>");
  bad_id("{\"id\": 2}", "id");
  bad_id("[[2]]", "[2]");
  bad_id("[2, null]", "null");
  bad_id("18446744073709551615", "18446744073709551615");
  bad_id("4294967298", "4294967298");  // 2 in 32 bits
  bad_id("1e22", "1e+22");
  folder.refused(RIFFLE_BAD_MODEL, numbers(0, 257),
                 {"generation_config.json: eos_token_id", "257 ids", "at most 256"});
  for (const char* text : {"", "nonsense", "[2]", "2", "null", "{\"eos_token_id\": 2",
                           "{\"eos_token_id\": [2}", "{\"\xff\": 1}"})
    folder.refused(RIFFLE_BAD_MODEL, text, {"generation_config.json"});
  // Deep nesting must not reach the end of the stack.
  folder.refused(RIFFLE_BAD_MODEL, "{\"eos_token_id\": " + std::string(1 << 20, '['),
                 {"generation_config.json"});
  std::filesystem::remove(folder.file);
  std::filesystem::create_directory(folder.file);
  try {
    // Not a file: as if there were none, or an error, but no crash and no other tokens.
    CHECK(load_model(folder.path, {})->config.eos_ids == std::vector<int>{2});
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find("generation_config.json") != std::string::npos);
  }
}
