// The table of settings: every member of riffle_selection, riffle_context_options and
// riffle_scheduler_options that a user may choose, and the numbers of riffle_generate_options, with
// its range, default and names. The library takes its defaults and checks from it; programs read it
// with riffle_setting_at.
//
// Texts of errors and notices name a setting by its id in backquotes ("`gpu_mem` is 1 MiB").
// name_settings turns the ids into the names that the caller knows.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "riffle.h"

namespace riffle {

// The longest context, the most sessions; block_layout.h has them in blocks and sequences.
inline constexpr double kMostContext = 1 << 28, kMostSessions = 1 << 20;

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
