#include "requests/messages.h"

#include <optional>

#include "requests/tool_fields.h"

namespace riffle::requests {
namespace {

constexpr FieldUse kMessageFields[] = {
    {"role", Use::HONOURED},
    {"content", Use::HONOURED},
    {"reasoning_content", Use::HONOURED},
    {"reasoning", Use::HONOURED},  // vLLM's name for reasoning_content
    {"name", Use::IGNORED},        // chat templates do not print it, except a tool's
    {"tool_calls", Use::HONOURED},
    {"tool_call_id", Use::HONOURED},
    // Fields of answers that come back as messages.
    {"refusal", Use::REFUSED},
    {"audio", Use::REFUSED},
    {"annotations", Use::NO_OP, "[[]]"},
    {"function_call", Use::REFUSED},
};

constexpr FieldUse kPartFields[] = {
    {"type", Use::HONOURED},     {"text", Use::HONOURED},       {"annotations", Use::NO_OP, "[[]]"},
    {"image_url", Use::REFUSED}, {"input_audio", Use::REFUSED}, {"audio_url", Use::REFUSED},
    {"video_url", Use::REFUSED}, {"file", Use::REFUSED},        {"refusal", Use::REFUSED},
};

std::string parse_part(const Fields& f, const std::string& at, const Json& part) {
  if (!part.is_object()) f.wrong(at, part, "an object");
  std::optional<std::string> text;
  bool type = false;
  const Json* const kind = part.find("type");
  if (kind && kind->is_string() && !kind->equals("text"))
    f.fail(kUnsupportedValue, at + ".type",
           "field " + at + ".type is " + shown(kind->string()) +
               ", which is not supported; expected \"text\"");
  for (const Json::Member* const m : members_by_key(part)) {
    const auto& [key, value] = *m;
    if (!f.is_read(field_named(kPartFields, key), at + ".", "messages.content.", key, value))
      continue;
    if (key == "text") {
      text = f.plain_text(at + ".text", value);
    } else {
      (void)f.text(at + ".type", value);
      type = true;
    }
  }
  if (!type) f.missing(at + ".type");
  if (!text) f.missing(at + ".text");
  return *text;
}

// Reads a string, or parts of type text, each of which becomes a line.
std::string parse_content(const Fields& f, const std::string& at, const Json& value) {
  if (value.is_string()) return f.plain_text(at, value);
  if (!value.is_array()) f.wrong(at, value, "a string or a list of parts of type text");
  if (value.empty()) f.fail(kWrongValue, at, "field " + at + " is empty, expected text");
  std::string out;
  for (size_t i = 0; i < value.size(); ++i)
    out += (i > 0 ? "\n" : "") + parse_part(f, at + "[" + std::to_string(i) + "]", value[i]);
  return out;
}

ChatMessage parse_message(const Fields& f, const std::string& at, const Json& object) {
  if (!object.is_object()) f.wrong(at, object, "an object");
  ChatMessage message;
  bool role = false, content = false, empty = false;  // empty: the content is null
  for (const Json::Member* const m : members_by_key(object)) {
    const auto& [key, value] = *m;
    if (!f.is_read(field_named(kMessageFields, key), at + ".", "messages.", key, value)) continue;
    const std::string field = at + "." + key;
    if (key == "role") {
      message.role = f.text(field, value);
      // Chat templates have OpenAI's developer messages as system messages.
      if (message.role == "developer") message.role = "system";
      if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
          message.role != "tool")
        f.wrong(field, value, "system, developer, user, assistant or tool");
      role = true;
    } else if (key == "content") {
      content = content || !value.is_null();
      if (!value.is_null()) message.content = parse_content(f, field, value);
      empty = value.is_null();
    } else if (key == "tool_calls") {
      if (!value.is_null()) message.calls = parse_calls(f, field, value);
    } else if (key == "tool_call_id") {
      if (!value.is_null()) message.call_id = f.plain_text(field, value);
    } else if (!value.is_null()) {
      message.reasoning = f.plain_text(field, value);
    }
  }
  if (!role) f.missing(at + ".role");
  // A message with calls may have no content.
  if (message.calls.empty() && empty) (void)parse_content(f, at + ".content", Json());
  if (!content && message.calls.empty()) f.missing(at + ".content");
  const char* const only = !message.calls.empty() && message.role != "assistant" ? ".tool_calls"
                           : !message.call_id.empty() && message.role != "tool"  ? ".tool_call_id"
                                                                                 : nullptr;
  if (only)
    f.fail(kWrongValue, at + only,
           "field " + at + only + " is given with the role " + message.role +
               ", expected it with " + (message.calls.empty() ? "tool" : "assistant"));
  if (!message.reasoning.empty() && message.role != "assistant")
    f.fail(kWrongValue, at + ".reasoning_content",
           "field " + at + ".reasoning_content is given with the role " + message.role +
               ", expected it with assistant");
  return message;
}

}  // namespace

std::vector<ChatMessage> parse_messages(const Fields& f, const std::string& field,
                                        const Json& list) {
  if (!list.is_array()) f.wrong(field, list, "an array");
  if (list.empty()) f.fail(kEmptyPrompt, field, "field " + field + " is empty, expected messages");
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(parse_message(f, field + "[" + std::to_string(i) + "]", list[i]));
  return out;
}

}  // namespace riffle::requests
