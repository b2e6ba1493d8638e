#include "chat/chat_template.h"

#include <algorithm>

#include "chat/python_text.h"
#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle {
namespace {

// Tags that known models write around their reasoning, and the part that their templates contain:
// some templates cut reasoning off at its end and never contain the begin tag.
constexpr struct {
  const char *begin, *end, *spelled;
} kMarks[] = {
    {"<think>", "</think>", "</think>"},
    {"[THINK]", "[/THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>", "</seed:think>"},
    // Gemma 4 puts its reasoning into a channel named thought.
    {"<|channel>thought\n", "<channel|>", "<|channel>thought\\n"},
    {"<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"},
    // gpt-oss: every part of an answer is a message of its own with the name of a channel.
    {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>",
     "<|channel|>final<|message|>"},
    // Muse Glimmer: a recipient in place of a channel. Prompts end with "<|start|>assistant".
    {" to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>",
     "<|start|>assistant to=self<|message|>"},
};

// Roles whose names templates print as parts of control tokens ('<|' + role + '|>'). Any other name
// counts as text of its message.
constexpr const char* kRoles[] = {"system",    "user",     "assistant", "tool",
                                  "developer", "function", "ipython"};

std::string spelling(const Tokenizer& tokenizer, int32_t id) {
  const char* piece = id < 0 ? nullptr : tokenizer.piece(id);
  return piece ? piece : "";
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    out.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out;
}

void check_messages(const std::vector<ChatMessage>& messages) {
  if (messages.empty())
    fail(RIFFLE_BAD_ARGUMENT, "found a conversation without messages, expected one or more");
  for (size_t i = 0; i < messages.size(); i++) {
    const auto check = [i](const std::string& text, const char* member) {
      if (const int64_t bad = utf8_error(text); bad >= 0)
        fail(RIFFLE_BAD_TEXT, "messages[%zu].%s is not UTF-8: invalid sequence at byte %lld", i,
             member, static_cast<long long>(bad));
    };
    check(messages[i].role, "role");
    check(messages[i].content, "content");
    check(messages[i].reasoning, "reasoning_content");
  }
}

bool is_blank(const ChatMessage& message) {
  return strip_left(message.content).empty() && strip_left(message.reasoning).empty() &&
         message.calls.empty();
}

// Drops blank messages of an assistant at the end: continuing one means beginning an answer.
std::vector<ChatMessage> without_blank_end(std::vector<ChatMessage> messages) {
  while (!messages.empty() && messages.back().role == "assistant" && is_blank(messages.back()))
    messages.pop_back();
  if (messages.empty())
    fail(RIFFLE_BAD_ARGUMENT,
         "found only empty messages of the assistant, expected a message of another role before "
         "them");
  return messages;
}

// Returns the place of the last character of a message, plus 1; 0 if the text has none.
size_t end_of(const SourcedText& text, size_t message) {
  size_t end = 0;
  for (const SourcedText::Run& run : text.runs()) {
    if (run.source == static_cast<int>(message)) end = run.end;
  }
  return end;
}

Value value_of(const Json& json, int source) {
  if (json.is_null()) return Value::none();
  if (json.is_boolean()) return Value::boolean(json.boolean());
  if (json.is_real() || (json.is_unsigned() && json.whole() > INT64_MAX))
    return Value::real(json.number());
  if (json.is_integer()) return Value::integer(json.integer());
  if (json.is_string()) return Value::string(SourcedText(json.string(), source));
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& one : json.elements()) items.push_back(value_of(one, source));
    return Value::list(std::move(items));
  }
  Entries entries;
  for (const Json::Member& m : json.members())
    entries.emplace_back(Value::string(SourcedText(m.key, source)), value_of(m.value, source));
  return Value::dict(std::move(entries));
}

// Returns a value of the conversation, which is made before a rendering can be stopped.
Value given(const Json& json, int source, const char* what) {
  try {
    return value_of(json, source);
  } catch (const TemplateStop&) {
    fail(RIFFLE_UNSUPPORTED,
         "%s: found values nested deeper than %d levels, expected at most that many", what,
         kDeepestValue);
  }
}

size_t bytes_of(const ChatMessage& message) {
  size_t bytes = message.content.size() + message.reasoning.size();
  for (const ChatCall& call : message.calls)
    bytes += call.name.size() + call.id.size() + call.text.size();
  return bytes;
}

