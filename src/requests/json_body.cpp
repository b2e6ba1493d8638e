#include "requests/json_body.h"

#include "text/tokenizer.h"
#include "util/settings.h"

namespace riffle::requests {
namespace {

struct Shape {
  int depth = 0;      // depth of [ and {
  size_t values = 1;  // upper bound of the number of values and keys
};

// Measures the text outside strings before parsing, so that no parser meets very deep or very many
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

std::string quoted(std::string_view text) { return "\"" + json_string(text) + "\""; }

std::string short_path(const std::string& path) {
  return path.size() > 60 ? path.substr(0, 57) + "..." : path;
}

// Limits of what shape_of has let pass; it counts more values than the parser does.
constexpr JsonLimits kLimits{.depth = kMaxNesting + 1, .values = 2 * kMaxValues};

[[noreturn]] void refuse(const JsonError& e) {
  const std::string field = e.path.empty() ? "" : "field " + quoted(short_path(e.path)) + ": ";
  throw Refused(kBadJson, "", field + text_of(e, kLimits));
}

// Tells whether two values are equal; 1.0 equals 1.
bool same(const Json& a, const Json& b) {
  if (a.is_number()) return b.equals(a.number());
  if (a.is_string()) return b.equals(a.string());
  if (a.is_boolean()) return b.is_boolean() && a.boolean() == b.boolean();
  if (a.is_array())
    return b.is_array() && std::equal(a.elements().begin(), a.elements().end(),
                                      b.elements().begin(), b.elements().end(), same);
  return a.is_null() && b.is_null();
}

// Returns a field's name for a notice: as it is, or quoted if it holds unusual characters.
std::string name_of(const std::string& key) {
  const bool plain = key.find_first_not_of(
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_-") == key.npos;
  return plain && key.size() <= 60 ? key : shown(key);
}

// Returns a value for a message: itself if it is short, else its type.
std::string value_text(const Json& value) {
  const bool structured = value.is_array() || value.is_object();
  if (!structured || value.size() <= 4) {
    const std::string text = value.dump();
    if (text.size() <= 60) return text;
  }
  return (structured ? "an " : "a ") + std::string(value.type_name());
}

// Returns the member of GenerateOptions, or of its sampling, to which the setting belongs.
void* part_of(GenerateOptions* options, const Setting& setting) {
  return setting.options == OptionsKind::SAMPLING ? static_cast<void*>(&options->sampling)
                                                  : options;
}

}  // namespace

Json parse_object(std::string_view text, std::string* custom_id) {
  if (const int64_t at = utf8_error(text); at >= 0)
    throw Refused(kBadUtf8, "",
                  format("byte %lld is not valid UTF-8", static_cast<long long>(at) + 1));
  const Shape shape = shape_of(text);
  if (shape.depth > kMaxNesting)
    throw Refused(kTooDeep, "",
                  format("the text is nested deeper than %d levels, expected %d at most",
                         kMaxNesting, kMaxNesting));
  if (shape.values > kMaxValues)
    throw Refused(kTooManyValues, "",
                  format("the text holds more than %zu values, expected %zu at most", kMaxValues,
                         kMaxValues));
  Json json;
  std::optional<JsonError> error;
  try {
    parse_json(text, kLimits, &json);
  } catch (const JsonError& e) {
    error = e;
  }
  for (const auto& [key, value] : json.members())  // the last one, if it is given twice
    if (key == "custom_id" && value.is_string() && value.string().size() <= kMaxNameBytes)
      *custom_id = value.string();
  if (error) {
    if (error->kind == JsonError::SYNTAX) custom_id->clear();
    refuse(*error);
  }
  if (!json.is_object())
    throw Refused(kBadJson, "",
                  std::string("the text is a JSON ") + json.type_name() + ", expected an object");
  return json;
}

std::vector<const Json::Member*> members_by_key(const Json& object) {
  std::vector<const Json::Member*> out;
  for (const Json::Member& m : object.members()) out.push_back(&m);
  std::sort(out.begin(), out.end(),
            [](const Json::Member* a, const Json::Member* b) { return a->key < b->key; });
  return out;
}

const Json* given(const Json& object, std::string_view name) {
  const Json* const value = object.find(name);
  return value && !value->is_null() ? value : nullptr;
}

std::string shown(std::string s) {
  if (s.size() > 60) {
    std::string cut;
    append_valid_utf8(std::string_view(s).substr(0, 57), false, &cut);
    s = cut + "...";
  }
  return quoted(s);
}

void Fields::fail(const Reason& reason, const std::string& field, const std::string& text) const {
  throw Refused(reason, field, text);
}

void Fields::missing(const std::string& field, const std::string& expected) const {
  fail(kMissing, field,
       "field " + field + " is missing" + (expected.empty() ? "" : ", expected " + expected));
}

void Fields::wrong(const std::string& field, const Json& found, const std::string& expected) const {
  fail(kWrongValue, field,
       "field " + field + " is " + value_text(found) + ", expected " + expected);
}

std::string Fields::text(const std::string& field, const Json& value) const {
  if (!value.is_string()) wrong(field, value, "a string");
  return value.string();
}

std::string Fields::plain_text(const std::string& field, const Json& value) const {
  std::string out = text(field, value);
  if (out.find('\0') != out.npos)
    fail(kWrongValue, field,
         "field " + field + " holds a NUL character, expected text without one");
  return out;
}

bool Fields::truth(const std::string& field, const Json& value) const {
  if (!value.is_boolean()) wrong(field, value, "true or false");
  return value.boolean();
}

void Fields::take(const std::string& field, const Json& value, const char* setting,
                  GenerateOptions* options) const {
  const Setting& s = *setting_named(setting);
  const bool whole = s.type != MemberType::FLOAT;
  bool taken = whole ? value.is_integer() : value.is_number();
  if (taken) {
    try {
      // All digits, so that the table checks exactly the number in the request.
      set_setting_text(s, part_of(options, s),
                       whole ? value.dump() : format("%.17g", value.number()));
    } catch (const Error&) {
      taken = false;
    }
  }
  if (!taken) wrong(field, value, std::string(whole ? "a whole number, " : "a number, ") + s.range);
}

double Fields::real(const std::string& field, const Json& value, double low, double high) const {
  const std::string expected = format("a number from %g to %g", low, high);
  if (!value.is_number()) wrong(field, value, expected);
  const double v = value.number();
  if (!(v >= low && v <= high)) wrong(field, value, expected);
  return v;
}

bool Fields::is_read(const FieldUse* use, const std::string& object, const std::string& described,
                     const std::string& key, const Json& value) const {
  if (use && use->use == Use::HONOURED) return true;
  if (!use && ignore_unknown_) {
    ignore(ignored_->unknown, described + name_of(key));
    return false;
  }
  if (!use) fail(kUnknown, object + key, "field " + object + shown(key) + " is not supported");
  if (value.is_null()) return false;  // OpenAI's way of leaving an optional field out
  if (use->use == Use::IGNORED) {
    ignore(ignored_->without_effect, described + key);
    return false;
  }
  if (use->instead)
    fail(kUnsupported, object + key,
         "field " + object + key + " is not supported; " + use->instead);
  std::string expected = "no such field";
  if (use->use == Use::NO_OP) {
    const Json values = parse_json(use->no_ops, {.depth = 4, .values = 16});
    const auto all = values.elements();
    if (std::any_of(all.begin(), all.end(), [&](const Json& one) { return same(one, value); }))
      return false;
    expected.clear();
    for (const Json& one : all) expected += (expected.empty() ? "" : " or ") + one.dump();
  }
  fail(use->use == Use::NO_OP ? kUnsupportedValue : kUnsupported, object + key,
       "field " + object + key + " is " + value_text(value) +
           ", which is not supported; expected " + expected);
}

void Fields::ignore(std::vector<std::string>& names, const std::string& name) const {
  const auto is_it = [&](const std::string& other) { return other == name; };
  if (names.size() < kMaxIgnoredNames && std::none_of(names.begin(), names.end(), is_it))
    names.push_back(name);
}

}  // namespace riffle::requests
