// The numbers of an answer, from the library's table of settings: as flags, as /set NAME VALUE and
// as fields of a batch.
#pragma once
#include <string>

#include "cli/args.h"
#include "cli/settings.h"

namespace riffle::cli {

inline double get_answer_setting(const CommonOptions& o, const riffle_setting& s) {
  return s.options == RIFFLE_OPTIONS_SAMPLING ? riffle_setting_get(&s, &o.sampling) : o.max_tokens;
}

// Takes a value if it is one of those expected; else false, and nothing is changed.
inline bool set_answer_setting(CommonOptions& o, const riffle_setting& s, const std::string& text) {
  if (s.options == RIFFLE_OPTIONS_SAMPLING) return set(s, &o.sampling, text);
  riffle_generate_options generate{};
  const bool taken = set(s, &generate, text);
  if (taken) o.max_tokens = generate.max_tokens;
  return taken;
}

}  // namespace riffle::cli
