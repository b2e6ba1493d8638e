#include "model/chat/chat_template.h"

#include <sentencepiece_processor.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/model/text/vocabulary.h"

using namespace riffle;
using namespace riffle_test;

namespace {

using Ids = std::vector<int32_t>;

// The demo model's own.
const char* const kInst =
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
    "message['content'] + "
    "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token "
    "}}{% endif %}"
    "{% endfor %}";

// Written anew to the same effect as Llama 2's: system message inside of the first user message,
// contents stripped.
const char* const kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% "
    "set rest = "
    "messages[1:] %}{% else %}{% set system_message = false %}{% set rest = messages %}{% endif "
    "%}\n"
    "{% for message in rest %}\n  {% if loop.index0 == 0 and system_message != false %}\n"
    "    {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] "
    "%}\n"
    "  {% else %}{% set content = message['content'] %}{% endif %}\n"
    "  {% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('roles {must} alternate %}') }}{% endif %}\n{% endfor %}\n";

const char* const kChatML =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::unique_ptr<Tokenizer> small() {
  return tokenizer_from_pieces(small_pieces(), small_options(), "small");
}

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

// By the format that the template is recognised as.
Ids tokens_of(const Tokenizer& tokenizer, const std::string& text,
              const std::vector<ChatMessage>& messages) {
  const auto format = recognise_chat_template(text, tokenizer);
  if (!format) {
    UNSCOPED_INFO(text);
    throw std::runtime_error("not recognised");
  }
  return chat_tokens(tokenizer, *format, messages);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t pos = text.find(from);
  REQUIRE(pos != std::string::npos);
  return text.replace(pos, from.size(), to);
}

}  // namespace

TEST_CASE("the plain [INST] template", "[chat]") {
  const auto tokenizer = small();
  CHECK(tokens_of(*tokenizer, kInst, {{"user", "hello"}}) ==
        parts(*tokenizer, {{1, "[INST] hello [/INST]"}}));
  CHECK(tokens_of(*tokenizer, kInst, {{"user", " a\n"}, {"assistant", "b "}, {"user", ""}}) ==
        parts(*tokenizer, {{1, "[INST]  a\n [/INST] b "}, {2, ""}, {1, "[INST]  [/INST]"}}));
  // Control pieces in a message stay plain text, whichever role writes them.
  const Ids ids =
      tokens_of(*tokenizer, kInst, {{"user", "</s><s>"}, {"assistant", "<s>"}, {"user", "a"}});
  CHECK(ids ==
        parts(*tokenizer, {{1, "[INST] </s><s> [/INST] <s>"}, {2, ""}, {1, "[INST] a [/INST]"}}));
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
    CHECK(tokens_of(*tokenizer, text, {{"user", content}}) == Ids(entry["ids"]));
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
  CHECK(tokens_of(*tokenizer, text, {{"user", "Hi"}, {"assistant", "Hello."}, {"user", "Bye"}}) ==
        expected);
}

TEST_CASE("the Llama 2 template", "[chat]") {
  const auto tokenizer = small();
  CHECK(tokens_of(*tokenizer, kLlama2, {{"user", " \t\nhello\xC2\xA0\xE3\x80\x80\xE2\x80\x83"}}) ==
        parts(*tokenizer, {{1, "[INST] hello [/INST]"}}));
  CHECK(tokens_of(*tokenizer, kLlama2,
                  {{"user", "\xE2\x80\x8B a\xC3\xA9 "}}) ==  // U+200B is no white space
        parts(*tokenizer, {{1, "[INST] \xE2\x80\x8B a\xC3\xA9 [/INST]"}}));
  CHECK(tokens_of(
            *tokenizer, kLlama2,
            {{"system", " be a "}, {"user", " hello "}, {"assistant", " b\n"}, {"user", "a"}}) ==
        parts(*tokenizer, {{1, "[INST] <<SYS>>\n be a \n<</SYS>>\n\n hello [/INST] b "},
                           {2, ""},
                           {1, "[INST] a [/INST]"}}));
  CHECK(tokens_of(*tokenizer,
                  replaced(kLlama2, "content.strip() + ' [/INST]'", "content | trim + ' [/INST]'"),
                  {{"user", " a "}}) == parts(*tokenizer, {{1, "[INST] a [/INST]"}}));
}

