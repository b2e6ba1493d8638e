#include "cli/eval_settings.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "cli/args.h"
#include "cli/common.h"

namespace riffle::eval {
namespace {

using cli::Exit;
using cli::EXIT_USAGE;
using cli::text_of;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(separator, begin);
    std::string part = text.substr(begin, end == std::string::npos ? end : end - begin);
    const size_t first = part.find_first_not_of(" \t\n"), last = part.find_last_not_of(" \t\n");
    parts.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& expected) {
  throw Exit(EXIT_USAGE, key + "=" + value + ": expected " + expected);
}

double parse_number(const std::string& key, const std::string& value) {
  size_t used = 0;
  double x = std::numeric_limits<double>::quiet_NaN();
  try {
    x = std::stod(value, &used);
  } catch (const std::exception&) {
  }
  if (used != value.size() || value.empty() || !std::isfinite(x)) refuse(key, value, "a number");
  return x;
}

// ---- the fields of riffle_selection that a spec may set ----

void assign(float& to, const std::string& key, const std::string& value) {
  to = static_cast<float>(parse_number(key, value));
}

void assign(int32_t& to, const std::string& key, const std::string& value) {
  const double x = parse_number(key, value);
  if (!(x >= 0 && x <= 1e9) || x != std::floor(x)) refuse(key, value, "a whole number");
  to = static_cast<int32_t>(x);
}

// The enum value whose spelling is value; the library's enums count from 0, and spell gives "?" beyond their end.
template <typename Enum>
Enum parse_word(const std::string& key, const std::string& value, const char* (*spell)(Enum)) {
  std::string known;
  for (int i = 0; std::string(spell(static_cast<Enum>(i))) != "?"; ++i) {
    if (value == spell(static_cast<Enum>(i))) return static_cast<Enum>(i);
    known += (i ? ", " : "") + std::string(spell(static_cast<Enum>(i)));
  }
  refuse(key, value, "one of " + known);
}

struct Field {
  std::string name;
  bool is_number;
  std::function<void(riffle_selection&, const std::string& value)> set;
};

template <typename T>
Field number_field(const std::string& name, T riffle_selection::*member) {
  return {name, true, [=](riffle_selection& s, const std::string& value) { assign(s.*member, name, value); }};
}

template <typename Enum>
Field word_field(const std::string& name, Enum riffle_selection::*member, const char* (*spell)(Enum)) {
  return {name, false,
          [=](riffle_selection& s, const std::string& value) { s.*member = parse_word(name, value, spell); }};
}

// One line for each field; the help and the error texts list what stands here.
const std::vector<Field>& fields() {
  using S = riffle_selection;
  static const std::vector<Field> all = {
      number_field("epsilon", &S::epsilon),
      number_field("budget", &S::budget),
      number_field("microbatch", &S::microbatch),
      number_field("sink_blocks", &S::sink_blocks),
      number_field("window_blocks", &S::window_blocks),
      number_field("dense_layers", &S::dense_layers),
      number_field("lookahead", &S::lookahead),
      word_field("digest", &S::digest, cli::digest_name),
      word_field("gqa", &S::gqa, cli::gqa_name),
      word_field("stop", &S::stop, cli::stop_name),
      word_field("base", &S::base, cli::base_name),
      number_field("base_budget", &S::base_budget),
      number_field("top_p_attn", &S::top_p),
      number_field("share", &S::share),
      number_field("select_tokens", &S::select_tokens),
      number_field("init_tokens", &S::init_tokens),
      number_field("local_tokens", &S::local_tokens),
      word_field("vote", &S::vote, cli::vote_name),
      number_field("vote_scale", &S::vote_scale),
      number_field("cache_threshold", &S::cache_threshold),
      number_field("top_tokens", &S::top_tokens),
      number_field("alpha", &S::alpha),
      number_field("rate", &S::rate),
      number_field("decay", &S::decay),
      number_field("bypass", &S::bypass),
  };
  return all;
}

const Field& field_named(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  if (key == "stop_mode") key = "stop";  // as the flag is called
  for (const Field& f : fields()) {
    if (f.name == key) return f;
  }
  std::string known = sweep_fields();
  for (size_t at = 0; (at = known.find(' ', at)) != std::string::npos; at += 2) known.replace(at, 1, ", ");
  throw Exit(EXIT_USAGE, text_of("unknown field '%s'; known: %s", key.c_str(), known.c_str()));
}

// ---- one spec ----

struct Value {
  std::string text;
  bool starred;
};

Value value_of(std::string text) {
  const bool starred = !text.empty() && text.back() == '*';
  if (starred) text.pop_back();
  return {text, starred};
}

struct List {
  const Field* field;
  std::vector<Value> values;
  bool starred() const {
    return std::any_of(values.begin(), values.end(), [](const Value& v) { return v.starred; });
  }
};

std::vector<List> parse_lists(const std::string& text) {
  std::vector<List> lists;
  for (const std::string& word : split(text, ',')) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      lists.push_back({&field_named(split(word.substr(0, equals), '=')[0]), {}});
      lists.back().values.push_back(value_of(split(word.substr(equals + 1), '=')[0]));
    } else if (lists.empty()) {
      throw Exit(EXIT_USAGE, text_of("'%s': expected field=value", word.c_str()));
    } else {
      lists.back().values.push_back(value_of(word));
    }
  }
  return lists;
}