// Texts of users and of the system must reach the model: otherwise it answers another question.
void check_printed(const SourcedText& text, const std::vector<ChatMessage>& messages) {
  std::vector<bool> printed(messages.size());
  for (const SourcedText::Run& run : text.runs()) {
    if (run.source >= 0) printed[static_cast<size_t>(run.source)] = true;
  }
  for (size_t i = 0; i < messages.size(); i++) {
    if (printed[i] || messages[i].role == "assistant") continue;
    if (strip_left(messages[i].content).empty()) continue;
    fail(RIFFLE_BAD_ARGUMENT,
         "messages[%zu] has role '%.40s', but this model's chat template does not print %.40s "
         "messages here",
         i, messages[i].role.c_str(), messages[i].role.c_str());
  }
}

// Returns the first control piece that the family needs and the vocabulary lacks; "": none.
std::string missing_piece(const Tokenizer& tokenizer, const ChatFamily& family) {
  for (const std::string& piece : words(family.required))
    if (tokenizer.control_id(piece) < 0) return piece;
  return "";
}

}  // namespace

// Templates read reasoning as reasoning_content or, gpt-oss's, as thinking. transformers gives both
// names, in this order. Content may be a list of one text part. Programs that may also send images
// give it in this form.
Value ChatTemplate::message_value(const ChatMessage& message, int number) const {
  const bool known =
      std::find(std::begin(kRoles), std::end(kRoles), message.role) != std::end(kRoles);
  const auto text = [&](const std::string& s) { return Value::string(SourcedText(s, number)); };
  Entries entries;
  const auto add = [&](const char* name, Value value) {
    entries.emplace_back(Value::string(name), std::move(value));
  };
  if (!message.reasoning.empty()) add("thinking", text(message.reasoning));
  add("role", Value::string(SourcedText(message.role, known ? SourcedText::kTemplate : number)));
  if (!message.calls.empty() && message.content.empty() && !empty_content_)
    add("content", Value::none());
  else if (takes_parts(message.role))
    add("content", Value::list({Value::dict({{Value::string("type"), Value::string("text")},
                                             {Value::string("text"), text(message.content)}})}));
  else add("content", text(message.content));
  if (!message.reasoning.empty()) add("reasoning_content", text(message.reasoning));
  if (!message.calls.empty()) {
    std::vector<Value> calls;
    for (const ChatCall& call : message.calls) {
      const Value arguments = arguments_as_text_
                                  ? text(call.text)
                                  : given(call.arguments, number, "the arguments of a call");
      Value function = Value::dict(
          {{Value::string("name"), text(call.name)}, {Value::string("arguments"), arguments}});
      calls.push_back(Value::dict({{Value::string("id"), text(call.id)},
                                   {Value::string("type"), Value::string("function")},
                                   {Value::string("function"), std::move(function)}}));
    }
    add("tool_calls", Value::list(std::move(calls)));
  }
  if (!message.call_id.empty()) add("tool_call_id", text(message.call_id));
  if (!message.name.empty()) add("name", text(message.name));
  return Value::dict(std::move(entries));
}

ChatTemplate::ChatTemplate(std::string_view jinja)
    : jinja_(std::in_place, jinja), jinja_text_(jinja) {
  for (const auto& marks : kMarks) {
    if (marks_.end.empty() && jinja.find(marks.spelled) != jinja.npos)
      marks_ = {marks.begin, marks.end};
  }
  find_forms();
}

// A template that accepts strings gets strings, whatever else it accepts.
void ChatTemplate::find_forms() {
  const struct {
    const char* role;
    std::vector<ChatMessage> messages;
    int number;  // number of the message
  } trials[] = {{"user", {{"user", "u", ""}}, 0},
                {"system", {{"system", "s", ""}, {"user", "u", ""}}, 0},
                {"assistant", {{"user", "u", ""}, {"assistant", "a", ""}, {"user", "u", ""}}, 1}};
  const ChatOptions any_day{Thinking::DEFAULT, TemplateDate{2026, 1, 1}};
  for (const auto& trial : trials) {
    const auto prints = [&] {
      try {
        const SourcedText text = rendered({"<s>", "</s>"}, trial.messages, any_day, true);
        return end_of(text, static_cast<size_t>(trial.number)) > 0;
      } catch (const Error& e) {
        if (e.status() == RIFFLE_OUT_OF_MEMORY) throw;
        return false;
      }
    };
    if (prints()) continue;
    const std::vector<std::string> before = roles_of_parts_;
    roles_of_parts_.push_back(trial.role);
    if (!prints()) roles_of_parts_ = before;
  }
  if (jinja_text_.find("tool") != std::string::npos) find_call_forms();
}