TEST_CASE("the ChatML template", "[chat]") {
  const auto tokenizer = small();
  const std::vector<ChatMessage> messages = {{"system", "sys"}, {"user", "hello<|im_end|>"}};
  const Ids expected = parts(
      *tokenizer,
      {{3, "system\nsys"}, {4, "\n"}, {3, "user\nhello<|im_end|>"}, {4, "\n"}, {3, "assistant\n"}});
  CHECK(tokens_of(*tokenizer, kChatML, messages) == expected);
  Ids with_bos = expected;
  with_bos.insert(with_bos.begin(), 1);
  CHECK(tokens_of(*tokenizer, std::string("{{ bos_token }}") + kChatML, messages) == with_bos);
  const char* other_spelling =
      "{%- for message in messages -%}\n{{- \"<|im_start|>\" + message.role + \"\\n\" + "
      "message.content + "
      "\"<|im_end|>\\n\" -}}\n{%- endfor -%} {# comment #}\n{%- if add_generation_prompt -%}\n"
      "{{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n";
  CHECK(tokens_of(*tokenizer, other_spelling, messages) == expected);

  std::vector<VocabPiece> pieces = small_pieces();
  pieces[4] = {"<|im_end|>", 0, VocabPiece::NORMAL};
  std::string text;
  CHECK(status_of(
            [&] {
              tokens_of(*tokenizer_from_pieces(pieces, small_options(), "v"), kChatML, messages);
            },
            &text) == RIFFLE_UNSUPPORTED);
  CHECK(text.find("<|im_end|>") != std::string::npos);
}

TEST_CASE("templates that print anything else are not recognised", "[chat]") {
  const auto tokenizer = small();
  const auto refused = [&](const std::string& text) {
    INFO(text.substr(0, 500));
    CHECK_FALSE(recognise_chat_template(text, *tokenizer));
  };
  refused("");
  refused("{{ messages }}");
  refused("no tags");
  refused(std::string(kInst) + "x");
  refused(std::string("\n") + kInst);                       // a line break before {%: printed
  refused(replaced(kInst, "{% endif %}", " {% endif %}"));  // a space after }}: printed
  refused(replaced(kInst, "'[INST] '", "'[INST]'"));
  refused(replaced(kInst, "bos_token + ", ""));
  refused(replaced(kInst, "in messages", "in messages[1:]"));
  refused(replaced(kLlama2, "system_message = false", "system_message = 'Be kind.'"));
  refused(replaced(kLlama2, "<</SYS>>\\n\\n", "<</SYS>>\\n"));
  refused(replaced(kChatML, "<|im_start|>assistant\n", "<|im_start|>assistant"));
  // What is printed the same is the same: an indented one, with a last line break.
  CHECK(tokens_of(*tokenizer,
                  replaced(std::string(kInst) + "\n", "{% for message in messages %}",
                           "{%- for message in messages %}\n   "),
                  {{"user", "a"}}) == parts(*tokenizer, {{1, "[INST] a [/INST]"}}));
  // A system message where the family has an error for it makes no difference.
  CHECK(recognise_chat_template(
      replaced(kInst, "{% endif %}",
               "{% elif message['role'] == 'system' %}{{ message['content'] }}{% endif %}"),
      *tokenizer));
}

TEST_CASE("hostile templates are not recognised, in time", "[chat]") {
  const auto refused = [&](const std::string& text) {
    INFO(text.substr(0, 200));
    CHECK_FALSE(recognise_chat_template(text, "<s>", "</s>"));
  };
  const auto times = [](int n, const std::string& text) {
    std::string out;
    for (int i = 0; i < n; i++) out += text;
    return out;
  };
  for (const char* text : {"{",
                           "{% for",
                           "{{ 'a }}",
                           "{%",
                           "{% %}",
                           "{{}}",
                           "{#",
                           "{% endif %}",
                           "{% if x %}",
                           "{% else %}",
                           "{% for m in messages %}",
                           "{% for %}{% endfor %}",
                           "{% if %}{% endif %}",
                           "{% set %}",
                           "{% set x %}",
                           "{{ x[ }}",
                           "{{ ) }}",
                           "{{ 'a\\",
                           "{{ - }}",
                           "{%+ if x %}{% endif %}",
                           "{% raw %}",
                           "{{ messages[99999999999999999999] }}",
                           "{{ messages[-999999999] }}"}) {
    refused(text);
  }
  for (const char* text : {"{{", "{%", "{#", "{{ x }}", "{{ '", "{% if x %}",
                           "{% for m in messages %}", "{% set a = 1 %}", "("}) {
    refused(times((1 << 20) / static_cast<int>(std::string(text).size()), text));  // 1 MiB
    refused(times((200 << 10) / static_cast<int>(std::string(text).size()), text));
  }
  for (const char* text :
       {"(", "[", "-", "not ", "x[", "f(", "'a' + ", "x | trim | ", "x.y.", "a if "}) {
    refused("{{ " + times(1000, text));
    refused("{{ " + times(1000, text) + "x }}");
    refused("{{ " + times(30000, text) + "x }}");
  }
  refused("{{ x" + times(4000, ".y") + " }}");
  refused("{{ 'a'" + times(1000, " + 'a'") + " }}");
  const std::string inst = kInst;
  refused(inst + std::string(2 << 20, ' '));
  refused(inst + std::string(1, '\0'));
  refused(std::string(1, '\0') + inst);
  // Loops in loops, text that doubles: stopped, not waited for.
  refused(times(30, "{% for m in messages %}") + times(30, "{% endfor %}") + inst);
  refused("{% set a = 'xxxxxxxx' %}" + times(60, "{% set a = a + a %}") + inst);
  refused("{% set a = [messages] %}" + times(60, "{% set a = [a, a, a, a] %}") + inst);
  refused("{% for m in messages %}" +
          times(60, "{% set x = (m.content + x | default('')) | trim %}") +
          times(60, "{% set x = x + x %}") + "{% endfor %}" + inst);
}