// The list whose values a curve runs along: of the numbers, the longest; the first of equals. lists.size(): none.
size_t curve_of(const std::vector<List>& lists) {
  size_t best = lists.size();
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].field->is_number) continue;
    if (best == lists.size() || lists[i].values.size() > lists[best].values.size()) best = i;
  }
  return best;
}

std::vector<Setting> parse_spec(const std::string& spec, const riffle_selection& base) {
  const size_t colon = spec.find(':');
  const std::string selector = split(spec.substr(0, colon), ':')[0];
  Setting first;
  first.label = first.series = selector;
  first.selection = base;
  first.selection.selector = parse_word("selector", selector, cli::selector_name);
  std::vector<List> lists;
  if (colon != std::string::npos) lists = parse_lists(spec.substr(colon + 1));
  first.paper_default = std::any_of(lists.begin(), lists.end(), [](const List& l) { return l.starred(); });
  const size_t curve = curve_of(lists);
  std::vector<Setting> settings = {first};
  for (size_t i = 0; i < lists.size(); ++i) {
    const List& list = lists[i];
    std::vector<Setting> grown;
    for (const Setting& s : settings) {
      for (const Value& value : list.values) {
        grown.push_back(s);
        Setting& g = grown.back();
        const std::string pair = list.field->name + "=" + value.text;
        list.field->set(g.selection, value.text);
        g.label += " " + pair;
        if (i == curve) g.point = pair;
        if (i != curve) g.series += " " + pair;
        if (list.starred() && !value.starred) g.paper_default = false;
      }
    }
    settings = std::move(grown);
  }
  return settings;
}

}  // namespace

Setting dense_setting(const riffle_selection& base) {
  Setting s;
  s.label = s.series = "dense";
  s.selection = base;
  s.selection.selector = RIFFLE_SELECTOR_DENSE;
  return s;
}

Setting flag_setting(const riffle_selection& base) {
  Setting s;
  s.label = s.series = cli::selector_name(base.selector);
  s.selection = base;
  if (base.selector == RIFFLE_SELECTOR_PSA) s.point = text_of("epsilon=%g", static_cast<double>(base.epsilon));
  if (base.selector == RIFFLE_SELECTOR_TOPK) s.point = text_of("budget=%g", static_cast<double>(base.budget));
  if (!s.point.empty()) s.label += " " + s.point;
  return s;
}

