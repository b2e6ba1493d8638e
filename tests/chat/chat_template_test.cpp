#include "chat/chat_template.h"

#include <sentencepiece_processor.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/text/vocabulary.h"

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

const char* const kChatML =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// A model that thinks: reasoning of earlier turns is dropped, and is begun or closed by
// enable_thinking.
const char* const kThinker =
    "{%- set ns = namespace(last=0) %}\n"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}\n"
    "{%- for m in messages %}\n"
    "  {%- set content = m.content %}\n"
    "  {%- if m.role == 'assistant' and '</think>' in content %}\n"
    "    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n"
    "  {%- endif %}\n"
    "  {{- '<|im_start|>' + m.role + '\\n' }}\n"
    "  {%- if m.reasoning_content is defined and loop.index0 > ns.last %}\n"
    "    {{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}\n"
    "  {%- endif %}\n"
    "  {{- content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "  {{- '<|im_start|>assistant\\n' }}\n"
    "  {%- if enable_thinking is defined and not enable_thinking %}\n"
    "    {{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "  {%- elif enable_thinking is defined %}{{ '<think>\\n' }}{% endif %}\n"
    "{%- endif %}";

std::unique_ptr<Tokenizer> small() {
  return tokenizer_from_pieces(small_pieces(), small_options(), "small");
}

// A vocabulary with these tokens, and control pieces; of the families' if none are given.
std::unique_ptr<Tokenizer> with_tokens(const std::string& bos, const std::string& eos,
                                       std::vector<std::string> controls = {}) {
  std::vector<VocabPiece> pieces = small_pieces();
  VocabOptions options = small_options();
  options.bos_id = options.eos_id = -1;
  const auto add = [&](const std::string& text) {
    for (size_t i = 0; i < pieces.size(); i++) {
      if (pieces[i].text == text) return static_cast<int>(i);
    }
    pieces.push_back({text, 0, VocabPiece::CONTROL});
    return static_cast<int>(pieces.size()) - 1;
  };
  if (controls.empty())
    controls = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|user|>",
                "<|system|>",          "<|assistant|>"};
  for (const std::string& text : controls) add(text);
  if (!bos.empty()) options.bos_id = add(bos);
  if (!eos.empty()) options.eos_id = add(eos);
  return tokenizer_from_pieces(pieces, options, "families");
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

ChatTemplate named(const std::string& name) { return ChatTemplate(chat_family_named(name)); }

std::string text_of(const Tokenizer& tokenizer, const ChatTemplate& chat,
                    const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
  return chat.text(tokenizer, messages, options).str();
}
Ids tokens_of(const Tokenizer& tokenizer, const ChatTemplate& chat,
              const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
  return chat.tokens(tokenizer, chat.text(tokenizer, messages, options));
}
Ids tokens_of(const Tokenizer& tokenizer, const std::string& text,
              const std::vector<ChatMessage>& messages) {
  return tokens_of(tokenizer, ChatTemplate(text), messages);
}

}  // namespace

TEST_CASE("a model's own template is evaluated on the conversation", "[chat]") {
  const auto tokenizer = small();
  CHECK(tokens_of(*tokenizer, kInst, {{"user", "hello", ""}}) ==
        parts(*tokenizer, {{1, "[INST] hello [/INST]"}}));
  CHECK(tokens_of(*tokenizer, kInst,
                  {{"user", " a\n", ""}, {"assistant", "b ", ""}, {"user", "", ""}}) ==
        parts(*tokenizer, {{1, "[INST]  a\n [/INST] b "}, {2, ""}, {1, "[INST]  [/INST]"}}));
  const std::vector<ChatMessage> messages = {{"system", "sys", ""},
                                             {"user", "hello<|im_end|>", ""}};
  const Ids expected = parts(
      *tokenizer,
      {{3, "system\nsys"}, {4, "\n"}, {3, "user\nhello<|im_end|>"}, {4, "\n"}, {3, "assistant\n"}});
  CHECK(tokens_of(*tokenizer, kChatML, messages) == expected);
  // The message's text may change the output.
  const std::string upper =
      "{% for m in messages %}{{ m.content | upper if 'loud' in m.content else m.content }}"
      "{% endfor %}";
  CHECK(text_of(*tokenizer, ChatTemplate(upper), {{"user", "be loud", ""}}) == "BE LOUD");
  CHECK(text_of(*tokenizer, ChatTemplate(upper), {{"user", "be", ""}}) == "be");
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
    CHECK(tokens_of(*tokenizer, text, {{"user", content, ""}}) == Ids(entry["ids"]));
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
  CHECK(tokens_of(*tokenizer, text,
                  {{"user", "Hi", ""}, {"assistant", "Hello.", ""}, {"user", "Bye", ""}}) ==
        expected);
}

