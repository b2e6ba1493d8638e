#include "cli/batch/format.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "cli/seed.h"

namespace riffle::cli {
namespace {

// What comes in is parsed into maps: ordered_json looks keys up one by one, which many keys would
// make slow.
using In = nlohmann::json;

struct Shape {
  int depth = 0;      // of [ and {
  size_t values = 1;  // no fewer than there are values and keys
};

// Looked at outside strings before parsing, so that no parser meets a tower or a desert of
// brackets.
Shape shape_of(std::string_view s) {
  Shape shape;
  int depth = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    const char c = s[i];
    if (c == '"') {
      for (++i; i < s.size() && s[i] != '"'; ++i)
        if (s[i] == '\\') ++i;
    } else if (c == '[' || c == '{') {
      shape.depth = std::max(shape.depth, ++depth);
      ++shape.values;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' || c == ':') {
      ++shape.values;
    }
  }
  return shape;
}

// Looks on while a line is parsed: a key that stands twice in an object would hide one of two
// values, and an error has a place.
class Watch {
 public:
  bool operator()(In::parse_event_t event, const In& parsed) {
    switch (event) {
      case In::parse_event_t::object_start: objects_.emplace_back(); break;
      case In::parse_event_t::object_end: objects_.pop_back(); break;
      case In::parse_event_t::key: {
        Object& object = objects_.back();
        object.key = parsed.get_ref<const std::string&>();
        if (!object.keys.insert(object.key).second && twice_.empty()) twice_ = place();
        break;
      }
      case In::parse_event_t::value:
        if (objects_.size() == 1 && objects_[0].key == "custom_id" && parsed.is_string())
          id_ = parsed.get<std::string>();
        break;
      default: break;
    }
    return true;
  }
  std::string place() const {
    std::string path;
    for (const Object& o : objects_) path += (path.empty() ? "" : ".") + o.key;
    return path.size() > 60 ? path.substr(0, 57) + "..." : path;
  }
  const std::string& twice() const { return twice_; }
  std::string custom_id() const { return id_.size() > kMaxNameBytes ? "" : id_; }

 private:
  struct Object {
    std::string key;  // the newest
    std::set<std::string> keys;
  };
  std::vector<Object> objects_;
  std::string twice_, id_;
};

// An object, or a BatchError.
In parse_object(std::string_view line) {
  const auto fail = [](const char* code, const std::string& text) -> void {
    throw BatchError{code, text, ""};
  };
  if (const int64_t at = riffle_utf8_error(line.data(), line.size()); at >= 0)
    fail("bad_utf8", text_of("byte %lld is not valid UTF-8", static_cast<long long>(at) + 1));
  const Shape shape = shape_of(line);
  if (shape.depth > kMaxNesting)
    fail("too_deep", text_of("nested deeper than %d levels", kMaxNesting));
  if (shape.values > kMaxValues)
    fail("too_many_values", text_of("holds more than %zu values", kMaxValues));
  In json;
  Watch watch;
  try {
    json = In::parse(
        line, [&](int, In::parse_event_t event, const In& parsed) { return watch(event, parsed); });
  } catch (const In::parse_error& e) {
    // The parser's text ends with what it read last, which may say anything.
    const std::string_view what = e.what();
    const bool half = what.substr(0, what.find("; last read")).find("surrogate") != what.npos;
    fail("bad_json",
         text_of("not valid JSON at byte %zu%s", e.byte, half ? ": half of a surrogate pair" : ""));
  } catch (const In::exception&) {
    throw BatchError{"bad_json", "field " + dump(Json(watch.place())) + " is a number out of range",
                     watch.custom_id()};
  }
  if (!watch.twice().empty())
    throw BatchError{"bad_json", "field " + dump(Json(watch.twice())) + " is there twice",
                     watch.custom_id()};
  if (!json.is_object())
    fail("bad_json", std::string("is ") + json.type_name() + ", expected an object");
  return json;
}

// Text from the file for a message: short, one line.
std::string shown(std::string s) {
  if (s.size() > 60) s = s.substr(0, 57) + "...";
  return dump(Json(s));
}

// Checks fields of one line and says what is wrong with which.
class Fields {
 public:
  Fields(size_t line, std::string custom_id) : line_(line), custom_id_(std::move(custom_id)) {}

