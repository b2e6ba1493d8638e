#include "util/json_file.h"

namespace riffle {

namespace {

constexpr JsonLimits kLimits{.depth = 32, .values = 2'000'000, .sorted = true};

}  // namespace

Json parse_json_object(const FileView& file, std::string_view text, const char* field) {
  Json out;
  try {
    out = parse_json(text, kLimits);
  } catch (const JsonError& error) {
    const auto [found, expected] = words_of(error, kLimits);
    const std::string place = field;
    const char* const colon = place.empty() || error.path.empty() ? "" : ": ";
    bad_model(file.name, place + colon + error.path, found, expected);
  }
  if (!out.is_object())
    bad_model(file.name, field, std::string("JSON of type ") + out.type_name(), "an object");
  return out;
}

// Python writes numbers that JSON has not. They become strings, which no reader takes for a number.
static std::string without_python_numbers(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    std::string_view number;
    for (const std::string_view name : {"-Infinity", "Infinity", "NaN"})
      if (!in_string && number.empty() && rest.starts_with(name)) number = name;
    if (!number.empty()) {
      out += '"';
      out += number;
      out += '"';
      i += number.size() - 1;
      continue;
    }
    if (in_string && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    else if (text[i] == '"') in_string = !in_string;
    out += text[i];
  }
  return out;
}

Json parse_json_object(const FileView& file) {
  const std::string_view text = file.text();
  refuse_lfs_pointer(file.name, text);
  if (text.find("Infinity") == text.npos && text.find("NaN") == text.npos)
    return parse_json_object(file, text, "");
  return parse_json_object(file, without_python_numbers(text), "");
}

std::string shown(const Json& value) { return value.dump(true).substr(0, 80); }

const Json* find(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value && !value->is_null() ? value : nullptr;
}

}  // namespace riffle
