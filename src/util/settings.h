// The table of settings: every option that a user may choose by name, with its range, default and
// names. The library takes its checks from it; programs read it with riffle_setting_at.
//
// Texts of errors and notices name a setting by its id in backquotes ("`gpu_mem` is 1 MiB").
// name_settings turns the ids into the names that the caller knows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "util/options.h"

namespace riffle {

// The longest context, the most sessions; block_layout.h has them in blocks and sequences.
inline constexpr double kMostContext = 1 << 28, kMostSessions = 1 << 20;

// The structs of options.h that settings are members of.
enum class OptionsKind : uint8_t {
  MODEL,
  CONTEXT,  // without its selection
  SELECTION,
  SCHEDULER,
  SAMPLING,
  ANSWER,  // GenerateOptions without its sampling
  CHAT,    // ConversationOptions
  QUANTIZE
};

// INT32: enums too. SIZE: uint64_t bytes. TEXT: std::string.
enum class MemberType : uint8_t { BOOL, INT32, INT64, UINT64, SIZE, FLOAT, TEXT };

struct Setting {
  const char* id;       // the member, in texts of this source: "selection.epsilon", "gpu_mem"
  const char* name;     // as users set it: "epsilon", "gpu-mem"
  OptionsKind options;  // the struct that it is a member of
  size_t offset;        // in that struct, in bytes
  MemberType type;
  // The values by name, from low on: "dense|psa|topk"; or the numbers that are allowed: "16|32|64".
  // "": any number of the range.
  const char* words;
  double low, high;            // ends of the range
  bool above_low, below_high;  // the end itself is not allowed
  const char* range;           // the range in words: "more than 0, at most 1"
  const char* flag;            // the riffle command's flag: "-c,--ctx"
  const char* json;            // its name in JSON output: "n_ctx"
  const char* spec;            // its name in specs of riffle eval: "epsilon"
  const char *group, *help;    // title and text in the command's help; "": it has no flag
  bool comparison;             // only for comparison with other choices
  uint32_t selectors;          // selection: bits 1 << SelectorKind: selectors that read it
  uint32_t bases;  // selection: bits 1 << BaseSelection: bases with which twilight reads it
};

// Help title of the settings that exist only for comparison.
inline constexpr const char* kComparisonGroup = "For comparison";

// The table while it is built: parts of the library add the rows of their own settings.
class SettingsTable {
 public:
  SettingsTable() = default;
  SettingsTable(SettingsTable&&) = default;
  void add(OptionsKind kind, std::span<const Setting> rows);
  // Adds values, such as "a|b", to a setting that takes words.
  void add_words(std::string_view id, std::string_view words);
  // Adds selectors that read the setting; bases: the bases with which twilight reads it.
  void add_readers(std::string_view id, uint32_t selectors, uint32_t bases);
  std::span<const Setting> rows() const { return rows_; }

 private:
  Setting& row(std::string_view id);

  std::vector<Setting> rows_;
  std::deque<std::string> texts_;  // texts that rows point to
};
// The settings of published papers' selectors (select/papers). A build of the core alone has none:
// select/no_papers.cpp.
void add_papers(SettingsTable& table);

std::span<const Setting> settings();
const Setting* find_setting(std::string_view id);     // null: there is none
const Setting* setting_named(std::string_view name);  // '_' counts as '-'; null: there is none
// Returns the name that a user most likely meant; "": none is near.
std::string nearest_setting(std::string_view name);

// Read and write numbers in the struct that the setting is a member of.
double setting_value(const Setting& setting, const void* options);
void set_setting(const Setting& setting, void* options, double value);
// Returns whether the setting can hold this value: false for NaN, or a fraction in an integer.
bool setting_allows(const Setting& setting, double value);

// Returns the value as text: a word, true or false, a number with all its digits, or the text
// itself.
std::string setting_text(const Setting& setting, const void* options);
// Takes a value as users write it: "0.1", "32K", "12GiB", "psa", "true". Throws
// Error(RIFFLE_BAD_ARGUMENT), naming the setting by its id in backquotes, and changes nothing.
void set_setting_text(const Setting& setting, void* options, std::string_view text);
// Returns the values that set_setting_text accepts, for messages: "a number, more than 0, at most
// 1".
std::string expected_of(const Setting& setting);

// Throws Error(RIFFLE_BAD_ARGUMENT) for the first member out of its range.
void check_settings(OptionsKind kind, const void* options);
// Does the same for one value of a member of GenerateOptions or of its sampling. The text names
// only the member: "top_p is 1.5, expected 0 to 1".
void check_answer_setting(std::string_view id, double value);

// Returns text with each id in backquotes replaced by name(NAME), or by NAME itself if name is null
// or returns null. Other backquotes stay.
std::string name_settings(std::string_view text, riffle_setting_name_fn name);

}  // namespace riffle
