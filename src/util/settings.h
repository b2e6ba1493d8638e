// The table of settings: every member of riffle_selection, riffle_context_options and
// riffle_scheduler_options that a user may choose, and the numbers of riffle_generate_options, with
// its range, default and names. The library takes its defaults and checks from it; programs read it
// with riffle_setting_at.
//
// Texts of errors and notices name a setting by its id in backquotes ("`gpu_mem` is 1 MiB").
// name_settings turns the ids into the names that the caller knows.
#pragma once
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "riffle.h"

namespace riffle {

// The longest context, the most sessions; block_layout.h has them in blocks and sequences.
inline constexpr double kMostContext = 1 << 28, kMostSessions = 1 << 20;

// The title under which help has what is there to compare with.
inline constexpr const char* kComparisonGroup = "For comparison";

// The table while it is made: rooms of the library add the rows of their own settings.
class SettingsTable {
 public:
  SettingsTable() = default;
  SettingsTable(SettingsTable&&) = default;
  void add(riffle_options_kind kind, std::span<const riffle_setting> rows);
  // More values, "a|b", of a setting that takes words.
  void add_words(std::string_view id, std::string_view words);
  // These selectors look at the setting too; bases: of those, if one builds on another.
  void add_readers(std::string_view id, uint32_t selectors, uint32_t bases);
  std::span<const riffle_setting> rows() const { return rows_; }

 private:
  riffle_setting& row(std::string_view id);

  std::vector<riffle_setting> rows_;
  std::deque<std::string> texts_;  // texts that rows point to
};
// The settings of published papers' selectors (select/papers). A build of the core alone has none:
// select/no_papers.cpp.
void add_papers(SettingsTable& table);

std::span<const riffle_setting> settings();
const riffle_setting* find_setting(std::string_view id);  // null: there is none

// Reads a member of the struct that the setting belongs to.
double setting_value(const riffle_setting& setting, const void* options);
void set_setting(const riffle_setting& setting, void* options, double value);
// Tells whether a value may be set as it will be held: false for NaN, and for a fraction of an
// integer.
bool setting_allows(const riffle_setting& setting, double value);

void set_defaults(riffle_options_kind kind, void* options);
// Throws Error(RIFFLE_BAD_ARGUMENT) for the first member out of its range.
void check_settings(riffle_options_kind kind, const void* options);
// The same for one value of a member of riffle_generate_options or of its sampling. The text names
// only the member: "top_p is 1.5, expected 0 to 1".
void check_answer_setting(std::string_view id, double value);

// text with each id in backquotes replaced by name(id); by the id itself if name is null or
// returns null. Other backquotes stay.
std::string name_settings(std::string_view text, riffle_setting_name_fn name);

}  // namespace riffle
