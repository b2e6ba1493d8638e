#include "util/json_file.h"

namespace riffle {

namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = 2'000'000;

[[noreturn]] void refuse(const FileView& file, const char* field, const JsonError& error) {
  switch (error.kind) {
    case JsonError::TOO_DEEP:
      bad_model(file.name, field, "JSON nested too deep",
                "at most " + std::to_string(kMaxDepth) + " levels");
    case JsonError::TOO_MANY:
      bad_model(file.name, field, "too many JSON values", "at most " + std::to_string(kMaxValues));
    case JsonError::KEY_TWICE: bad_model(file.name, error.text, "the JSON key twice", "once");
    default: bad_model(file.name, field, error.text, "JSON");
  }
}

}  // namespace

Json parse_json_object(const FileView& file, std::string_view text, const char* field) {
  Json out;
  try {
    out = parse_json(text, {.depth = kMaxDepth, .values = kMaxValues, .sorted = true});
  } catch (const JsonError& error) {
    refuse(file, field, error);
  }
  if (!out.is_object())
    bad_model(file.name, field, std::string("JSON of type ") + out.type_name(), "an object");
  return out;
}

Json parse_json_object(const FileView& file) {
  refuse_lfs_pointer(file.name, file.text());
  return parse_json_object(file, file.text(), "file");
}

std::string shown(const Json& value) { return value.dump(true).substr(0, 80); }

const Json* find(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value && !value->is_null() ? value : nullptr;
}

}  // namespace riffle
