#include "model/chat_template.h"

#include <sentencepiece_processor.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/model/vocabulary.h"

using namespace riffle;
using namespace riffle_test;

namespace {

using Ids = std::vector<int32_t>;

// The demo model's own.
const char* const kInst =
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'] + "
    "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}";

// Written anew to the same effect as Llama 2's: system message inside of the first user message, contents stripped.
const char* const kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% set rest = "
    "messages[1:] %}{% else %}{% set system_message = false %}{% set rest = messages %}{% endif %}\n"
    "{% for message in rest %}\n  {% if loop.index0 == 0 and system_message != false %}\n"
    "    {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\n"
    "  {% else %}{% set content = message['content'] %}{% endif %}\n"
    "  {% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('roles {must} alternate %}') }}{% endif %}\n{% endfor %}\n";

const char* const kChatML =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::unique_ptr<Tokenizer> small() { return tokenizer_from_pieces(small_pieces(), small_options(), "small"); }

// Ids of parts that begin with a control piece's id and go on with plain text.
Ids parts(const Tokenizer& tokenizer, const std::vector<std::pair<int32_t, std::string>>& list) {
  Ids out;
  for (const auto& [control, text] : list) {
    out.push_back(control);
    const Ids ids = tokenizer.encode(text, false, false);
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t pos = text.find(from);
  REQUIRE(pos != std::string::npos);
  return text.replace(pos, from.size(), to);
}

}  // namespace

TEST_CASE("the plain [INST] template", "[chat]") {
  const auto tokenizer = small();
  CHECK(chat_tokens(*tokenizer, kInst, {{"user", "hello"}}) == parts(*tokenizer, {{1, "[INST] hello [/INST]"}}));
  CHECK(chat_tokens(*tokenizer, kInst, {{"user", " a\n"}, {"assistant", "b "}, {"user", ""}}) ==
        parts(*tokenizer, {{1, "[INST]  a\n [/INST] b "}, {2, ""}, {1, "[INST]  [/INST]"}}));
  // Control pieces in a message stay plain text, whichever role writes them.
  const Ids ids = chat_tokens(*tokenizer, kInst, {{"user", "</s><s>"}, {"assistant", "<s>"}, {"user", "a"}});
  CHECK(ids == parts(*tokenizer, {{1, "[INST] </s><s> [/INST] <s>"}, {2, ""}, {1, "[INST] a [/INST]"}}));
  CHECK(std::count(ids.begin(), ids.end(), 1) == 2);
  CHECK(std::count(ids.begin(), ids.end(), 2) == 1);
}

TEST_CASE("the demo model's template gives the golden ids", "[chat]") {
  const std::string serialized = demo_vocabulary();
  if (serialized.empty()) return;
  const auto tokenizer = tokenizer_from_model(serialized, "tokenizer.model");
  std::string text = kInst;
  if (const std::string path = demo_file("tokenizer_config.json"); !path.empty()) {
    text = nlohmann::json::parse(read_file(path))["chat_template"];
  }
  const auto golden = nlohmann::json::parse(read_file("tests/golden/tokens.json"));
  for (const auto& entry : golden["cases"]) {
    std::string content = entry["text"];
    if (!content.starts_with("[INST] ")) continue;
    content = content.substr(7, content.size() - 7 - 8);
    CHECK(chat_tokens(*tokenizer, text, {{"user", content}}) == Ids(entry["ids"]));
  }
  // A conversation: the library's own ids of the text between control pieces.
  sentencepiece::SentencePieceProcessor processor;
  REQUIRE(processor.LoadFromSerializedProto(serialized).ok());
  std::vector<int> first, second;
  REQUIRE(processor.Encode("[INST] Hi [/INST] Hello.", &first).ok());
  REQUIRE(processor.Encode("[INST] Bye [/INST]", &second).ok());
  Ids expected = {1};
  expected.insert(expected.end(), first.begin(), first.end());
  expected.insert(expected.end(), {2, 1});
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(chat_tokens(*tokenizer, text, {{"user", "Hi"}, {"assistant", "Hello."}, {"user", "Bye"}}) == expected);
}

TEST_CASE("the Llama 2 template", "[chat]") {
  const auto tokenizer = small();
  CHECK(chat_tokens(*tokenizer, kLlama2, {{"user", " \t\nhello\xC2\xA0\xE3\x80\x80\xE2\x80\x83"}}) ==
        parts(*tokenizer, {{1, "[INST] hello [/INST]"}}));
  CHECK(chat_tokens(*tokenizer, kLlama2, {{"user", "\xE2\x80\x8B a\xC3\xA9 "}}) ==  // U+200B is no white space
        parts(*tokenizer, {{1, "[INST] \xE2\x80\x8B a\xC3\xA9 [/INST]"}}));
  CHECK(chat_tokens(*tokenizer, kLlama2,
                    {{"system", " be a "}, {"user", " hello "}, {"assistant", " b\n"}, {"user", "a"}}) ==
        parts(*tokenizer,
              {{1, "[INST] <<SYS>>\n be a \n<</SYS>>\n\n hello [/INST] b "}, {2, ""}, {1, "[INST] a [/INST]"}}));
  CHECK(chat_tokens(*tokenizer, replaced(kLlama2, "content.strip() + ' [/INST]'", "content | trim + ' [/INST]'"),
                    {{"user", " a "}}) == parts(*tokenizer, {{1, "[INST] a [/INST]"}}));
}

TEST_CASE("the ChatML template", "[chat]") {
  const auto tokenizer = small();
  const std::vector<ChatMessage> messages = {{"system", "sys"}, {"user", "hello<|im_end|>"}};
  const Ids expected =
      parts(*tokenizer, {{3, "system\nsys"}, {4, "\n"}, {3, "user\nhello<|im_end|>"}, {4, "\n"}, {3, "assistant\n"}});
  CHECK(chat_tokens(*tokenizer, kChatML, messages) == expected);
  Ids with_bos = expected;
  with_bos.insert(with_bos.begin(), 1);
  CHECK(chat_tokens(*tokenizer, std::string("{{ bos_token }}") + kChatML, messages) == with_bos);
  const char* other_spelling =
      "{%- for message in messages -%}\n{{- \"<|im_start|>\" + message.role + \"\\n\" + message.content + "
      "\"<|im_end|>\\n\" -}}\n{%- endfor -%} {# comment #}\n{%- if add_generation_prompt -%}\n"
      "{{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n";
  CHECK(chat_tokens(*tokenizer, other_spelling, messages) == expected);

  std::vector<VocabPiece> pieces = small_pieces();
  pieces[4] = {"<|im_end|>", 0, VocabPiece::NORMAL};
  std::string text;
  CHECK(status_of([&] { chat_tokens(*tokenizer_from_pieces(pieces, small_options(), "v"), kChatML, messages); },
                  &text) == RIFFLE_UNSUPPORTED);
  CHECK(text.find("<|im_end|>") != std::string::npos);
}

TEST_CASE("templates that print anything else are refused", "[chat]") {
  const auto tokenizer = small();
  const auto refused = [&](const std::string& text) {
    std::string said;
    const riffle_status status = status_of([&] { chat_tokens(*tokenizer, text, {{"user", "a"}}); }, &said);
    INFO(text);
    CHECK(status == RIFFLE_UNSUPPORTED);
    CHECK(said.find("ChatML") != std::string::npos);
    CHECK(said.find("Llama 2") != std::string::npos);
  };
  refused("");
  refused("{{ messages }}");
  refused("{% for");
  refused("{{ 'a }}");
  refused("{");
  refused("no tags");
  refused(std::string(kInst) + "x");
  refused(std::string("\n") + kInst);                       // a line break before {%: printed
  refused(replaced(kInst, "{% endif %}", " {% endif %}"));  // a space after }}: printed
  refused(replaced(kInst, "'[INST] '", "'[INST]'"));
  refused(replaced(kInst, "{% endif %}", "{% elif message['role'] == 'system' %}{{ message['content'] }}{% endif %}"));
  refused(replaced(kInst, "bos_token + ", ""));
  refused(replaced(kLlama2, "system_message = false", "system_message = 'Be kind.'"));
  refused(replaced(kLlama2, "<</SYS>>\\n\\n", "<</SYS>>\\n"));
  refused(std::string("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
                      "{% endif %}") +
          kChatML);
  refused(replaced(kChatML, "<|im_start|>assistant\n", "<|im_start|>assistant"));
  refused(std::string(2 << 20, ' '));
  std::string deep;
  for (int i = 0; i < 100000; i++) deep += "{{";
  refused(deep);
  // What is printed the same is the same: an indented one, with a last line break.
  CHECK(chat_tokens(
            *tokenizer,
            replaced(std::string(kInst) + "\n", "{% for message in messages %}", "{%- for message in messages %}\n   "),
            {{"user", "a"}}) == parts(*tokenizer, {{1, "[INST] a [/INST]"}}));
}

TEST_CASE("conversations out of order are errors that name the role", "[chat]") {
  const auto tokenizer = small();
  const auto refused = [&](const char* text, const std::vector<ChatMessage>& messages, const char* says) {
    std::string said;
    CHECK(status_of([&] { chat_tokens(*tokenizer, text, messages); }, &said) == RIFFLE_BAD_ARGUMENT);
    INFO(said);
    CHECK(said.find(says) != std::string::npos);
  };
  refused(kInst, {}, "no messages");
  refused(kInst, {{"system", "a"}, {"user", "b"}}, "'system'");
  for (const char* text : {kInst, kLlama2, kChatML}) {
    refused(text, {{"assistant", "a"}}, "message 0 has role 'assistant', expected 'user'");
    refused(text, {{"user", "a"}, {"user", "b"}}, "message 1 has role 'user', expected 'assistant'");
    refused(text, {{"user", "a"}, {"assistant", "b"}}, "last message");
    refused(text, {{"user", "a"}, {"assistant", "b"}, {"tool", "c"}}, "'tool'");
  }
  refused(kLlama2, {{"system", "a"}}, "last message");
  refused(kLlama2, {{"system", "a"}, {"system", "b"}}, "message 1");
  std::string said;
  CHECK(status_of([&] { chat_tokens(*tokenizer, kInst, {{"user", "ab\xFF"}}); }, &said) == RIFFLE_BAD_TEXT);
  CHECK(said == "message 0 is not UTF-8: invalid sequence at byte 2");
}