  [[noreturn]] void fail(const char* code, const std::string& text) const {
    throw BatchError{code, text_of("line %zu: %s", line_, text.c_str()), custom_id_};
  }
  [[noreturn]] void wrong(const std::string& field, const In& found,
                          const std::string& expected) const {
    std::string value = found.is_structured() ? found.type_name() : dump(found);
    if (value.size() > 60) value = found.type_name();
    fail("bad_request", "field " + field + " is " + value + ", expected " + expected);
  }

  std::string text(const std::string& field, const In& j) const {
    if (!j.is_string()) wrong(field, j, "a string");
    return j.get<std::string>();
  }
  double real(const std::string& field, const In& j, double low, double high) const {
    const std::string expected = text_of("a number from %g to %g", low, high);
    if (!j.is_number()) wrong(field, j, expected);
    const double v = j.get<double>();
    if (!(v >= low && v <= high)) wrong(field, j, expected);
    return v;
  }
  template <typename T>
  T integer(const std::string& field, const In& j, T low, T high) const {
    const std::string expected =
        "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    if (!j.is_number_integer()) wrong(field, j, expected);
    // nlohmann keeps what is above INT64_MAX as unsigned; such a value read as signed would turn
    // negative.
    if (j.is_number_unsigned()) {
      const uint64_t v = j.get<uint64_t>();
      if (v < static_cast<uint64_t>(low) || v > static_cast<uint64_t>(high))
        wrong(field, j, expected);
      return static_cast<T>(v);
    }
    wrong(field, j, expected);  // negative; no field takes that
  }

 private:
  size_t line_;
  std::string custom_id_;
};

std::string parse_part(const Fields& f, const std::string& at, const In& part) {
  if (!part.is_object()) f.wrong(at, part, "an object");
  std::optional<std::string> text;
  bool type = false;
  for (const auto& [key, value] : part.items()) {
    if (key == "type") {
      if (f.text(at + ".type", value) != "text") f.wrong(at + ".type", value, "\"text\"");
      type = true;
    } else if (key == "text") {
      text = f.text(at + ".text", value);
    } else {
      f.fail("bad_request", "field " + at + "." + shown(key) + " is not supported");
    }
  }
  if (!type) f.fail("bad_request", "field " + at + ".type is missing");
  if (!text) f.fail("bad_request", "field " + at + ".text is missing");
  return *text;
}

// A string, or parts of type text, which follow each other on lines of their own.
std::string parse_content(const Fields& f, const std::string& at, const In& value) {
  std::string out;
  if (value.is_array()) {
    if (value.empty()) f.fail("bad_request", "field " + at + " is empty");
    for (size_t i = 0; i < value.size(); ++i)
      out += (i > 0 ? "\n" : "") + parse_part(f, at + "[" + std::to_string(i) + "]", value[i]);
  } else {
    if (!value.is_string()) f.wrong(at, value, "a string or a list of parts of type text");
    out = value.get<std::string>();
  }
  if (out.find('\0') != out.npos) f.fail("bad_request", "field " + at + " holds a NUL character");
  return out;
}

std::vector<Message> parse_messages(const Fields& f, const In& list) {
  if (!list.is_array()) f.wrong("body.messages", list, "an array");
  if (list.empty()) f.fail("empty_prompt", "field body.messages is empty");
  std::vector<Message> out;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = "body.messages[" + std::to_string(i) + "]";
    const In& m = list[i];
    if (!m.is_object()) f.wrong(at, m, "an object");
    Message message;
    bool role = false, content = false;
    for (const auto& [key, value] : m.items()) {
      if (key == "role") {
        message.role = f.text(at + ".role", value);
        if (message.role != "system" && message.role != "user" && message.role != "assistant")
          f.wrong(at + ".role", value, "system, user or assistant");
        role = true;
      } else if (key == "content") {
        message.content = parse_content(f, at + ".content", value);
        content = true;
      } else if (key == "reasoning_content") {
        if (!value.is_null()) message.reasoning = f.text(at + ".reasoning_content", value);
        if (message.reasoning.find('\0') != message.reasoning.npos)
          f.fail("bad_request", "field " + at + ".reasoning_content holds a NUL character");
      } else {
        f.fail("bad_request", "field " + at + "." + shown(key) + " is not supported");
      }
    }
    if (!role) f.fail("bad_request", "field " + at + ".role is missing");
    if (!content) f.fail("bad_request", "field " + at + ".content is missing");
    if (!message.reasoning.empty() && message.role != "assistant")
      f.fail("bad_request",
             "field " + at + ".reasoning_content is there, but the role is not assistant");
    out.push_back(std::move(message));
  }
  return out;
}

