// The settings that `riffle eval` compares, and their notation, such as
// "psa:epsilon=0.3,0.5;topk:budget=0.05".
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/settings.h"
#include "riffle.h"

namespace riffle::eval {

struct Setting {
  std::string label;  // "psa stop=veto epsilon=0.3"
  cli::Options selection;
  // For curves: settings of one series differ only in one number, which `point` names.
  std::string series;  // "psa stop=veto"
  std::string point;   // "epsilon=0.3"; empty: the series is one setting
  // `prefill_share` of its prompts, which choose key tiles; empty: dense prompts.
  std::optional<double> prefill_share;
  bool paper_default = false;  // as the paper that the selector is from runs it
};

// For each share, appends a copy of every setting whose prompts choose key tiles with that
// `prefill_share`. With share 0 prompts read all key tiles. shares: "0.02,0.01". Throws
// cli::Exit(EXIT_USAGE), whose text names --prefill-shares. Requires: settings[0] is dense.
void add_prefill_shares(std::vector<Setting>& settings, const std::string& shares);

Setting dense_setting(const cli::Options& base);
// Returns the one setting that the shared flags describe.
Setting flag_setting(const cli::Options& base);

// Values of the shared flags, and which of them were given.
struct SelectionFlags {
  cli::Options selection;
  std::vector<const cli::SettingRow*> given;
};

// Parses a text such as "psa:epsilon=0.3,0.5,stop=veto;topk:budget=0.02,0.05". ';' separates specs.
// A spec is a selector and its fields with their values; a word without '=' is one more value of
// the field before it. Several lists in one spec give all combinations. Values that a spec leaves
// out are taken from flags. A '*' after a value marks its settings as the paper's defaults
// ("epsilon=0.9,0.95*"). Throws cli::Exit(EXIT_USAGE), whose text names flag, also for a field that
// the selector does not read, and for a given flag that no setting uses.
std::vector<Setting> parse_sweep(const std::string& text, const SelectionFlags& flags,
                                 const std::string& flag = "--sweep");

// Returns the settings of --compare without a spec: every selector at several settings, among them
// its paper's defaults (no longer marked as such if a flag changes them).
std::vector<Setting> default_comparison(const SelectionFlags& flags);

// Returns the fields of a spec: "digest, gqa, ...".
std::string sweep_fields();

// Tells which of the settings are chosen by names: labels, specs of one setting
// ("psa:epsilon=0.3"), or "none". Dense is never chosen. Throws cli::Exit(EXIT_USAGE) for an
// unknown name.
std::vector<bool> named_settings(const std::vector<std::string>& names,
                                 const std::vector<Setting>& settings, const std::string& flag);
// Chooses each selector's settings that are marked as its paper's; if none is, its first setting.
std::vector<bool> paper_settings(const std::vector<Setting>& settings);

}  // namespace riffle::eval