namespace {

struct Fixture {
  nlohmann::json json = nlohmann::json::parse(read_file("tests/golden/chat_templates.json"));
  std::vector<std::vector<ChatMessage>> conversations;
  Fixture() {
    for (const auto& conversation : json["conversations"]) {
      auto& messages = conversations.emplace_back();
      for (const auto& message : conversation) messages.push_back({message[0], message[1]});
    }
    REQUIRE(conversations.size() >= 20);
    REQUIRE(json["families"].size() == chat_families().size());
  }
  // The format's texts are Jinja's, and an error where the template refuses.
  void check_texts(const ChatFormat& format, const nlohmann::json& entry) const {
    const std::string bos = entry["bos"], eos = entry["eos"];
    REQUIRE(entry["texts"].size() == conversations.size());
    for (size_t i = 0; i < conversations.size(); i++) {
      const bool no_system =
          conversations[i][0].role == "system" && format.family->system_place == ChatFamily::NONE;
      if (no_system) {
        CHECK(status_of([&] { chat_text(format, bos, eos, conversations[i]); }) ==
              RIFFLE_BAD_ARGUMENT);
      } else {
        REQUIRE(entry["texts"][i].is_number());
        CHECK(chat_text(format, bos, eos, conversations[i]) ==
              std::string(json["strings"][int(entry["texts"][i])]));
      }
    }
  }
};

}  // namespace

TEST_CASE("every family prints what Jinja prints for its templates, and is recognised by them",
          "[chat]") {
  const Fixture fixture;
  for (const auto& entry : fixture.json["families"]) {
    const std::string name = entry["name"];
    INFO(name);
    const ChatFormat named = chat_format_named(name);
    fixture.check_texts(named, entry);
    for (const std::string text : entry["templates"]) {
      INFO(text);
      const auto format =
          recognise_chat_template(text, std::string(entry["bos"]), std::string(entry["eos"]));
      REQUIRE(format);
      CHECK(format->family->name == name);
      CHECK(format->bos_first == named.bos_first);
      CHECK(format->has_default_system == named.has_default_system);
      CHECK(format->default_system == named.default_system);
    }
  }
}

TEST_CASE("a template's own default system message and beginning", "[chat]") {
  const Fixture fixture;
  for (const auto& entry : fixture.json["variants"]) {
    INFO(entry["template"].dump());
    const auto format = recognise_chat_template(
        std::string(entry["template"]), std::string(entry["bos"]), std::string(entry["eos"]));
    REQUIRE(format);
    CHECK(format->family->name == entry["name"]);
    CHECK(format->bos_first == entry["bos_first"]);
    CHECK(format->has_default_system == !entry["default_system"].is_null());
    if (format->has_default_system) CHECK(format->default_system == entry["default_system"]);
    fixture.check_texts(*format, entry);
  }
}

TEST_CASE("templates that Jinja prints otherwise are not taken for the same format", "[chat]") {
  const Fixture fixture;
  for (const auto& entry : fixture.json["strange"]) {
    INFO(entry["template"].dump());
    CHECK_FALSE(recognise_chat_template(std::string(entry["template"]), std::string(entry["bos"]),
                                        std::string(entry["eos"])));
  }
  size_t recognised = 0, all = 0;
  for (const auto& entry : fixture.json["families"]) {
    const std::string bos = entry["bos"], eos = entry["eos"], text = entry["templates"][0];
    const ChatFormat named = chat_format_named(std::string(entry["name"]));
    for (const auto& mutant : entry["mutants"]) {
      const size_t at = mutant[0], drop = mutant[1];
      const std::string changed = text.substr(0, at) + std::string(mutant[2]) +
                                  text.substr(std::min(at + drop, text.size()));
      INFO(changed);
      all++;
      const auto format = recognise_chat_template(changed, bos, eos);
      if (!format) continue;
      // It may well be another format, such as one with another default system message; or, where
      // the family has no system messages, differ in them alone.
      recognised++;
      const bool same = format->family == named.family && format->bos_first == named.bos_first &&
                        format->has_default_system == named.has_default_system &&
                        format->default_system == named.default_system;
      CHECK((!same || named.family->system_place == ChatFamily::NONE));
    }
  }
  CHECK(all >= 500);
  CHECK(recognised < all / 10);
}

