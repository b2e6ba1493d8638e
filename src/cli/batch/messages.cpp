#include "cli/batch/messages.h"

#include <optional>

namespace riffle::cli {
namespace {

constexpr FieldUse kMessageFields[] = {
    {"role", Use::HONOURED},
    {"content", Use::HONOURED},
    {"reasoning_content", Use::HONOURED},
    {"reasoning", Use::HONOURED},  // vLLM's name for reasoning_content
    {"name", Use::IGNORED},        // chat templates do not print it
    // Fields of answers that come back as messages.
    {"refusal", Use::REFUSED},
    {"audio", Use::REFUSED},
    {"annotations", Use::NO_OP, "[[]]"},
    {"tool_calls", Use::NO_OP, "[[]]"},
    {"function_call", Use::REFUSED},
};

constexpr FieldUse kPartFields[] = {
    {"type", Use::HONOURED},     {"text", Use::HONOURED},       {"annotations", Use::NO_OP, "[[]]"},
    {"image_url", Use::REFUSED}, {"input_audio", Use::REFUSED}, {"audio_url", Use::REFUSED},
    {"video_url", Use::REFUSED}, {"file", Use::REFUSED},        {"refusal", Use::REFUSED},
};

std::string parse_part(const Fields& f, const std::string& at, const JsonIn& part) {
  if (!part.is_object()) f.wrong(at, part, "an object");
  std::optional<std::string> text;
  bool type = false;
  const auto kind = part.find("type");
  if (kind != part.end() && kind->is_string() && *kind != "text")
    f.fail("bad_request", "field " + at + ".type is " + shown(kind->get<std::string>()) +
                              ", which is not supported; expected \"text\"");
  for (const auto& [key, value] : part.items()) {
    if (!f.is_read(field_named(kPartFields, key), at + ".", "messages.content.", key, value))
      continue;
    if (key == "text") {
      text = f.plain_text(at + ".text", value);
    } else {
      (void)f.text(at + ".type", value);
      type = true;
    }
  }
  if (!type) f.fail("bad_request", "field " + at + ".type is missing");
  if (!text) f.fail("bad_request", "field " + at + ".text is missing");
  return *text;
}

// Reads a string, or parts of type text, each of which becomes a line.
std::string parse_content(const Fields& f, const std::string& at, const JsonIn& value) {
  if (value.is_string()) return f.plain_text(at, value);
  if (!value.is_array()) f.wrong(at, value, "a string or a list of parts of type text");
  if (value.empty()) f.fail("bad_request", "field " + at + " is empty, expected text");
  std::string out;
  for (size_t i = 0; i < value.size(); ++i)
    out += (i > 0 ? "\n" : "") + parse_part(f, at + "[" + std::to_string(i) + "]", value[i]);
  return out;
}

Message parse_message(const Fields& f, const std::string& at, const JsonIn& object) {
  if (!object.is_object()) f.wrong(at, object, "an object");
  Message message;
  bool role = false, content = false;
  for (const auto& [key, value] : object.items()) {
    if (!f.is_read(field_named(kMessageFields, key), at + ".", "messages.", key, value)) continue;
    const std::string field = at + "." + key;
    if (key == "role") {
      message.role = f.text(field, value);
      // Chat templates have OpenAI's developer messages as system messages.
      if (message.role == "developer") message.role = "system";
      if (message.role != "system" && message.role != "user" && message.role != "assistant")
        f.wrong(field, value, "system, developer, user or assistant");
      role = true;
    } else if (key == "content") {
      message.content = parse_content(f, field, value);
      content = true;
    } else if (!value.is_null()) {
      message.reasoning = f.plain_text(field, value);
    }
  }
  if (!role) f.fail("bad_request", "field " + at + ".role is missing");
  if (!content) f.fail("bad_request", "field " + at + ".content is missing");
  if (!message.reasoning.empty() && message.role != "assistant")
    f.fail("bad_request",
           "field " + at + ".reasoning_content is given, but the role is not assistant");
  return message;
}

}  // namespace

std::vector<Message> parse_messages(const Fields& f, const std::string& field, const JsonIn& list) {
  if (!list.is_array()) f.wrong(field, list, "an array");
  if (list.empty()) f.fail("empty_prompt", "field " + field + " is empty, expected messages");
  std::vector<Message> out;
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(parse_message(f, field + "[" + std::to_string(i) + "]", list[i]));
  return out;
}

}  // namespace riffle::cli
