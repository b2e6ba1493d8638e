// Settings of reasoning (on or off, and how long), which chat templates read as variables.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace riffle::cli {

struct Thinking {
  std::string enabled = "default";  // or "on", "off"
  const char* effort = nullptr;     // one of effort_named; null: the template decides
};

inline constexpr const char* kEfforts[] = {"low", "medium", "high"};
// Parses "on", "off" or one of kEfforts, the words of --think and of riffle chat's /think. Returns
// nothing for another word.
std::optional<Thinking> thinking_named(const std::string& word);
// Returns one of these words, or "the chat template's default".
const char* thinking_text(const Thinking& thinking);
// Returns the word for Thinking::effort; null if it is not one of kEfforts.
const char* effort_named(std::string_view word);

bool is_template_variable(std::string_view name);
// Sets the variable enable_thinking or reasoning_effort. null changes nothing; the effort "none"
// (OpenAI's) turns reasoning off. Returns "", or the expected values for an error.
std::string set_template_variable(std::string_view name, const nlohmann::json& value,
                                  Thinking* thinking);

}  // namespace riffle::cli
