#include "model/formats/json.h"

#include <string>
#include <unordered_set>
#include <vector>

namespace riffle {

namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = 2'000'000;  // bounds the memory that the parsed text takes

}  // namespace

nlohmann::json parse_json_object(const FileView& file, std::string_view text, const char* field) {
  using nlohmann::json;
  std::vector<std::unordered_set<std::string>> keys;  // of each object or array that is open
  size_t n_values = 0;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (keys.size() == kMaxDepth) {
          bad_model(file.name, field, "JSON nested deeper",
                    std::to_string(kMaxDepth) + " levels at most");
        }
        keys.emplace_back();
        ++n_values;
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end: keys.pop_back(); break;
      case json::parse_event_t::key:
        if (!keys.back().insert(parsed.get_ref<const std::string&>()).second) {
          bad_model(file.name, parsed.get_ref<const std::string&>(), "the JSON key twice", "once");
        }
        break;
      case json::parse_event_t::value: ++n_values; break;
    }
    if (n_values > kMaxValues) {
      bad_model(file.name, field, "more JSON values", std::to_string(kMaxValues) + " at most");
    }
    return true;
  };
  json out;
  try {
    out = json::parse(text, watch);
  } catch (const json::exception& e) {
    bad_model(file.name, field, e.what(), "JSON");
  }
  if (!out.is_object())
    bad_model(file.name, field, std::string("JSON of type ") + out.type_name(), "an object");
  return out;
}

nlohmann::json parse_json_object(const FileView& file) {
  return parse_json_object(file, file.text(), "file");
}

}  // namespace riffle