namespace {

struct Fixture {
  nlohmann::json json = nlohmann::json::parse(read_file("tests/golden/chat_templates.json"));
  std::vector<std::vector<ChatMessage>> conversations;
  Fixture() {
    for (const auto& conversation : json["conversations"]) {
      auto& messages = conversations.emplace_back();
      for (const auto& message : conversation) messages.push_back({message[0], message[1], ""});
    }
    REQUIRE(conversations.size() >= 20);
    REQUIRE(json["families"].size() == chat_families().size());
  }
  // The texts are Jinja's. Where Jinja refuses, or drops a system message without a word, there is
  // an error.
  void check_texts(const ChatTemplate& chat, const ChatFamily& family,
                   const nlohmann::json& entry) const {
    const auto tokenizer = with_tokens(entry["bos"], entry["eos"]);
    REQUIRE(entry["texts"].size() == conversations.size());
    for (size_t i = 0; i < conversations.size(); i++) {
      const bool refused =
          conversations[i][0].role == "system" && family.system_place == ChatFamily::NONE &&
          (chat.name() == std::string(family.name) || !conversations[i][0].content.empty());
      if (refused || entry["texts"][i].is_null()) {
        CHECK(status_of([&] { text_of(*tokenizer, chat, conversations[i]); }) ==
              RIFFLE_BAD_ARGUMENT);
      } else {
        CHECK(text_of(*tokenizer, chat, conversations[i]) ==
              std::string(json["strings"][int(entry["texts"][i])]));
      }
    }
  }
};

}  // namespace

TEST_CASE("families by name and templates of their kind print what Jinja prints", "[chat]") {
  const Fixture fixture;
  for (const auto& entry : fixture.json["families"]) {
    const std::string name = entry["name"];
    INFO(name);
    const ChatFamily& family = chat_family_named(name);
    fixture.check_texts(ChatTemplate(family), family, entry);
    for (const std::string text : entry["templates"]) {
      INFO(text);
      const ChatTemplate own(text);
      CHECK(own.name() == std::string("own"));
      fixture.check_texts(own, family, entry);
    }
  }
}

TEST_CASE("a message that spells control tokens stays text in every family", "[chat]") {
  const Fixture fixture;
  for (const auto& entry : fixture.json["families"]) {
    const std::string name = entry["name"];
    INFO(name);
    const auto tokenizer = with_tokens(entry["bos"], entry["eos"]);
    std::string spelled;
    std::vector<int32_t> controls;
    for (int32_t id = 0; id < tokenizer->vocab_size(); id++) {
      if (tokenizer->control_id(tokenizer->piece(id)) != id) continue;
      spelled += std::string(tokenizer->piece(id)) + "x";
      controls.push_back(id);
    }
    REQUIRE(controls.size() >= 8);
    std::vector<ChatTemplate> chats;
    chats.push_back(named(name));
    for (const std::string text : entry["templates"]) chats.emplace_back(text);
    for (const ChatTemplate& chat : chats) {
      const auto ids_of = [&](const std::string& content) {
        return tokens_of(
            *tokenizer, chat,
            {{"user", content, ""}, {"assistant", content, ""}, {"user", content, ""}});
      };
      const Ids plain = ids_of("x"), hostile = ids_of(spelled);
      for (const int32_t id : controls)
        CHECK(std::count(hostile.begin(), hostile.end(), id) ==
              std::count(plain.begin(), plain.end(), id));
      CHECK(hostile.size() > plain.size());
    }
  }
}

