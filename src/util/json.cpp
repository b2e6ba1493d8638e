#include "util/json.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "util/c_locale.h"
#include "util/error.h"
#include "util/utf8.h"

namespace riffle {

const char* Json::type_name() const {
  if (is_null()) return "null";
  if (is_boolean()) return "boolean";
  if (is_string()) return "string";
  if (is_array()) return "array";
  return is_object() ? "object" : "number";
}

int64_t Json::integer() const {
  if (is_unsigned()) return static_cast<int64_t>(whole());
  return std::get<int64_t>(value_);
}

double Json::number() const {
  if (is_real()) return std::get<double>(value_);
  return is_unsigned() ? static_cast<double>(whole()) : static_cast<double>(integer());
}

std::span<const Json> Json::elements() const {
  const auto* const array = std::get_if<Array>(&value_);
  return array ? std::span<const Json>(*array) : std::span<const Json>();
}

std::span<const Json::Member> Json::members() const {
  const auto* const object = std::get_if<Object>(&value_);
  return object ? std::span<const Member>(object->members) : std::span<const Member>();
}

const Json* Json::find(std::string_view key) const {
  const auto* const object = std::get_if<Object>(&value_);
  if (!object) return nullptr;
  const auto& all = object->members;
  const auto it =
      object->sorted
          ? std::lower_bound(all.begin(), all.end(), key,
                             [](const Member& m, std::string_view k) { return m.key < k; })
          : std::find_if(all.begin(), all.end(), [&](const Member& m) { return m.key == key; });
  return it != all.end() && it->key == key ? &it->value : nullptr;
}

namespace {

// Undoes the escapes of a JSON pointer: ~1 is a slash, ~0 a tilde. Returns false for any other
// escape.
bool unescape(std::string_view token, std::string* out) {
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] != '~') {
      *out += token[i];
      continue;
    }
    if (++i == token.size() || (token[i] != '0' && token[i] != '1')) return false;
    *out += token[i] == '0' ? '~' : '/';
  }
  return true;
}

}  // namespace