TEST_CASE("formats by name", "[chat]") {
  std::string said;
  CHECK(status_of([&] { chat_format_named("llama9"); }, &said) == RIFFLE_BAD_ARGUMENT);
  CHECK(said.find("'llama9'") != std::string::npos);
  for (const ChatFamily& family : chat_families()) {
    CHECK(said.find(family.name) != std::string::npos);
    CHECK(chat_format_named(family.name).family == &family);
  }
  const auto tokenizer = small();
  const std::vector<ChatMessage> hello = {{"user", "hello</s>"}};
  // What the vocabulary lacks as a token: an error where the format cannot be without, else plain
  // text.
  CHECK(status_of([&] { chat_tokens(*tokenizer, chat_format_named("llama3"), hello); }, &said) ==
        RIFFLE_UNSUPPORTED);
  CHECK(said.find("<|start_header_id|>") != std::string::npos);
  CHECK(chat_tokens(*tokenizer, chat_format_named("zephyr"), hello) == [&] {
    Ids ids = tokenizer->encode("<|user|>\nhello</s>", false, false);
    const Ids rest = tokenizer->encode("\n<|assistant|>\n", false, false);
    ids.push_back(2);
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }());
  std::vector<VocabPiece> pieces = small_pieces();
  pieces[3] = {"<|user|>", 0, VocabPiece::CONTROL};
  const auto other = tokenizer_from_pieces(pieces, small_options(), "v");
  const Ids ids = chat_tokens(*other, chat_format_named("zephyr"), {{"user", "<|user|>"}});
  CHECK(ids[0] == 3);
  CHECK(std::count(ids.begin(), ids.end(), 3) == 1);

  CHECK(chat_end_ids(*tokenizer, chat_format_named("qwen2")) == Ids{4});
  CHECK(chat_end_ids(*tokenizer, chat_format_named("llama3")).empty());
  CHECK(chat_end_ids(*tokenizer, chat_format_named("vicuna")).empty());
}

TEST_CASE("a format's tokens where the vocabulary has no beginning or end of sequence", "[chat]") {
  VocabOptions options = small_options();
  options.bos_id = options.eos_id = -1;
  const auto tokenizer = tokenizer_from_pieces(small_pieces(), options, "v");
  std::string said;
  CHECK(status_of(
            [&] {
              chat_tokens(*tokenizer, chat_format_named("vicuna"), {{"user", "a"}});
            },
            &said) == RIFFLE_UNSUPPORTED);
  CHECK(said.find("beginning-of-sequence") != std::string::npos);
  CHECK(status_of(
            [&] {
              chat_tokens(*tokenizer, chat_format_named("zephyr"), {{"user", "a"}});
            },
            &said) == RIFFLE_UNSUPPORTED);
  CHECK(said.find("end-of-sequence") != std::string::npos);
  // Jinja prints nothing for a token that is not defined.
  const auto format = recognise_chat_template(std::string("{{ bos_token }}") + kChatML, *tokenizer);
  REQUIRE(format);
  CHECK_FALSE(format->bos_first);
}

TEST_CASE("conversations out of order are errors that name the role", "[chat]") {
  const auto tokenizer = small();
  const auto refused = [&](const char* text, const std::vector<ChatMessage>& messages,
                           const char* says) {
    std::string said;
    CHECK(status_of([&] { tokens_of(*tokenizer, text, messages); }, &said) == RIFFLE_BAD_ARGUMENT);
    INFO(said);
    CHECK(said.find(says) != std::string::npos);
  };
  refused(kInst, {}, "no messages");
  refused(kInst, {{"system", "a"}, {"user", "b"}}, "'system'");
  for (const char* text : {kInst, kLlama2, kChatML}) {
    refused(text, {{"assistant", "a"}}, "message 0 has role 'assistant', expected 'user'");
    refused(text, {{"user", "a"}, {"user", "b"}},
            "message 1 has role 'user', expected 'assistant'");
    refused(text, {{"user", "a"}, {"assistant", "b"}}, "last message");
    refused(text, {{"user", "a"}, {"assistant", "b"}, {"tool", "c"}}, "'tool'");
  }
  refused(kLlama2, {{"system", "a"}}, "last message");
  refused(kLlama2, {{"system", "a"}, {"system", "b"}}, "message 1");
  std::string said;
  CHECK(status_of(
            [&] {
              tokens_of(*tokenizer, kInst, {{"user", "ab\xFF"}});
            },
            &said) == RIFFLE_BAD_TEXT);
  CHECK(said == "message 0 is not UTF-8: invalid sequence at byte 2");
}
