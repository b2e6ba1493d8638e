#include "formats/hf_files.h"

#include "tests/model/expect_error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

FileView view_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size(), "config.json"};
}

}  // namespace

TEST_CASE("shard index: names stay inside the folder", "[hf]") {
  const auto bad = [](const std::string& map, const std::vector<std::string>& words) {
    const std::string text = "{\"weight_map\": " + map + "}";
    expect_error(RIFFLE_BAD_MODEL, words, [&] { parse_shard_index(view_of(text)); });
  };
  bad("{\"t\": \"../other.safetensors\"}", {"weight_map t", "same folder"});
  bad("{\"t\": \"/etc/passwd\"}", {"weight_map t"});
  bad("{\"t\": \"a/b\"}", {"weight_map t"});
  bad("{\"t\": \"..\"}", {"weight_map t"});
  bad("{\"t\": \"\"}", {"weight_map t"});
  bad("{\"t\": \"a\\u0000b\"}", {"weight_map t"});
  bad("{\"t\": 3}", {"weight_map t", "3"});
  bad("[]", {"weight_map", "array"});
  expect_error(RIFFLE_BAD_MODEL, {"weight_map", "none"}, [] { parse_shard_index(view_of("{}")); });
  const std::string good = "{\"weight_map\": {\"x\": \"b\", \"y\": \"a\", \"z\": \"b\"}}";
  const ShardIndex index = parse_shard_index(view_of(good));
  CHECK(index.shards == std::vector<std::string>{"a", "b"});
  REQUIRE(index.tensors.size() == 3);
  CHECK(index.tensors[1] == std::pair<std::string, size_t>("y", 0));
}

TEST_CASE("tokenizer_config.json: chat template and added tokens", "[hf]") {
  const auto parse = [](const std::string& text) { return parse_tokenizer_config(view_of(text)); };
  CHECK(parse("{}").chat_template.empty());
  CHECK(parse("{\"chat_template\": null}").chat_template.empty());
  CHECK(parse("{\"chat_template\": \"T\"}").chat_template == "T");
  CHECK(parse("{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"A\"}, "
              "{\"name\": \"default\", \"template\": \"B\"}]}")
            .chat_template == "B");
  CHECK(parse("{\"chat_template\": [{\"name\": \"rag\", \"template\": \"A\"}]}")
            .chat_template.empty());
  const TokenizerConfig c = parse(
      "{\"pad_token\": {\"content\": \"<pad>\"}, \"added_tokens_decoder\": {\"32000\": "
      "{\"content\": \"<pad>\", \"special\": true}}}");
  CHECK(c.pad_token == "<pad>");
  REQUIRE(c.added_tokens.size() == 1);
  CHECK(c.added_tokens[0].id == 32000);
  CHECK(c.added_tokens[0].text == "<pad>");
  expect_error(RIFFLE_BAD_MODEL, {"chat_template"}, [&] { parse("{\"chat_template\": 3}"); });
  expect_error(RIFFLE_BAD_MODEL, {"chat_template"}, [&] { parse("{\"chat_template\": [3]}"); });
  expect_error(RIFFLE_BAD_MODEL, {"added_tokens_decoder", "x1"},
               [&] { parse("{\"added_tokens_decoder\":{\"x1\":{}}}"); });
}
