#include "requests/calls/json_scan.h"

#include <cstring>
#include <set>

#include "util/error.h"
#include "util/json.h"

namespace riffle::requests {
namespace {

constexpr JsonLimits kLimits{.depth = 128, .values = 1000000};

bool is_space(char c) { return std::strchr(kSpaces, c) && c; }

// Returns the text of a JSON string, or nothing.
bool read_string(std::string_view json, std::string* out) {
  try {
    const Json value = parse_json(json, kLimits);
    if (!value.is_string()) return false;
    *out = value.string();
    return true;
  } catch (const JsonError&) {
    return false;
  }
}

}  // namespace

std::string json_piece(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) out += text[i];
    else out += json_string(text.substr(i, 1));
  }
  return out;
}

void read_value(std::string_view json, Json* value) {
  try {
    parse_json(json, kLimits, value);
  } catch (const JsonError& e) {
    if (e.kind != JsonError::KEY_TWICE) throw;
  }
}

std::string arguments_error(std::string_view json) {
  Json value;
  try {
    read_value(json, &value);
  } catch (const JsonError& e) {
    return format("arguments: byte %zu is not JSON", e.byte);
  }
  if (!value.is_object())
    return std::string("arguments: found ") + value.type_name() + ", expected an object";
  std::set<std::string_view> keys;
  for (const Json::Member& member : value.members())
    if (!keys.insert(member.key).second)
      return "arguments: found the key \"" + json_string(member.key) + "\" twice, expected it once";
  return "";
}

bool JsonScan::put(std::string_view* text, std::string* taken) {
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    const auto end = [&](size_t n) {
      taken->append(text->substr(0, n));
      text->remove_prefix(n);
      return true;
    };
    if (string_) {
      if (escape_) escape_ = false;
      else if (c == '\\') escape_ = true;
      else if (c == '"') string_ = false;
      if (!string_ && depth_ == 0) return end(i + 1);
      continue;
    }
    if (depth_ == 0 && bare_ && (is_space(c) || std::strchr(",]}", c))) return end(i);
    if (!begun_ && is_space(c)) continue;
    begun_ = true;
    if (c == '"') {
      string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (--depth_ <= 0) return end(depth_ < 0 ? i : i + 1);
    } else if (depth_ == 0) {
      bare_ = true;
    }
  }
  taken->append(*text);
  text->remove_prefix(text->size());
  return false;
}

CallBody::Step CallObject::step(std::string_view* text, bool over, CallSink* out) {
  if (from_) from_ = text->data();
  const Step step = read(text, over, out);
  if (from_) behind_.append(from_, text->data());
  if (step == Step::BROKEN && !behind_.empty()) out->arguments(behind_);
  return step;
}

CallBody::Step CallObject::read(std::string_view* text, bool over, CallSink* out) {
  for (;;) {
    if (at_ == At::VALUE || at_ == At::KEY) {
      const Step step = value(text, over, out);
      if (step != Step::DONE) return step;
      continue;
    }
    *text = without_left(*text);
    if (text->empty()) return wait(over, "the end of an object");
    const char c = text->front();
    switch (at_) {
      case At::OBJECT:
        if (c != '{') return broken("expected an object");
        at_ = At::FIRST;
        break;
      case At::FIRST:
      case At::COMMA:
        if (c == '}') {
          text->remove_prefix(1);
          return close(out);
        }
        if (at_ == At::COMMA) {
          if (c != ',') return broken("expected a comma or the end of an object");
        } else if (c != '"') {
          return broken("expected a key");
        }
        scan_ = {};
        value_.clear();
        at_ = At::KEY;
        if (c == '"') continue;  // it is a part of the key
        break;
      case At::COLON:
        if (c != ':') return broken("expected a colon");
        scan_ = {};
        value_.clear();
        at_ = At::VALUE;
        break;
      default: break;
    }
    text->remove_prefix(1);
  }
}

// Takes a key or a value. Arguments are passed on as they are written, once the name is known.
CallBody::Step CallObject::value(std::string_view* text, bool over, CallSink* out) {
  std::string taken;
  const bool argument =
      at_ == At::VALUE && (key_ == "arguments" || key_ == "parameters") && !has_arguments_;
  const bool fresh = !scan_.begun();
  const bool ended = scan_.put(text, &taken);
  if (fresh) taken = without_left(taken);
  value_ += taken;
  if (argument && named_ && value_.starts_with('{')) {
    const Step step = begun_ ? Step::DONE : begin(out);
    if (step != Step::DONE) return step;
    if (!taken.empty()) out->arguments(taken);
  }
  if (!ended) return wait(over, "the end of a value");
  if (at_ == At::KEY) {
    if (!read_string(value_, &key_)) return broken("expected a key");
    at_ = At::COLON;
    return Step::DONE;
  }
  at_ = At::COMMA;
  const Step step = take_value(out);
  if (step == Step::DONE && begun_ && !from_) from_ = text->data();
  return step;
}

CallBody::Step CallObject::take_value(CallSink* out) {
  if (key_ == "name") {
    if (named_ || !read_string(value_, &name_) || !is_name(name_)) return broken("expected a name");
    named_ = true;
    if (!has_arguments_ || begun_) return Step::DONE;
  } else if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    has_arguments_ = true;
    if (!begun_) waiting_ = value_;
    std::string text;
    if (waiting_ == "null") waiting_ = "{}";
    else if (read_string(waiting_, &text)) waiting_ = text;
  } else {
    return Step::DONE;
  }
  if (!named_) return Step::DONE;
  if (!begun_) {
    const Step step = begin(out);
    if (step != Step::DONE) return step;
    out->arguments(waiting_);
    value_ = waiting_;
  }
  const std::string error = arguments_error(value_);
  return error.empty() ? Step::DONE : broken(error);
}

CallBody::Step CallObject::begin(CallSink* out) {
  if (known_ && !known_(name_)) return broken("expected the name of a function");
  out->begin(name_);
  begun_ = true;
  return Step::DONE;
}

CallBody::Step CallObject::close(CallSink* out) {
  if (!named_) return broken("expected a name");
  if (!begun_) {
    const Step step = begin(out);
    if (step != Step::DONE) return step;
    out->arguments("{}");
  }
  out->end();
  return Step::DONE;
}

void ConvertedCalls::begin(std::string_view name, char bracket, CallSink* out) {
  out->begin(name);
  json_.clear();
  open_ = bracket;
  put("{", out);
}

void ConvertedCalls::put(std::string_view json, CallSink* out) {
  if (!json.empty()) out->arguments(json);
  json_ += json;
}

void ConvertedCalls::open(std::string_view* text, CallSink* out) {
  put(text->substr(0, 1), out);
  open_ += text->front();
  text->remove_prefix(1);
}

CallBody::Step ConvertedCalls::end(CallSink* out) {
  const std::string error = arguments_error(json_);
  if (!error.empty()) return broken(error);
  out->end();
  return Step::DONE;
}

}  // namespace riffle::requests