// {"enable_thinking": true}, as other servers take it.
riffle_thinking parse_template_kwargs(const Fields& f, const In& value) {
  const std::string at = "body.chat_template_kwargs";
  if (!value.is_object()) f.wrong(at, value, "an object");
  riffle_thinking thinking = RIFFLE_THINKING_DEFAULT;
  for (const auto& [key, one] : value.items()) {
    if (key != "enable_thinking")
      f.fail("bad_request", "field " + at + "." + shown(key) + " is not supported");
    if (!one.is_boolean()) f.wrong(at + ".enable_thinking", one, "true or false");
    thinking = one.get<bool>() ? RIFFLE_THINKING_ON : RIFFLE_THINKING_OFF;
  }
  return thinking;
}

std::vector<std::string> parse_stop(const Fields& f, const In& value) {
  std::vector<std::string> out;
  if (value.is_array()) {
    if (value.size() > 16) f.fail("bad_request", "field body.stop has more than 16 strings");
    for (const In& s : value) out.push_back(f.text("body.stop", s));
  } else {
    out.push_back(f.text("body.stop", value));
  }
  for (const std::string& s : out) {
    if (s.empty()) f.fail("bad_request", "field body.stop holds an empty string");
    if (s.find('\0') != s.npos) f.fail("bad_request", "field body.stop holds a NUL character");
  }
  return out;
}

// Whether the line has a seed of its own.
bool parse_body(const Fields& f, const In& body, BatchRequest& r) {
  constexpr int32_t kIntMax = std::numeric_limits<int32_t>::max();
  bool prompt = false, messages = false, limited = false, seeded = false;
  for (const auto& [key, value] : body.items()) {
    const std::string field = "body." + key;
    if (key == "prompt") {
      r.prompt = f.text(field, value);
      prompt = true;
    } else if (key == "messages") {
      r.messages = parse_messages(f, value);
      messages = true;
    } else if (value.is_null()) {
      continue;  // OpenAI's way of leaving an optional field out
    } else if (key == "model") {
      // Any name will do: the record names the model that answers.
      if (f.text(field, value).size() > kMaxNameBytes)
        f.fail("bad_request", text_of("field body.model is longer than %zu bytes", kMaxNameBytes));
    } else if (key == "max_tokens" || key == "max_completion_tokens") {
      if (limited)
        f.fail(
            "bad_request",
            "fields body.max_tokens and body.max_completion_tokens are both there, expected one");
      limited = true;
      r.max_tokens = f.integer<int32_t>(field, value, 1, kIntMax);
    } else if (key == "temperature") {
      r.sampling.temperature = static_cast<float>(f.real(field, value, 0, 100));
    } else if (key == "top_p") {
      r.sampling.top_p = static_cast<float>(f.real(field, value, 0, 1));
    } else if (key == "min_p") {
      r.sampling.min_p = static_cast<float>(f.real(field, value, 0, 1));
    } else if (key == "top_k") {
      r.sampling.top_k = f.integer<int32_t>(field, value, 0, kIntMax);
    } else if (key == "seed") {
      r.sampling.seed = f.integer<uint64_t>(field, value, 0, std::numeric_limits<uint64_t>::max());
      seeded = true;
    } else if (key == "stop") {
      r.stop = parse_stop(f, value);
    } else if (key == "chat_template_kwargs") {
      if (const riffle_thinking asked = parse_template_kwargs(f, value)) r.thinking = asked;
    } else if (key == "n") {
      if (f.integer<int32_t>(field, value, 1, kIntMax) != 1) f.wrong(field, value, "1");
    } else if (key == "stream") {
      if (value != In(false)) f.wrong(field, value, "false");
    } else if (key == "frequency_penalty" || key == "presence_penalty") {
      if (f.real(field, value, -2, 2) != 0) f.wrong(field, value, "0");
    } else {
      f.fail("bad_request", "field body." + shown(key) + " is not supported");
    }
  }
  if (prompt && messages)
    f.fail("bad_request", "fields body.prompt and body.messages exclude each other");
  if (!prompt && !messages) f.fail("bad_request", "field body.prompt or body.messages is missing");
  if (prompt && r.prompt.empty()) f.fail("empty_prompt", "field body.prompt is empty");
  r.chat = messages;
  return seeded;
}

}  // namespace

