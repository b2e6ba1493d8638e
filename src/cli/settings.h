// The library's table of settings (riffle_setting_at) as users of the command line see it: flags,
// the specs of `riffle eval`, JSON, and the names in errors.
#pragma once
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/options.h"
#include "cli/text.h"

namespace riffle::cli {

// A row of the table. Texts that do not apply are "".
struct SettingRow {
  std::string name;  // name of the option: "epsilon", "gpu-mem"
  std::string
      options;  // options that it belongs to: "context", "selection", "scheduler", "sampling", ...
  std::string type;  // "switch", "integer", "size", "number", "word" or "text"
  std::string standard;
  std::vector<std::string> words;  // the values by name, or the numbers that are allowed
  std::string range, expected;     // "more than 0, at most 1"; "a number, more than 0, at most 1"
  double low = 0, high = 0;
  std::string flag;  // "-c,--ctx"
  std::string group, help, json, spec;
  bool comparison = false;
  std::vector<std::string> selectors, bases;
};

// In the order of the table. The selection's settings begin with the selector itself.
const std::vector<SettingRow>& all_settings();
std::vector<const SettingRow*> settings_of(std::string_view options);
const SettingRow& setting(std::string_view name);
// Finds a setting by the spelling of a spec or a flag ("top_p_attn", "top-p-attn"); null: unknown.
const SettingRow* spec_setting(std::string name);

std::string flag_of(const SettingRow& setting);  // "--epsilon", "-c"
// A riffle_setting_name_fn: returns the flag of a setting.
const char* flag_of_name(const char* name);

bool is_number(const SettingRow& setting);  // true if it takes any number of a range
// Returns {"name": value, ...} for the settings that have a JSON name.
Json settings_json(std::string_view kind, const Options& options);
Json setting_json(const SettingRow& setting, const Options& options);

bool known_to(const SettingRow& setting, std::string_view selector);
// Returns whether a step with this selection reads the setting: with some bases, twilight does not
// read all of its settings.
bool read_by(const SettingRow& setting, const Options& selection);

// Adds the flag of a setting, with the default that the options have now.
Flag add_setting_flag(CLI::App& app, const SettingRow& setting, Options& options);
// Adds flags for all settings of the kind; settings only for comparison are included if
// `comparison` is true.
std::vector<Flag> add_setting_flags(CLI::App& app, std::string_view kind, Options& options,
                                    bool comparison);

}  // namespace riffle::cli