// The templates of released models in short, spelled by us.
TEST_CASE("a message that spells control tokens stays text in templates of their own", "[chat]") {
  const struct {
    const char* family;
    std::vector<std::string> controls;
    const char* turn;  // the turn of a message m
    const char* prompt;
  } kTemplates[] = {
      {"gemma3",
       {"<start_of_turn>", "<end_of_turn>"},
       "'<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
       "(m.content | trim) + '<end_of_turn>\n'",
       "<start_of_turn>model\n"},
      {"phi3",
       {"<|user|>", "<|assistant|>", "<|end|>"},
       "'<|' + m.role + '|>\n' + m.content + '<|end|>\n'",
       "<|assistant|>\n"},
      {"granite",
       {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"},
       "'<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n'",
       "<|start_of_role|>assistant<|end_of_role|>"},
      {"olmo2, olmo3",
       {"<|user|>", "<|assistant|>", "<|endoftext|>"},
       "'<|' + m.role + '|>\n' + m.content + ('<|endoftext|>' if m.role == 'assistant' else '\n')",
       "<|assistant|>\n"},
      {"exaone4",
       {"[|user|]", "[|assistant|]", "[|endofturn|]"},
       "'[|' + m.role + '|]\n' + m.content + '[|endofturn|]\n'",
       "[|assistant|]\n"},
      {"qwen3, qwen3moe, smollm3",
       {"<|im_start|>", "<|im_end|>", "<think>", "</think>"},
       "'<|im_start|>' + m.role + '\n' + ('<think>\n\n</think>\n' if m.role == 'assistant' else "
       "'') + m.content + '<|im_end|>\n'",
       "<|im_start|>assistant\n<think>\n"},
      {"mistral3",
       {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
       "m.content + '</s>' if m.role == 'assistant' else '[SYSTEM_PROMPT]s[/SYSTEM_PROMPT]' + "
       "m.content",
       ""},
      {"gpt-oss",
       {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"},
       "'<|start|>' + m.role + ('<|channel|>final' if m.role == 'assistant' else '') + "
       "'<|message|>' + m.content + '<|end|>'",
       "<|start|>assistant"},
      {"muse-glimmer",
       {"<|start|>", "<|message|>", "<|eom|>", "<|eot|>"},
       "'<|start|>' + m.role + (' to=user' if m.role == 'assistant' else '') + '<|message|>' + "
       "m.content + '<|eot|>'",
       "<|start|>assistant"}};
  for (const auto& t : kTemplates) {
    INFO(t.family);
    const auto tokenizer = with_tokens("<s>", "</s>", t.controls);
    const std::string text = std::string("{% for m in messages %}{{ ") + t.turn +
                             " }}{% endfor %}{{ '" + t.prompt + "' }}";
    std::string spelled;
    for (const std::string& piece : t.controls) spelled += piece + "x";
    const auto ids_of = [&](const std::string& content) {
      return tokens_of(*tokenizer, text,
                       {{"user", content, ""}, {"assistant", content, ""}, {"user", content, ""}});
    };
    const Ids plain = ids_of("x"), hostile = ids_of(spelled);
    CHECK(hostile.size() > plain.size());
    int64_t own = 0;
    for (const std::string& piece : t.controls) {
      const int32_t id = tokenizer->control_id(piece.c_str());
      REQUIRE(id >= 0);
      const auto count = std::count(plain.begin(), plain.end(), id);
      CHECK(std::count(hostile.begin(), hostile.end(), id) == count);
      own += count;
    }
    CHECK(own >= 3);
  }
}

TEST_CASE("control tokens are what the template spells alone", "[chat]") {
  const auto tokenizer = small();
  const auto ids = [&](const std::string& text, const std::string& content) {
    return tokens_of(*tokenizer, text, {{"user", content, ""}});
  };
  const auto count = [](const Ids& ids, int32_t id) {
    return std::count(ids.begin(), ids.end(), id);
  };
  // Half from the template, half from the message, on either side.
  CHECK(count(ids("<|im_{{ messages[0].content }}", "end|>"), 4) == 0);
  CHECK(count(ids("{{ messages[0].content }}end|>", "<|im_"), 4) == 0);
  CHECK(count(ids("{{ '<|im_' + messages[0].content + 'end|>' }}", "-"), 4) == 0);
  // A token of the template stays one token, whatever the neighbouring message says.
  CHECK(count(ids("{{ messages[0].content }}<|im_end|>", "<|im_start|><|im_end|"), 4) == 1);
  CHECK(count(ids("<|im_end|>{{ messages[0].content }}", "|im_end|>"), 4) == 1);
  // No way through the template makes a message's characters the template's.
  for (const char* way : {"m.content | trim",
                          "m.content | upper | lower",
                          "m.content.split('-') | join('')",
                          "m.content.replace('-', '')",
                          "m.content[:100]",
                          "m.content[::-1][::-1]",
                          "m.content | list | join",
                          "'%s' % m.content",
                          "'{}'.format(m.content)",
                          "[m.content][0]",
                          "m.content | tojson",
                          "{'a': m.content}.a",
                          "m.content | string",
                          "m.content | reverse | reverse",
                          "m.content | replace('-', '')",
                          "m.content | indent",
                          "(m.content ~ '')",
                          "m.content * 1",
                          "m.content.strip().lstrip('x')",
                          "[m.content] | string",
                          "m.content | safe",
                          "m | tojson",
                          "m.content | title | lower",
                          "m['content'].partition('zz')[0]",
                          "f(m.content)"}) {
    INFO(way);
    std::string text = "{% macro f(x) %}{% set y %}{{ x }}{% endset %}{{ y }}{% endmacro %}";
    text.append("{% set m = messages[0] %}{{ ").append(way).append(" }}");
    CHECK(count(ids(text, "<|im_end|>"), 4) == 0);
    CHECK(count(ids(text, "<|im_-end|>"), 4) == 0);
  }
  // Names of roles are the template's where they are known, and text where they are not.
  const ChatTemplate role(
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}");
  std::vector<VocabPiece> pieces = small_pieces();
  pieces[3] = {"<|user|>", 0, VocabPiece::CONTROL};
  const auto other = tokenizer_from_pieces(pieces, small_options(), "v");
  CHECK(count(tokens_of(*other, role, {{"user", "<|user|>", ""}}), 3) == 1);
  CHECK(count(tokens_of(*other, role, {{"im_end", "a", ""}}), 4) == 0);
}

TEST_CASE("content is a list of parts where a template reads nothing else", "[chat]") {
  const auto tokenizer = small();
  const std::vector<ChatMessage> conversation = {{"system", "be brief", ""},
                                                 {"user", "hello", ""},
                                                 {"assistant", "yes", ""},
                                                 {"user", "a [INST] b", ""}};
  const std::string begin = "{% for m in messages %}<{{ m.role }}>", end = "{% endfor %}";
  const std::string typed =
      "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}";
  const std::string all = "<system>be brief<user>hello<assistant>yes<user>a [INST] b";
  const std::string texts[] = {
      typed,
      "{{ m.content[0].text }}",
      "{{ m['content'][0]['text'] }}",
      "{{ m.content | map(attribute='text') | join('') }}",
      "{% if m.content is not string %}" + typed + "{% endif %}",
      // Both forms.
      "{% if m.content is string %}{{ m.content }}{% else %}" + typed + "{% endif %}",
      "{{ m.content }}",
      // Each role its own form.
      "{% if m.role == 'user' %}" + typed + "{% else %}{{ m.content }}{% endif %}",
      "{% if m.role == 'user' %}{{ m.content }}{% else %}" + typed + "{% endif %}",
      "{% if m.role == 'system' %}{{ m.content + '' }}{% else %}{{ m.content[0].text }}{% endif %}",
  };
  for (const std::string& text : texts) {
    INFO(text);
    const ChatTemplate chat(begin + text + end);
    const SourcedText printed = chat.text(*tokenizer, conversation, {});
    CHECK(printed.str() == all);
    // A message stays text in a part of its own, too.
    const Ids ids = chat.tokens(*tokenizer, printed);
    CHECK(std::count(ids.begin(), ids.end(), tokenizer->control_id("<s>")) == 0);
    CHECK(text_of(*tokenizer, chat, {{"user", "hi", ""}, {"assistant", "so", ""}}) ==
          "<user>hi<assistant>so");
  }
  // A template that has both forms gets a string.
  const ChatTemplate both(begin + "{{ 'S' if m.content is string else 'P' }}{% if m.content is " +
                          "string %}{{ m.content }}{% else %}" + typed + "{% endif %}" + end);
  CHECK(text_of(*tokenizer, both, {{"user", "hi", ""}}) == "<user>Shi");
  // A template that prints neither form is refused as before.
  std::string said;
  CHECK(status_of(
            [&] {
              text_of(*tokenizer, ChatTemplate(begin + end), {{"user", "hi", ""}});
            },
            &said) == RIFFLE_BAD_ARGUMENT);
  CHECK_THAT(said, Catch::Contains("chat template does not print"));
}

TEST_CASE("reasoning effort: a template's variable, which it may have a default for", "[chat]") {
  const auto tokenizer = small();
  const ChatTemplate chat(  // a macro, as gpt-oss has it
      "{%- macro system() -%}{%- if reasoning_effort is not defined %}"
      "{%- set reasoning_effort = 'medium' %}{%- endif %}"
      "{{- 'Reasoning: ' + reasoning_effort }}{%- endmacro -%}"
      "{{- system() }}{% for m in messages %}|{{ m.content }}{% endfor %}");
  CHECK(chat.knows_effort());
  CHECK_FALSE(chat.knows_thinking());
  CHECK_FALSE(ChatTemplate(kThinker).knows_effort());
  const std::vector<ChatMessage> one = {{"user", "q", ""}};
  for (const std::string effort : {"", "low", "high"}) {
    const std::string said = effort.empty() ? "medium" : effort;
    CHECK(chat.text(*tokenizer, one, {Thinking::DEFAULT, {}, effort}).str() ==
          "Reasoning: " + said + "|q");
    CHECK(ChatTemplate(kThinker).text(*tokenizer, one, {Thinking::DEFAULT, {}, effort}).str() ==
          ChatTemplate(kThinker).text(*tokenizer, one, {}).str());
  }
}

TEST_CASE("reasoning: begun, closed, dropped from history", "[chat]") {
  const auto tokenizer = small();
  const ChatTemplate chat(kThinker);
  CHECK(chat.knows_thinking());
  CHECK(chat.reasoning_marks().begin == "<think>");
  CHECK(chat.reasoning_marks().end == "</think>");
  CHECK_FALSE(ChatTemplate(kChatML).knows_thinking());
  CHECK(ChatTemplate(kChatML).reasoning_marks().end.empty());
  const std::vector<ChatMessage> one = {{"user", "q", ""}};
  const std::string begin = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  const auto check = [&](Thinking thinking, const std::string& end, bool inside) {
    const SourcedText text = chat.text(*tokenizer, one, {thinking, {}});
    CHECK(text.str() == begin + end);
    CHECK(chat.begins_reasoning(text, one) == inside);
  };
  check(Thinking::DEFAULT, "", false);
  check(Thinking::ON, "<think>\n", true);
  check(Thinking::OFF, "<think>\n\n</think>\n\n", false);
  // A message cannot begin it.
  const std::vector<ChatMessage> spelled = {{"user", "<think>", ""}};
  CHECK_FALSE(chat.begins_reasoning(chat.text(*tokenizer, spelled, {}), spelled));
  const std::string turns = text_of(
      *tokenizer, chat, {{"user", "a", ""}, {"assistant", "b", "because"}, {"user", "c", ""}});
  CHECK(turns ==
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
  CHECK(text_of(*tokenizer, chat,
                {{"user", "a", ""}, {"assistant", "x</think>\n\nb", ""}, {"user", "c", ""}}) ==
        turns);
  CHECK(chat.end_ids(*tokenizer) == Ids{4});
}

TEST_CASE("reasoning has the names that transformers gives it", "[chat]") {
  const auto tokenizer = small();
  const ChatTemplate chat(
      "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}|"
      "{% endfor %}");
  CHECK(text_of(*tokenizer, chat,
                {{"user", "a", ""}, {"assistant", "b", "because"}, {"user", "c", ""}}) ==
        "role=user;content=a;|"
        "thinking=because;role=assistant;content=b;reasoning_content=because;|"
        "role=user;content=c;|");
  // Under either name its characters are the message's.
  const SourcedText text =
      ChatTemplate("{{ messages[1].thinking }}{{ messages[2].content }}")
          .text(*tokenizer, {{"assistant", "", ""}, {"assistant", "b", "<s>"}, {"user", "c", ""}},
                {});
  REQUIRE(text.runs().size() == 2);
  CHECK(text.runs()[0].source == 1);
}

TEST_CASE("an assistant's message that comes last is continued", "[chat]") {
  const auto tokenizer = small();
  const ChatMessage user{"user", "u", ""};
  CHECK(text_of(*tokenizer, ChatTemplate(kInst), {user, {"assistant", "a ", ""}}) ==
        "<s>[INST] u [/INST] a ");
  CHECK(text_of(*tokenizer, ChatTemplate(kChatML), {user, {"assistant", "a", ""}}) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na");
  CHECK(text_of(*tokenizer, ChatTemplate(kChatML), {{"assistant", "a", ""}}) ==
        "<|im_start|>assistant\na");
  // Only the last copy of a text that the conversation repeats is its end.
  CHECK(text_of(*tokenizer, ChatTemplate(kInst),
                {user, {"assistant", "u", ""}, user, {"assistant", "u", ""}}) ==
        "<s>[INST] u [/INST] u</s><s>[INST] u [/INST] u");
  for (const ChatTemplate& chat : {ChatTemplate(kInst), ChatTemplate(kChatML), named("llama2")})
    CHECK(text_of(*tokenizer, chat, {user, {"assistant", " ", ""}}) ==
          text_of(*tokenizer, chat, {user}));
  // Riffle's own formats.
  const auto all = with_tokens("<s>", "</s>");
  CHECK(text_of(*all, named("chatml"), {user, {"assistant", "a", ""}}) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na");
  CHECK(
      text_of(*all, named("mistral-v0.3"), {{"system", "s", ""}, user, {"assistant", " a ", ""}}) ==
      "<s>[INST] s\n\nu[/INST] a");
  // Reasoning goes on inside of reasoning; content is never inside of it.
  const ChatTemplate thinker(kThinker);
  const auto ends = [&](const ChatMessage& last, Thinking thinking, const std::string& end,
                        bool inside) {
    const std::vector<ChatMessage> messages = {user, last};
    const SourcedText text = thinker.text(*tokenizer, messages, {thinking, {}});
    CHECK(text.str() == "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n" + end);
    CHECK(thinker.begins_reasoning(text, messages) == inside);
  };
  ends({"assistant", "b", ""}, Thinking::ON, "b", false);
  ends({"assistant", "b", "why"}, Thinking::ON, "<think>\nwhy\n</think>\n\nb", false);
  ends({"assistant", "", "why"}, Thinking::ON, "<think>\nwhy", true);
  ends({"assistant", "<think>\nwhy", ""}, Thinking::ON, "<think>\nwhy", true);
  // A template that refuses to end with an assistant: its content follows the generation prompt.
  const std::string strict = std::string("{% if messages[-1].role == 'assistant' %}") +
                             "{{ raise_exception('no user message') }}{% endif %}" + kChatML;
  CHECK(text_of(*tokenizer, ChatTemplate(strict), {user, {"assistant", "a", ""}}) ==
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na");
  const std::string mute =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
  CHECK(text_of(*tokenizer, ChatTemplate(mute + "{% if add_generation_prompt %}:{% endif %}"),
                {user, {"assistant", "a", ""}}) == "u:a");
  std::string said;
  CHECK(status_of(
            [&] {
              text_of(*tokenizer,
                      ChatTemplate(mute + "{% if add_generation_prompt %}<think>{% endif %}"
                                          "{# </think> #}"),
                      {user, {"assistant", "a", ""}});
            },
            &said) == RIFFLE_BAD_ARGUMENT);
  CHECK(said.find("cannot continue an answer") != std::string::npos);
}

// gpt-oss's format, as far as it matters here.
const char* const kChannels =
    "{%- for m in messages %}\n"
    "  {%- if m.role == 'assistant' %}\n"
    "    {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}\n"
    "  {%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}";

TEST_CASE("reasoning in a channel of its own", "[chat]") {
  const auto tokenizer = small();
  const ChatTemplate chat(kChannels);
  CHECK(chat.reasoning_marks().begin == "<|channel|>analysis<|message|>");
  CHECK(chat.reasoning_marks().end == "<|end|><|start|>assistant<|channel|>final<|message|>");
  const std::vector<ChatMessage> turns = {
      {"user", "a", ""}, {"assistant", "b", "because"}, {"user", "c", ""}};
  const SourcedText text = chat.text(*tokenizer, turns, {});
  CHECK(text.str() ==
        "<|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|end|>"
        "<|start|>user<|message|>c<|end|><|start|>assistant");
  CHECK_FALSE(chat.begins_reasoning(text, turns));
  // The token that ends the reasoning does not end the answer; other templates have no such token.
  std::vector<VocabPiece> pieces = small_pieces();
  pieces[3].text = "<|end|>";
  const auto channels = tokenizer_from_pieces(pieces, small_options(), "v");
  CHECK(chat.end_ids(*channels) == Ids{3});
  CHECK(chat.reasoning_end_id(*channels) == 3);
  CHECK(chat.reasoning_end_id(*tokenizer) == -1);
  CHECK(ChatTemplate(kThinker).reasoning_end_id(*tokenizer) == -1);
  CHECK(ChatTemplate(kChatML).reasoning_end_id(*tokenizer) == -1);
}

TEST_CASE("the token behind an answer ends answers", "[chat]") {
  const auto tokenizer = small();
  CHECK(ChatTemplate(kChatML).end_ids(*tokenizer) == Ids{4});
  CHECK(ChatTemplate(kInst).end_ids(*tokenizer) == Ids{2});
  CHECK(ChatTemplate("{{ messages[0].content }}").end_ids(*tokenizer).empty());
  CHECK(ChatTemplate("{{ raise_exception('no') }}").end_ids(*tokenizer).empty());
  CHECK(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
            .end_ids(*tokenizer)
            .empty());
  CHECK(ChatTemplate("{% for m in messages %}{{ m.content }} \n <|im_end|>{% endfor %}")
            .end_ids(*tokenizer) == Ids{4});
  CHECK(named("qwen2").end_ids(*tokenizer) == Ids{4});
  CHECK(named("llama3").end_ids(*tokenizer).empty());
  CHECK(named("vicuna").end_ids(*tokenizer).empty());
}

TEST_CASE("today's date is the caller's, or the one that the template falls back to", "[chat]") {
  const auto tokenizer = small();
  const ChatTemplate guarded(
      "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}"
      "{{ messages[0].content }}");
  const ChatTemplate bare(
      "{{ strftime_now('%d %b %Y, %A, %-d.%-m.%y %B %j %H:%M') }}{{ messages[0].content }}");
  ChatOptions options;
  std::string said;
  CHECK(status_of(
            [&] {
              text_of(*tokenizer, bare, {{"user", "x", ""}});
            },
            &said) == RIFFLE_UNSUPPORTED);
  CHECK(said.find("date") != std::string::npos);
  TemplateDate date;
  REQUIRE(read_date("2026-11-23", &date));
  options.date = date;
  CHECK(text_of(*tokenizer, guarded, {{"user", "x", ""}}, options) == "26 Jul 2024x");
  CHECK(text_of(*tokenizer, bare, {{"user", "x", ""}}, options) ==
        "23 Nov 2026, Monday, 23.11.26 November 327 00:00x");
  for (const char* bad : {"", "2026-11-3", "2026-13-01", "2026-02-29", "2026-00-10", "20a6-01-01",
                          "2026-01-32", "2026/01/01", "0000-01-01"})
    CHECK_FALSE(read_date(bad, &date));
  CHECK(read_date("2024-02-29", &date));
  CHECK(read_date("2024-12-31", &date));
}

TEST_CASE("formats by name", "[chat]") {
  std::string said;
  CHECK(status_of([&] { chat_family_named("llama9"); }, &said) == RIFFLE_BAD_ARGUMENT);
  CHECK(said.find("'llama9'") != std::string::npos);
  for (const ChatFamily& family : chat_families()) {
    CHECK(said.find(family.name) != std::string::npos);
    CHECK(&chat_family_named(family.name) == &family);
  }
  const auto tokenizer = small();
  const std::vector<ChatMessage> hello = {{"user", "hello</s>", ""}};
  // A mark that is no token of the vocabulary is an error if the format requires it, and else plain
  // text.
  CHECK(status_of([&] { tokens_of(*tokenizer, named("llama3"), hello); }, &said) ==
        RIFFLE_UNSUPPORTED);
  CHECK(said.find("<|start_header_id|>") != std::string::npos);
  CHECK(tokens_of(*tokenizer, named("zephyr"), hello) == [&] {
    Ids ids = tokenizer->encode("<|user|>\nhello</s>", false, false);
    const Ids rest = tokenizer->encode("\n<|assistant|>\n", false, false);
    ids.push_back(2);
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }());
  std::vector<VocabPiece> pieces = small_pieces();
  pieces[3] = {"<|user|>", 0, VocabPiece::CONTROL};
  const auto other = tokenizer_from_pieces(pieces, small_options(), "v");
  const Ids ids = tokens_of(*other, named("zephyr"), {{"user", "<|user|>", ""}});
  CHECK(ids[0] == 3);
  CHECK(std::count(ids.begin(), ids.end(), 3) == 1);
}

TEST_CASE("a format's tokens where the vocabulary has no beginning or end of sequence", "[chat]") {
  VocabOptions options = small_options();
  options.bos_id = options.eos_id = -1;
  const auto tokenizer = tokenizer_from_pieces(small_pieces(), options, "v");
  const std::vector<ChatMessage> one = {{"user", "a", ""}};
  std::string said;
  CHECK(status_of([&] { tokens_of(*tokenizer, named("vicuna"), one); }, &said) ==
        RIFFLE_UNSUPPORTED);
  CHECK(said.find("beginning-of-sequence") != std::string::npos);
  CHECK(status_of([&] { tokens_of(*tokenizer, named("zephyr"), one); }, &said) ==
        RIFFLE_UNSUPPORTED);
  CHECK(said.find("end-of-sequence") != std::string::npos);
  // Jinja prints nothing for a token that is not defined.
  CHECK(text_of(*tokenizer, ChatTemplate(std::string("{{ bos_token }}") + kChatML), one) ==
        text_of(*tokenizer, ChatTemplate(kChatML), one));
}

TEST_CASE("conversations that cannot be are errors that name the message", "[chat]") {
  const auto tokenizer = small();
  const auto refused = [&](const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                           const char* says) {
    std::string said;
    CHECK(status_of([&] { tokens_of(*tokenizer, chat, messages); }, &said) == RIFFLE_BAD_ARGUMENT);
    INFO(said);
    CHECK(said.find(says) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
  };
  const ChatMessage user{"user", "u", ""}, assistant{"assistant", "a", ""},
      system{"system", "s", ""};
  for (const ChatTemplate& chat : {ChatTemplate(kInst), ChatTemplate(kChatML), named("llama2")}) {
    refused(chat, {}, "without messages");
    refused(chat, {{"assistant", " ", ""}}, "only empty messages of the assistant");
  }
  for (const char* name : {"inst", "llama2", "chatml"}) {
    refused(named(name), {assistant, user}, "messages[0] has role 'assistant', expected 'user'");
    refused(named(name), {user, user}, "messages[1] has role 'user', expected 'assistant'");
    refused(named(name), {user, assistant, {"tool", "c", ""}}, "'tool'");
  }
  refused(named("inst"), {system, user}, "'system'");
  refused(named("chatml"), {system}, "last message");
  // An own template says what it takes; what it drops without a word is an error.
  CHECK(text_of(*tokenizer, ChatTemplate(kChatML), {user, user}).size() > 20);
  refused(ChatTemplate(kInst), {system, user}, "does not print system messages");
  refused(ChatTemplate("{{ messages[0].content }}"), {user, assistant, user}, "messages[2]");
  CHECK(text_of(*tokenizer, ChatTemplate(kInst), {{"system", " \n", ""}, user}) ==
        "<s>[INST] u [/INST]");
  refused(ChatTemplate("{{ raise_exception('Roles must\nalternate, ' ~ messages[0].content) }}"),
          {user}, "refuses the conversation: Roles must alternate, u");
  std::string said;
  CHECK(status_of(
            [&] {
              tokens_of(*tokenizer, kInst, {{"user", "ab\xFF", ""}});
            },
            &said) == RIFFLE_BAD_TEXT);
  CHECK(said == "messages[0].content is not UTF-8: invalid sequence at byte 2");
  CHECK(status_of([&] {
          tokens_of(*tokenizer, kInst, {user, {"assistant", "a", "\xC0"}, user});
        }) == RIFFLE_BAD_TEXT);
  CHECK(status_of(
            [&] {
              tokens_of(*tokenizer, kInst, {{"us\xFF", "a", ""}});
            },
            &said) == RIFFLE_BAD_TEXT);
  CHECK(said == "messages[0].role is not UTF-8: invalid sequence at byte 2");
}