BatchRequest parse_batch_line(std::string_view line, size_t line_number,
                              const BatchDefaults& defaults) {
  const Fields unknown(line_number, "");
  In json;
  try {
    json = parse_object(line);
  } catch (const BatchError& e) {
    Fields(line_number, e.custom_id).fail(e.code.c_str(), e.message);
  }
  const auto id = json.find("custom_id");
  if (id == json.end()) unknown.fail("missing_id", "field custom_id is missing");
  if (!id->is_string() || id->get_ref<const std::string&>().empty())
    unknown.fail("missing_id", "field custom_id is not a string with text");
  if (id->get_ref<const std::string&>().size() > kMaxNameBytes)
    unknown.fail("missing_id", text_of("field custom_id is longer than %zu bytes", kMaxNameBytes));
  BatchRequest r;
  r.custom_id = id->get<std::string>();
  r.max_tokens = defaults.max_tokens;
  r.sampling = defaults.sampling;
  r.thinking = defaults.thinking;
  const Fields f(line_number, r.custom_id);
  std::string url;
  const In* body = nullptr;
  for (const auto& [key, value] : json.items()) {
    if (key == "custom_id") continue;
    if (key == "method") {
      if (f.text(key, value) != "POST") f.wrong(key, value, "POST");
    } else if (key == "url") {
      url = f.text(key, value);
      if (url != "/v1/completions" && url != "/v1/chat/completions")
        f.wrong(key, value, "/v1/completions or /v1/chat/completions");
    } else if (key == "body") {
      if (!value.is_object()) f.wrong(key, value, "an object");
      body = &value;
    } else {
      f.fail("bad_request", "field " + shown(key) + " is not supported");
    }
  }
  if (!body) f.fail("bad_request", "field body is missing");
  // Identical lines are to differ, so no two lines share a seed that they were not given.
  if (!parse_body(f, *body, r))
    r.sampling.seed = defaults.seed ? derived_seed(*defaults.seed, line_number) : draw_seed();
  if (!url.empty() && (url == "/v1/chat/completions") != r.chat)
    f.fail("bad_request", std::string("field url is ") + url + " but the body has " +
                              (r.chat ? "messages" : "a prompt"));
  return r;
}

RecordHead parse_record(std::string_view record) {
  In json;
  try {
    json = parse_object(record);
  } catch (const BatchError& e) {
    throw std::runtime_error(e.message);
  }
  const auto member = [&](const char* key) -> const In& {
    const auto it = json.find(key);
    if (it == json.end()) throw std::runtime_error(std::string("it has no member ") + key);
    return *it;
  };
  RecordHead head;
  const In &line = member("line"), &id = member("custom_id"), &error = member("error"),
           &response = member("response");
  if (!line.is_number_unsigned() || line.get<uint64_t>() == 0)
    throw std::runtime_error("its member line is no line number");
  if (!id.is_string() && !id.is_null())
    throw std::runtime_error("its member custom_id is no string");
  if (error.is_null() == response.is_null())
    throw std::runtime_error("it is neither an answer nor an error");
  head.line = line.get<uint64_t>();
  if (id.is_string()) head.custom_id = id.get<std::string>();
  head.failed = !error.is_null();
  return head;
}

}  // namespace riffle::cli
