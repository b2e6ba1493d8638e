// The settings of riffle_selection as a user writes them: one list, from which the shared flags and
// the specs of `riffle eval` are made. What a value may be, and which selectors read it, the
// library says (riffle_selection_get_field).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "riffle.h"

namespace riffle::cli {

struct SelectionSetting {
  std::string name;  // in specs: "top_p_attn"
  std::string flag;  // "--top-p-attn"
  std::string help;
  std::string type;  // of its value, for the help: X, N or the words
  bool is_number;
  riffle_selection_field field;
  std::string expected;  // "a number, more than 0, at most 1", "one of soft, logits, hard"
  // Takes a value if it is one of those expected; else false, and nothing is changed.
  std::function<bool(riffle_selection&, const std::string&)> set;
  std::function<std::string(const riffle_selection&)> text;

  bool known_to(riffle_selector selector) const { return field.selectors >> selector & 1; }
  // Whether a step under this selection looks at it: twilight leaves out some with some bases.
  bool read_by(const riffle_selection& s) const {
    return known_to(s.selector) &&
           (s.selector != RIFFLE_SELECTOR_TWILIGHT || (field.bases >> s.base & 1));
  }
  std::string selectors() const;  // "psa, topk"
  std::string bases() const;      // "topk, psa"
};

// In the order of the help. The selector itself is the first.
const std::vector<SelectionSetting>& selection_settings();
// By a spec's or a flag's spelling of the name ("top_p_attn", "top-p-attn"); null: unknown.
const SelectionSetting* selection_setting(std::string name);

}  // namespace riffle::cli