std::string json_pointer_token(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

const Json* Json::at_pointer(std::string_view pointer) const {
  const Json* at = this;
  while (at && !pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    std::string token;
    if (!unescape(pointer.substr(1, end - 1), &token)) return nullptr;
    pointer.remove_prefix(end);
    if (!at->is_array()) {
      at = at->find(token);
      continue;
    }
    size_t index = 0;
    const char* const last = token.data() + token.size();
    const auto read = std::from_chars(token.data(), last, index);
    const bool fits = read.ec == std::errc() && read.ptr == last && index < at->size() &&
                      (token[0] != '0' || token.size() == 1);
    at = fits ? &at->elements()[index] : nullptr;
  }
  return at;
}

// ---- writing

namespace {

// Returns the shortest text that reads as the same double; 0.0001 to 999999999999999.0 are written
// without an exponent.
std::string real_text(double value) {
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const bool small = text[e + 1] == '-';
  int exponent = 0;
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (small) exponent = -exponent;
  const int n = static_cast<int>(digits.size()), point = exponent + 1;
  if (point > 0 && point <= 15) {  // digits before the point
    if (n <= point) return out + digits + std::string(static_cast<size_t>(point - n), '0') + ".0";
    return out + digits.insert(static_cast<size_t>(point), ".");
  }
  if (point > -4 && point <= 0)
    return out + "0." + std::string(static_cast<size_t>(-point), '0') + digits;
  if (n > 1) digits.insert(1, ".");
  return out + digits + format("e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
}

void append_escape(uint32_t unit, std::string* out) { *out += format("\\u%04x", unit); }

void append_char(std::string_view one, bool ascii, std::string* out) {
  switch (one[0]) {
    case '"': *out += "\\\""; return;
    case '\\': *out += "\\\\"; return;
    case '\b': *out += "\\b"; return;
    case '\f': *out += "\\f"; return;
    case '\n': *out += "\\n"; return;
    case '\r': *out += "\\r"; return;
    case '\t': *out += "\\t"; return;
  }
  const auto lead = static_cast<unsigned char>(one[0]);
  if (lead >= 0x20 && (!ascii || lead < 0x7f)) {
    out->append(one);
    return;
  }
  uint32_t code = one.size() == 1 ? lead : lead & (0x7f >> one.size());
  for (size_t i = 1; i < one.size(); ++i)
    code = code << 6 | (static_cast<unsigned char>(one[i]) & 0x3f);
  if (code <= 0xffff) return append_escape(code, out);
  append_escape(0xd7c0 + (code >> 10), out);
  append_escape(0xdc00 + (code & 0x3ff), out);
}

void append_string(std::string_view text, bool ascii, std::string* out) {
  for (size_t at = 0; at < text.size();) {
    const size_t n = char_bytes(text, at);
    append_char(text.substr(at, n), ascii, out);
    at += n;
  }
}

void append(const Json& value, bool ascii, std::string* out) {
  const char* comma = "";
  if (value.is_object()) {
    *out += '{';
    for (const Json::Member& m : value.members()) {
      *out += std::exchange(comma, ",");
      *out += '"';
      append_string(m.key, ascii, out);
      *out += "\":";
      append(m.value, ascii, out);
    }
    *out += '}';
  } else if (value.is_array()) {
    *out += '[';
    for (const Json& element : value.elements()) {
      *out += std::exchange(comma, ",");
      append(element, ascii, out);
    }
    *out += ']';
  } else if (value.is_string()) {
    *out += '"';
    append_string(value.string(), ascii, out);
    *out += '"';
  } else if (value.is_number()) {
    *out += value.is_real()       ? real_text(value.number())
            : value.is_unsigned() ? std::to_string(value.whole())
                                  : std::to_string(value.integer());
  } else {
    *out += value.is_null() ? "null" : value.boolean() ? "true" : "false";
  }
}

}  // namespace

std::string Json::dump(bool ascii) const {
  std::string out;
  append(*this, ascii, &out);
  return out;
}

std::string json_string(std::string_view text, bool ascii) {
  std::string out;
  append_string(text, ascii, &out);
  return out;
}

// ---- reading

namespace {

// Returns the place of the word or string that ends at byte `last`.
size_t word_begin(std::string_view text, size_t last) {
  size_t at = last;
  if (text[last] != '"') {
    constexpr std::string_view kBetween = " \t\r\n,:[]{}\"";
    while (at > 0 && kBetween.find(text[at - 1]) == kBetween.npos) --at;
    return at;
  }
  // A quotation mark inside of the string has an odd number of backslashes before it.
  while (at > 0) {
    const size_t quote = text.rfind('"', at - 1);
    if (quote == text.npos) return last;
    size_t backslashes = 0;
    while (backslashes < quote && text[quote - 1 - backslashes] == '\\') ++backslashes;
    at = quote;
    if (backslashes % 2 == 0) break;
  }
  return at;
}

std::string shown_char(std::string_view text, size_t at) {
  if (at >= text.size()) return "the end of the text";
  const auto c = static_cast<unsigned char>(text[at]);
  if (c == '\n' || c == '\r') return "a line break";
  if (c == '\t') return "a tab";
  if (c < 0x20 || c == 0x7f) return format("the character U+%04X", c);
  return "'" + std::string(text.substr(at, char_bytes(text, at))) + "'";
}

// n_read: bytes that the parser has read; what: its message, which ends with the input that it read
// last and so may contain any text.
JsonError syntax_error(std::string_view text, size_t n_read, std::string_view what) {
  what = what.substr(0, what.find("; last read"));
  const auto says = [&](std::string_view words) { return what.find(words) != what.npos; };
  size_t at = n_read > 0 ? n_read - 1 : 0;
  if (at < text.size() && says("unexpected") && says("literal")) at = word_begin(text, at);
  at = std::min(at, text.size());
  std::string found = shown_char(text, at);
  if (says("surrogate")) found = "half of a surrogate pair";
  else if (says("UTF-8") && at < text.size())
    found = format("invalid UTF-8 (0x%02x)", static_cast<unsigned char>(text[at]));
  else if (says("invalid string")) found += " in a string";
  const auto breaks =
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  found += breaks > 0 ? format(" in line %zu (byte %zu of the text)",
                               static_cast<size_t>(breaks) + 1, at + 1)
                      : format(" at byte %zu", at + 1);
  return {JsonError::SYNTAX, at + 1, found};
}

// Returns text that has room in an error: cut before a character.
std::string short_text(const std::string& text) {
  size_t n = 60;
  if (text.size() <= n) return text;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) --n;
  return text.substr(0, n) + "...";
}

}  // namespace

JsonErrorWords words_of(const JsonError& error, const JsonLimits& limits) {
  switch (error.kind) {
    case JsonError::SYNTAX: break;
    case JsonError::NUMBER_TOO_LARGE:
      return {"the number " + short_text(error.text),
              limits.exact ? "a whole number of at most 64 bits, or one from -1.8e308 to 1.8e308"
                           : "a number from -1.8e308 to 1.8e308"};
    case JsonError::TOO_DEEP:
      return {format("values nested deeper than %zu levels", limits.depth),
              format("at most %zu", limits.depth)};
    case JsonError::TOO_MANY:
      return {format("more than %zu values", limits.values), format("at most %zu", limits.values)};
    case JsonError::KEY_TWICE:
      return {"the key \"" + json_string(short_text(error.text)) + "\" twice in one object",
              "it once"};
  }
  return {error.text, "JSON"};
}

std::string text_of(const JsonError& error, const JsonLimits& limits) {
  const auto [found, expected] = words_of(error, limits);
  return "found " + found + ", expected " + expected;
}

// Takes the events of nlohmann's parser (its names).
class JsonBuilder {
 public:
  JsonBuilder(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}
  Json take() { return std::move(root_); }

  bool null() { return value(Json()); }
  bool boolean(bool v) { return value(Json(v)); }
  bool number_integer(int64_t v) { return value(Json(v)); }
  bool number_unsigned(uint64_t v) { return value(Json(v)); }
  bool number_float(double v, const std::string& text) {
    if (limits_.exact && text.find_first_of(".eE") == text.npos)
      throw JsonError{JsonError::NUMBER_TOO_LARGE, 0, text, path()};
    return value(Json(v));
  }
  bool string(std::string& v) { return value(Json(std::move(v))); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON texts have none
  bool start_object(size_t) {
    open(Json::Object{{}, limits_.sorted});
    return true;
  }
  bool start_array(size_t) {
    open(Json::Array());
    return true;
  }
  bool key(std::string& name) {
    const bool twice = !open_.back().keys.insert(name).second && !twice_;
    if (limits_.count_all) count();
    auto& members = std::get<Json::Object>(open_.back().value->value_).members;
    members.push_back({std::move(name), Json()});
    if (twice) twice_ = JsonError{JsonError::KEY_TWICE, 0, members.back().key, path()};
    return true;
  }
  bool end_object() {
    auto& members = std::get<Json::Object>(open_.back().value->value_).members;
    if (limits_.sorted)
      std::sort(members.begin(), members.end(),
                [](const Json::Member& a, const Json::Member& b) { return a.key < b.key; });
    return close();
  }
  bool end_array() { return close(); }
  // byte: the number of bytes read; last: what was read last.
  bool parse_error(size_t byte, const std::string& last, const nlohmann::json::exception& e) {
    if (!dynamic_cast<const nlohmann::json::parse_error*>(&e))
      throw JsonError{JsonError::NUMBER_TOO_LARGE, byte, last, path()};
    throw syntax_error(text_, byte, e.what());
  }
  // Called at the end of the text.
  void check_keys() const {
    if (twice_) throw *twice_;
  }

 private:
  struct Open {
    Json* value;  // stays in place: its holder does not grow before it is closed
    std::unordered_set<std::string> keys;
  };

  // Returns the last keys of the open objects, joined by dots.
  std::string path() const {
    std::string path;
    for (const Open& one : open_) {
      const auto members = one.value->members();
      if (!members.empty()) path += (path.empty() ? "" : ".") + members.back().key;
    }
    return path;
  }
  void count() {
    if (++n_values_ > limits_.values) throw JsonError{JsonError::TOO_MANY, 0, ""};
  }
  // Puts the value where it belongs: into the open array, after the last key, or at the top.
  Json* place(Json value) {
    Json* at = &root_;
    if (!open_.empty()) {
      Json& parent = *open_.back().value;
      if (auto* const array = std::get_if<Json::Array>(&parent.value_)) at = &array->emplace_back();
      else at = &std::get<Json::Object>(parent.value_).members.back().value;
    }
    *at = std::move(value);
    return at;
  }
  bool value(Json v) {
    count();
    place(std::move(v));
    return true;
  }
  template <class Container>
  void open(Container empty) {
    if (open_.size() == limits_.depth) throw JsonError{JsonError::TOO_DEEP, 0, ""};
    count();
    Json made;
    made.value_ = std::move(empty);
    Json* const at = place(std::move(made));
    open_.push_back({at, {}});
  }
  bool close() {
    open_.pop_back();
    if (limits_.count_all) count();
    return true;
  }

  const std::string_view text_;
  const JsonLimits limits_;
  Json root_;
  std::vector<Open> open_;
  size_t n_values_ = 0;
  std::optional<JsonError> twice_;  // the first key that is given twice
};

Json parse_json(std::string_view text, const JsonLimits& limits) {
  Json json;
  parse_json(text, limits, &json);
  return json;
}

void parse_json(std::string_view text, const JsonLimits& limits, Json* json) {
  JsonBuilder builder(text, limits);
  const CLocale here;
  try {
    nlohmann::json::sax_parse(text, &builder);
    builder.check_keys();
  } catch (...) {
    *json = builder.take();
    throw;
  }
  *json = builder.take();
}

}  // namespace riffle
