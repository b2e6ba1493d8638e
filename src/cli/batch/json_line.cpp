#include "cli/batch/json_line.h"

#include <algorithm>
#include <set>

namespace riffle::cli {
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

// Watches the parsing of a line, to find keys that occur twice in an object (one value would be
// lost) and the place of an error.
class Watch {
 public:
  bool operator()(JsonIn::parse_event_t event, const JsonIn& parsed) {
    switch (event) {
      case JsonIn::parse_event_t::object_start: objects_.emplace_back(); break;
      case JsonIn::parse_event_t::object_end: objects_.pop_back(); break;
      case JsonIn::parse_event_t::key: {
        Object& object = objects_.back();
        object.key = parsed.get_ref<const std::string&>();
        if (!object.keys.insert(object.key).second && twice_.empty()) twice_ = place();
        break;
      }
      case JsonIn::parse_event_t::value:
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
    std::string key;  // the last key read
    std::set<std::string> keys;
  };
  std::vector<Object> objects_;
  std::string twice_, id_;
};

}  // namespace

JsonIn parse_object(std::string_view line) {
  const auto fail = [](const char* code, const std::string& text) -> void {
    throw BatchError{code, text, ""};
  };
  if (const int64_t at = riffle_utf8_error(line.data(), line.size()); at >= 0)
    fail("bad_utf8", text_of("byte %lld is not valid UTF-8", static_cast<long long>(at) + 1));
  const Shape shape = shape_of(line);
  if (shape.depth > kMaxNesting)
    fail("too_deep",
         text_of("nested deeper than %d levels, expected at most that many", kMaxNesting));
  if (shape.values > kMaxValues)
    fail("too_many_values",
         text_of("holds more than %zu values, expected at most that many", kMaxValues));
  JsonIn json;
  Watch watch;
  try {
    json = JsonIn::parse(line, [&](int, JsonIn::parse_event_t event, const JsonIn& parsed) {
      return watch(event, parsed);
    });
  } catch (const JsonIn::parse_error& e) {
    // The parser's message ends with the input that it read last, which may contain any text.
    const std::string_view what = e.what();
    const bool half = what.substr(0, what.find("; last read")).find("surrogate") != what.npos;
    fail("bad_json",
         text_of("not valid JSON at byte %zu%s", e.byte, half ? ": half of a surrogate pair" : ""));
  } catch (const JsonIn::exception&) {
    throw BatchError{"bad_json", "field " + dump(Json(watch.place())) + " is a number out of range",
                     watch.custom_id()};
  }
  if (!watch.twice().empty())
    throw BatchError{"bad_json", "field " + dump(Json(watch.twice())) + " is given twice",
                     watch.custom_id()};
  if (!json.is_object())
    fail("bad_json", std::string("is ") + json.type_name() + ", expected an object");
  return json;
}

std::string shown(std::string s) {
  if (s.size() > 60) s = s.substr(0, 57) + "...";
  return dump(Json(s));
}

void Fields::fail(const char* code, const std::string& text) const {
  throw BatchError{code, text_of("line %zu: %s", line_, text.c_str()), custom_id_};
}

namespace {
// Returns a field's name for a notice: as it is, or quoted if it holds unusual characters.
std::string name_of(const std::string& key) {
  const bool plain = key.find_first_not_of(
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_-") == key.npos;
  return plain && key.size() <= 60 ? key : shown(key);
}

// Returns a value for a message: itself if it is short, else its type.
std::string value_text(const JsonIn& value) {
  if (!value.is_structured() || value.size() <= 4) {
    const std::string text = dump(value);
    if (text.size() <= 60) return text;
  }
  return (value.is_structured() ? "an " : "a ") + std::string(value.type_name());
}
}  // namespace

void Fields::wrong(const std::string& field, const JsonIn& found,
                   const std::string& expected) const {
  fail("bad_request", "field " + field + " is " + value_text(found) + ", expected " + expected);
}

std::string Fields::text(const std::string& field, const JsonIn& value) const {
  if (!value.is_string()) wrong(field, value, "a string");
  return value.get<std::string>();
}

std::string Fields::plain_text(const std::string& field, const JsonIn& value) const {
  std::string out = text(field, value);
  if (out.find('\0') != out.npos) fail("bad_request", "field " + field + " holds a NUL character");
  return out;
}

bool Fields::truth(const std::string& field, const JsonIn& value) const {
  if (!value.is_boolean()) wrong(field, value, "true or false");
  return value.get<bool>();
}

void Fields::take(const std::string& field, const JsonIn& value, const SettingRow& s,
                  Options& options) const {
  const bool whole = s.type != "number";
  const bool number = whole ? value.is_number_integer() : value.is_number();
  // All digits, so that the library checks exactly the number in the line.
  const std::string text = !number || whole ? value.dump() : text_of("%.17g", value.get<double>());
  if (!number || !options.accepts(s.name, text))
    wrong(field, value, std::string(whole ? "a whole number, " : "a number, ") + s.range);
}

double Fields::real(const std::string& field, const JsonIn& value, double low, double high) const {
  const std::string expected = text_of("a number from %g to %g", low, high);
  if (!value.is_number()) wrong(field, value, expected);
  const double v = value.get<double>();
  if (!(v >= low && v <= high)) wrong(field, value, expected);
  return v;
}

bool Fields::is_read(const FieldUse* use, const std::string& object, const std::string& described,
                     const std::string& key, const JsonIn& value) const {
  if (use && use->use == Use::HONOURED) return true;
  if (!use && ignore_unknown_) {
    ignore(ignored_->unknown, described + name_of(key));
    return false;
  }
  if (!use)
    fail("bad_request", "field " + object + shown(key) +
                            " is not supported (--ignore-unknown answers the line without it)");
  if (value.is_null()) return false;  // OpenAI's way of leaving an optional field out
  if (use->use == Use::IGNORED) {
    ignore(ignored_->without_effect, described + key);
    return false;
  }
  if (use->instead)
    fail("bad_request", "field " + object + key + " is not supported; " + use->instead);
  std::string expected = "no such field";
  if (use->use == Use::NO_OP) {
    const JsonIn values = JsonIn::parse(use->no_ops);
    if (std::find(values.begin(), values.end(), value) != values.end()) return false;
    expected.clear();
    for (const JsonIn& one : values) expected += (expected.empty() ? "" : " or ") + dump(one);
  }
  fail("bad_request", "field " + object + key + " is " + value_text(value) +
                          ", which is not supported; expected " + expected);
}

void Fields::ignore(std::vector<std::string>& names, const std::string& name) const {
  const auto is_it = [&](const std::string& other) { return other == name; };
  if (names.size() < kMaxIgnoredNames && std::none_of(names.begin(), names.end(), is_it))
    names.push_back(name);
}

}  // namespace riffle::cli