std::vector<Setting> parse_sweep(const std::string& text, const riffle_selection& base, const std::string& flag) {
  std::vector<Setting> all;
  try {
    for (const std::string& spec : split(text, ';')) {
      if (spec.empty()) continue;  // a trailing ';'
      const std::vector<Setting> settings = parse_spec(spec, base);
      all.insert(all.end(), settings.begin(), settings.end());
    }
  } catch (const Exit& e) {
    throw Exit(e.code(), flag + ": " + e.what());
  }
  if (all.empty()) throw Exit(EXIT_USAGE, flag + ": no setting given");
  return all;
}

std::vector<Setting> default_comparison() {
  constexpr const char* kSpecs =
      // PSA, section 6: epsilon 0.95 with ArkVale's cuboid-mean.
      "psa:epsilon=0.1,0.3,0.5,0.7,0.9,0.95*;"
      "psa:stop=veto,epsilon=0.3,0.5,0.7,0.9;"
      // SparseServe, section 4: 2048 tokens ranked by cuboid-mean.
      "topk:budget=0.02,0.05,0.1,0.2,0.4,2048*;"
      "topk:digest=quest,budget=0.02,0.05,0.1,0.2,0.4;"
      // Twilight, section 5: p 0.95 within a quarter of the KV (its base is Quest there).
      "twilight:digest=quest,top_p_attn=0.5,0.7,0.85,0.95*;"
      "twilight:base=all,top_p_attn=0.5,0.7,0.85,0.95;"
      // TokenSelect, section 5: 2048 tokens by the soft vote beside 128 first and 512 last ones, theta 0.9.
      "tokenselect:select_tokens=128,256,512,1024,2048*;"
      "tokenselect:vote=hard,select_tokens=128,512,2048;"
      // LFPS: gamma 0.95, bypass 0.85, alpha 0.2 or 0.3.
      "lfps:alpha=0.1,0.2*,0.3*,0.4;"
      "lfps:top_tokens=0.05,0.1,0.2;"
      "riffle:share=0.05,0.02,0.01,0.005,0.002";
  riffle_selection base;
  riffle_selection_defaults(&base);
  return parse_sweep(kSpecs, base, "--compare");
}

std::string sweep_fields() {
  std::string names;
  for (const Field& f : fields()) names += (names.empty() ? "" : " ") + f.name;
  return names;
}

std::vector<bool> named_settings(const std::vector<std::string>& names, const std::vector<Setting>& settings,
                                 const std::string& flag) {
  std::vector<bool> chosen(settings.size(), false);
  for (const std::string& name : names) {
    if (name == "none") continue;
    std::string label = name;
    if (label.ends_with('*')) label.pop_back();
    std::replace(label.begin(), label.end(), ':', ' ');
    std::replace(label.begin(), label.end(), ',', ' ');
    bool found = false;
    std::string known = "none";
    for (size_t i = 0; i < settings.size(); ++i) {
      if (settings[i].selection.selector == RIFFLE_SELECTOR_DENSE) continue;
      known += ", '" + settings[i].label + "'";
      if (settings[i].label == label) chosen[i] = found = true;
    }
    if (!found) throw Exit(EXIT_USAGE, flag + ": no setting '" + name + "'; known: " + known);
  }
  return chosen;
}

std::vector<bool> paper_settings(const std::vector<Setting>& settings) {
  std::vector<bool> chosen(settings.size(), false);
  for (size_t i = 0; i < settings.size(); ++i) {
    const riffle_selector selector = settings[i].selection.selector;
    if (selector == RIFFLE_SELECTOR_DENSE) continue;
    const auto same = [&](const Setting& s) { return s.selection.selector == selector; };
    const auto marked = [&](const Setting& s) { return same(s) && s.paper_default; };
    const auto first = std::find_if(settings.begin(), settings.end(), same) - settings.begin();
    const bool any = std::any_of(settings.begin(), settings.end(), marked);
    chosen[i] = any ? settings[i].paper_default : static_cast<size_t>(first) == i;
  }
  return chosen;
}

}  // namespace riffle::eval
