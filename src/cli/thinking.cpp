#include "cli/thinking.h"

#include <nlohmann/json.hpp>

namespace riffle::cli {

const char* effort_named(std::string_view word) {
  for (const char* effort : kEfforts)
    if (word == effort) return effort;
  return nullptr;
}

std::optional<Thinking> thinking_named(const std::string& word) {
  if (word == "on") return Thinking{"on", nullptr};
  if (word == "off") return Thinking{"off", nullptr};
  if (const char* effort = effort_named(word)) return Thinking{"on", effort};
  return std::nullopt;
}

const char* thinking_text(const Thinking& thinking) {
  if (thinking.enabled == "off") return "off";
  if (thinking.effort) return thinking.effort;
  return thinking.enabled == "on" ? "on" : "the chat template's default";
}

bool is_template_variable(std::string_view name) {
  return name == "enable_thinking" || name == "reasoning_effort";
}

std::string set_template_variable(std::string_view name, const nlohmann::json& value,
                                  Thinking* thinking) {
  if (value.is_null()) return "";
  if (name == "enable_thinking") {
    if (!value.is_boolean()) return "true or false";
    thinking->enabled = value.get<bool>() ? "on" : "off";
    return "";
  }
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  if (word == "none") {
    *thinking = {"off", nullptr};
    return "";
  }
  thinking->effort = effort_named(word);
  return thinking->effort ? "" : "none, low, medium or high";
}

}  // namespace riffle::cli