// Templates take a call's arguments as an object, as transformers' documentation has them, or as
// JSON's text, as OpenAI has them. Printed as an object's repr they would be no JSON.
void ChatTemplate::find_call_forms() {
  const std::vector<Json> tools{parse_json(
      R"({"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object",)"
      R"("properties":{"kkk":{"type":"string","description":"e"}},"required":["kkk"]}}})",
      {.depth = 8, .values = 64})};
  const Json arguments = parse_json(R"({"kkk":"vvv"})", {.depth = 2, .values = 4});
  const ChatOptions any_day{Thinking::DEFAULT, TemplateDate{2026, 1, 1}, "", &tools};
  ChatMessage called{"assistant", "", "", {{"abcdefghi", "f", arguments, arguments.dump()}}};
  ChatMessage result{"tool", "t", "", {}, "abcdefghi", "f"};
  const auto printed = [&]() -> std::string {
    try {
      return rendered({"<s>", "</s>"}, {{"user", "u"}, called, result}, any_day, true).str();
    } catch (const Error& e) {
      if (e.status() == RIFFLE_OUT_OF_MEMORY) throw;
      return "";
    }
  };
  const auto right = [&] {
    const std::string text = printed();
    return text.find("vvv") != text.npos && text.find("{'kkk'") == text.npos &&
           text.find("None") == text.npos;
  };
  for (const bool empty : {false, true})
    for (const bool as_text : {false, true}) {
      empty_content_ = empty;
      arguments_as_text_ = as_text;
      if ((knows_calls_ = right())) return;
    }
  empty_content_ = arguments_as_text_ = false;
}

bool ChatTemplate::takes_parts(const std::string& role) const {
  const auto holds = [&](const char* name) {
    return std::find(roles_of_parts_.begin(), roles_of_parts_.end(), name) != roles_of_parts_.end();
  };
  return holds(role == "system" || role == "assistant" ? role.c_str() : "user");
}

SourcedText ChatTemplate::rendered(const SpecialTexts& special,
                                   const std::vector<ChatMessage>& messages,
                                   const ChatOptions& options, bool answer) const {
  TemplateInput input;
  std::vector<Value> values;
  for (const ChatMessage& message : messages) {
    input.bytes += bytes_of(message);
    values.push_back(message_value(message, static_cast<int>(values.size())));
  }
  Value tools = Value::none();
  if (options.tools && !options.tools->empty()) {
    std::vector<Value> list;
    for (const Json& tool : *options.tools) {
      input.bytes += tool.dump().size();
      list.push_back(given(tool, SourcedText::kTools, "tools"));
    }
    tools = Value::list(std::move(list));
  }
  auto& variables = input.variables;
  variables.emplace_back("messages", Value::list(std::move(values)));
  variables.emplace_back("add_generation_prompt", Value::boolean(answer));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", Value::none());
  if (options.thinking != Thinking::DEFAULT)
    variables.emplace_back("enable_thinking", Value::boolean(options.thinking == Thinking::ON));
  if (!options.reasoning_effort.empty())
    variables.emplace_back("reasoning_effort", Value::string(options.reasoning_effort));
  if (!special.bos.empty()) variables.emplace_back("bos_token", Value::string(special.bos));
  if (!special.eos.empty()) variables.emplace_back("eos_token", Value::string(special.eos));
  if (options.date) input.date = &*options.date;
  return jinja_->render(input);
}

SourcedText ChatTemplate::rendered(const Tokenizer& tokenizer,
                                   const std::vector<ChatMessage>& messages,
                                   const ChatOptions& options, bool answer) const {
  return rendered(
      {spelling(tokenizer, tokenizer.bos_id()), spelling(tokenizer, tokenizer.eos_id())}, messages,
      options, answer);
}

void ChatTemplate::check_vocabulary(const Tokenizer& tokenizer) const {
  const std::string missing = family_ ? missing_piece(tokenizer, *family_) : "";
  if (missing.empty()) return;
  std::string others;
  for (const ChatFamily& other : chat_families())
    if (missing_piece(tokenizer, other).empty())
      others += (others.empty() ? "" : ", ") + std::string(other.name);
  fail(
      RIFFLE_UNSUPPORTED,
      "`model.chat_template`: found %s, which needs the token %s, expected a template whose tokens "
      "the model has: %s",
      family_->name, missing.c_str(), others.c_str());
}

