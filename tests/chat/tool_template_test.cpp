// Conversations with tools: tests/golden/tool_templates.json has the texts that Jinja prints.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "chat/chat_template.h"
#include "requests/calls/formats.h"
#include "tests/text/vocabulary.h"

using namespace riffle;
using namespace riffle_test;

namespace {

Json json_of(const nlohmann::ordered_json& json) {
  return parse_json(json.dump(), {.depth = 64, .values = 10000});
}

std::unique_ptr<Tokenizer> small_tokenizer() {
  return tokenizer_from_pieces(small_pieces(), small_options(), "small");
}

std::vector<ChatMessage> messages_of(const nlohmann::ordered_json& conversation) {
  std::vector<ChatMessage> out;
  for (const auto& m : conversation) {
    ChatMessage message{m["role"], m["content"].is_null() ? "" : std::string(m["content"])};
    if (m.contains("tool_call_id")) {
      message.call_id = m["tool_call_id"];
      message.name = m["name"];
    }
    if (m.contains("tool_calls"))
      for (const auto& call : m["tool_calls"]) {
        const auto& arguments = call["function"]["arguments"];
        message.calls.push_back(
            {call["id"], call["function"]["name"], json_of(arguments), arguments.dump()});
      }
    out.push_back(std::move(message));
  }
  return out;
}

}  // namespace

TEST_CASE("templates print tools and calls as Jinja does", "[chat]") {
  const auto json = nlohmann::ordered_json::parse(read_file("tests/golden/tool_templates.json"));
  std::vector<Json> tools;
  for (const auto& tool : json["tools"]) tools.push_back(json_of(tool));
  const auto tokenizer = small_tokenizer();
  REQUIRE(json["cases"].size() >= 11);
  for (const auto& entry : json["cases"]) {
    const std::string name = entry["format"], text = entry["template"];
    INFO(text);
    const ChatTemplate chat(text);
    CHECK(chat.knows_tools());
    const requests::CallFormat* const format = requests::call_format(chat.text_of_template());
    CHECK(name == (format ? format->name : "none"));
    ChatOptions options;
    options.tools = &tools;
    for (size_t i = 0; i < json["conversations"].size(); ++i)
      CHECK(chat.text(*tokenizer, messages_of(json["conversations"][i]), options).str() ==
            std::string(entry["texts"][i]));
  }
}

TEST_CASE("texts of tools become no control tokens", "[chat]") {
  const auto json = nlohmann::ordered_json::parse(read_file("tests/golden/tool_templates.json"));
  std::vector<Json> tools;
  for (const auto& tool : json["tools"]) tools.push_back(json_of(tool));
  const auto tokenizer = small_tokenizer();
  const int32_t end = tokenizer->control_id("<|im_end|>");
  REQUIRE(end >= 0);
  const ChatTemplate chat{std::string(json["cases"][0]["template"])};
  ChatOptions options;
  options.tools = &tools;
  const auto ids =
      chat.tokens(*tokenizer, chat.text(*tokenizer, {{"user", "<|im_end|>"}}, options));
  // The description of a tool has one too; those of the template close the two turns.
  CHECK(std::count(ids.begin(), ids.end(), end) == 2);
}

TEST_CASE("a template without tools refuses them", "[chat]") {
  const std::vector<Json> tools{parse_json("{}", {.depth = 1, .values = 1})};
  ChatOptions options;
  options.tools = &tools;
  const auto tokenizer = small_tokenizer();
  const ChatTemplate plain("{% for m in messages %}{{ m.content }}{% endfor %}");
  CHECK_FALSE(plain.knows_tools());
  CHECK(status_of([&] {
          (void)plain.text(*tokenizer, {{"user", "a"}}, options);
        }) == RIFFLE_UNSUPPORTED);
  const ChatMessage called{"assistant", "", "", {{"1", "f", tools[0], "{}"}}};
  const ChatTemplate named(chat_family_named("chatml"));
  const auto chatml = small_tokenizer();
  CHECK(status_of([&] {
          (void)named.text(*chatml, {{"user", "a"}, called, {"user", "b"}}, {});
        }) == RIFFLE_UNSUPPORTED);
}
