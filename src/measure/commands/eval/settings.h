// The settings that `riffle eval` compares, and how they are written:
// "psa:epsilon=0.3,0.5;topk:budget=0.05".
#pragma once
#include <string>
#include <vector>

#include "cli/settings.h"
#include "riffle.h"

namespace riffle::eval {

struct Setting {
  std::string label;  // "psa stop=veto epsilon=0.3"
  cli::Options selection;
  // For curves: settings of one series differ only in one number, which point names.
  std::string series;          // "psa stop=veto"
  std::string point;           // "epsilon=0.3"; empty: the series is one setting
  bool paper_default = false;  // as the paper that the selector is from runs it
};

Setting dense_setting(const cli::Options& base);
// The one setting that the shared flags describe.
Setting flag_setting(const cli::Options& base);

// Values of the shared flags, and which of them were given.
struct SelectionFlags {
  cli::Options selection;
  std::vector<const cli::SettingRow*> given;
};

// "psa:epsilon=0.3,0.5,stop=veto;topk:budget=0.02,0.05": specs parted by ';', each a selector and
// pairs of one of its fields and its values; a word without '=' is one more value of the field
// before it. Several lists in one spec give all combinations. Values that a spec leaves out are
// taken from flags. A '*' after values marks the settings that have them as the paper's defaults
// ("epsilon=0.9,0.95*"). Throws cli::Exit(EXIT_USAGE), whose text names flag; also for a field that
// the selector does not look at, and for a flag given that no setting takes up.
std::vector<Setting> parse_sweep(const std::string& text, const SelectionFlags& flags,
                                 const std::string& flag = "--sweep");

// Returns the settings of --compare without a spec: every selector at several settings, its paper's
// defaults among them (no longer marked so where a flag changes them).
std::vector<Setting> default_comparison(const SelectionFlags& flags);

// "digest, gqa, ...": the fields of a spec.
std::string sweep_fields();

// Tells which of the settings are chosen by names: labels, specs of one setting
// ("psa:epsilon=0.3"), or "none". Dense never is. Throws cli::Exit(EXIT_USAGE) for an unknown one.
std::vector<bool> named_settings(const std::vector<std::string>& names,
                                 const std::vector<Setting>& settings, const std::string& flag);
// Each selector as its paper runs it; the first setting of a selector that has no marked one.
std::vector<bool> paper_settings(const std::vector<Setting>& settings);

}  // namespace riffle::eval