SourcedText ChatTemplate::text(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                               const ChatOptions& options) const {
  check_messages(messages);
  if (messages.back().role == "assistant" && is_blank(messages.back()))
    return text(tokenizer, without_blank_end(messages), options);
  const bool tools = options.tools && !options.tools->empty();
  const bool called = std::any_of(messages.begin(), messages.end(),
                                  [](const ChatMessage& m) { return !m.calls.empty(); });
  if (tools && !knows_tools()) throw Error(RIFFLE_UNSUPPORTED, kNoTools);
  if (called && !knows_calls_) throw Error(RIFFLE_UNSUPPORTED, kNoCalls);
  if (family_) {
    check_vocabulary(tokenizer);
    return family_text(*family_, spelling(tokenizer, tokenizer.bos_id()),
                       spelling(tokenizer, tokenizer.eos_id()), messages);
  }
  if (messages.back().role == "assistant") return continued(tokenizer, messages, options);
  SourcedText text = rendered(tokenizer, messages, options, true);
  check_printed(text, messages);
  return text;
}

// Does the same as apply_chat_template(continue_final_message=True): prints the conversation as if
// it were over, and cuts off the text that the template puts after the last message.
SourcedText ChatTemplate::continued(const Tokenizer& tokenizer,
                                    const std::vector<ChatMessage>& messages,
                                    const ChatOptions& options) const {
  const ChatMessage& last = messages.back();
  const size_t n_before = messages.size() - 1;
  try {
    const SourcedText whole = rendered(tokenizer, messages, options, false);
    if (const size_t end = end_of(whole, n_before)) {
      SourcedText text = whole.part(0, end);
      check_printed(text, messages);
      return text;
    }
  } catch (const Error& e) {
    if (e.status() != RIFFLE_BAD_ARGUMENT || n_before == 0) throw;
  }
  // The template cannot end with an assistant's message, so the content is put after the generation
  // prompt, where the model would have written it.
  const std::vector<ChatMessage> before(messages.begin(), messages.end() - 1);
  SourcedText text = this->text(tokenizer, before, options);
  const bool in_reasoning = begins_reasoning(text, before);
  const std::string& rest = in_reasoning ? last.reasoning : last.content;
  if (in_reasoning != strip_left(last.content).empty() || strip_left(rest).empty()) {
    fail(RIFFLE_BAD_ARGUMENT,
         "the last message has role 'assistant', expected another role: this model's chat template "
         "cannot continue an answer");
  }
  text.append(rest, static_cast<int>(n_before));
  return text;
}

std::vector<int32_t> ChatTemplate::tokens(const Tokenizer& tokenizer,
                                          const SourcedText& text) const {
  std::vector<TextSpan> written;
  size_t begin = 0;
  for (const SourcedText::Run& run : text.runs()) {
    if (run.source == SourcedText::kTemplate) written.push_back({begin, run.end});
    begin = run.end;
  }
  return tokenizer.encode(text.view(), false, written);
}

bool ChatTemplate::begins_reasoning(const SourcedText& text,
                                    const std::vector<ChatMessage>& messages) const {
  if (marks_.begin.empty()) return false;
  const bool open = !messages.empty() && messages.back().role == "assistant";
  const int continued = open ? static_cast<int>(messages.size()) - 1 : SourcedText::kTemplate;
  size_t from = 0, begin = 0;
  for (const SourcedText::Run& run : text.runs()) {
    if (run.source != SourcedText::kTemplate && run.source != continued) from = run.end;
  }
  const std::string_view after = text.view().substr(from);
  begin = after.rfind(marks_.begin);
  return begin != after.npos && after.find(marks_.end, begin) == after.npos;
}

int32_t ChatTemplate::reasoning_end_id(const Tokenizer& tokenizer) const {
  if (marks_.end.empty()) return -1;
  const std::vector<int32_t> ids = tokenizer.encode(marks_.end, false, true);
  return ids.empty() ? -1 : tokenizer.control_id(spelling(tokenizer, ids[0]));
}

std::vector<int32_t> ChatTemplate::end_ids(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  const auto add = [&](int32_t id) {
    if (id >= 0) ids.push_back(id);
  };
  if (family_) {
    for (const std::string& piece : words(family_->turn_end)) add(tokenizer.control_id(piece));
    return ids;
  }
  SourcedText text;
  try {
    text = rendered(tokenizer, {{"user", "u", ""}, {"assistant", "a", ""}}, {}, false);
  } catch (const Error&) {
    return ids;
  }
  size_t end = 0;
  for (const SourcedText::Run& run : text.runs()) {
    if (run.source == 1) end = run.end;
  }
  const std::string_view after = strip_left(text.view().substr(end));
  if (end == 0 || after.empty()) return ids;
  const std::vector<int32_t> next = tokenizer.encode(after, false, true);
  if (next.empty()) return ids;
  const std::string piece = spelling(tokenizer, next[0]);
  if (after.starts_with(piece)) add(tokenizer.control_id(piece));
  return ids;
}

}  // namespace riffle
