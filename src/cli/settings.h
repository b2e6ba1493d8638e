// The library's table of settings (riffle_setting_at) as users of the command line meet it: flags,
// the specs of `riffle eval`, JSON, and the names in errors.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/text.h"
#include "riffle.h"

namespace riffle::cli {

// In the order of the table. Those of the selection begin with the selector itself.
std::vector<const riffle_setting*> settings_of(riffle_options_kind kind);
const riffle_setting& setting(const char* id);
// By the spelling of a spec or a flag ("top_p_attn", "top-p-attn"); null: unknown.
const riffle_setting* spec_setting(std::string name);

std::string flag_of(const riffle_setting& setting);  // "--epsilon", "-c"
// A riffle_setting_name_fn: the flag that sets it.
const char* flag_of_id(const char* id);

bool is_number(const riffle_setting& setting);        // not one of some words
std::string expected(const riffle_setting& setting);  // "a number, more than 0, at most 1"
// Takes a value if it is one of those expected; else false, and nothing is changed.
bool set(const riffle_setting& setting, void* options, const std::string& text);
std::string text(const riffle_setting& setting, const void* options);
// The word that stands for a value, "?" if there is none.
const char* word_of(const riffle_setting& setting, double value);
// {"name": value, ...} of the members that have a JSON name.
Json settings_json(riffle_options_kind kind, const void* options);

bool known_to(const riffle_setting& setting, riffle_selector selector);
// Whether a step under this selection looks at it: twilight leaves out some with some bases.
bool read_by(const riffle_setting& setting, const riffle_selection& selection);
std::string selectors_of(const riffle_setting& setting);  // "psa, topk"
std::string bases_of(const riffle_setting& setting);      // "topk, psa"

// The flag of a setting; options: the struct that it is a member of, as its defaults left it.
CLI::Option* add_setting_flag(CLI::App& app, const riffle_setting& setting, void* options);
// Flags of all settings of the kind; those that are only for comparison, if it is asked for.
std::vector<CLI::Option*> add_setting_flags(CLI::App& app, riffle_options_kind kind, void* options,
                                            bool comparison);

}  // namespace riffle::cli
