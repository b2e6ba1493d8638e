#include "measure/commands/eval/settings.h"

#include <algorithm>

#include "cli/args.h"
#include "cli/common.h"

namespace riffle::eval {
namespace {

using cli::Exit;
using cli::EXIT_USAGE;
using cli::joined;
using cli::split;
using cli::text_of;

[[noreturn]] void refuse(const std::string& key, const std::string& value,
                         const std::string& expected) {
  throw Exit(EXIT_USAGE, key + "=" + value + ": expected " + expected);
}

const cli::SettingRow& field_named(const std::string& key) {
  const cli::SettingRow* field = cli::spec_setting(key);
  if (field && field != &cli::setting("selector")) return *field;
  throw Exit(EXIT_USAGE,
             text_of("unknown field '%s'; known: %s", key.c_str(), sweep_fields().c_str()));
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
  const cli::SettingRow* field;
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

// Returns the list over whose values a curve runs: the longest list of numbers, and the first of
// equally long ones. lists.size(): there is none.
size_t curve_of(const std::vector<List>& lists) {
  size_t best = lists.size();
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!cli::is_number(*lists[i].field)) continue;
    if (best == lists.size() || lists[i].values.size() > lists[best].values.size()) best = i;
  }
  return best;
}

// Refuses values of a spec that none of its settings reads: reports would show them as if they had
// been tried.
void check_fields(const std::vector<List>& lists, const std::vector<Setting>& settings) {
  const std::string selector = settings[0].selection.text("selector");
  for (const List& list : lists) {
    const cli::SettingRow& f = *list.field;
    const bool read = std::any_of(settings.begin(), settings.end(),
                                  [&](const Setting& s) { return cli::read_by(f, s.selection); });
    if (!cli::known_to(f, selector))
      throw Exit(EXIT_USAGE, text_of("%s is not a field of %s, but of %s", f.spec.c_str(),
                                     selector.c_str(), joined(f.selectors).c_str()));
    if (!read)
      throw Exit(EXIT_USAGE, text_of("%s is a field of %s only with base %s", f.spec.c_str(),
                                     selector.c_str(), joined(f.bases).c_str()));
  }
}

// A flag that is given together with a list of specs.
struct Given {
  const cli::SettingRow* flag;
  bool read = false, used = false;  // some setting reads it; some setting takes it from the flag
};

std::vector<Setting> parse_spec(const std::string& spec, const cli::Options& base, bool is_standard,
                                std::vector<Given>& given) {
  const size_t colon = spec.find(':');
  const std::string selector = split(spec.substr(0, colon), ':')[0];
  Setting first;
  first.label = first.series = selector;
  first.selection = base;
  const cli::SettingRow& selectors = cli::setting("selector");
  if (!first.selection.accepts("selector", selector))
    refuse("selector", selector, selectors.expected);
  std::vector<List> lists;
  if (colon != std::string::npos) lists = parse_lists(spec.substr(colon + 1));
  first.paper_default =
      std::any_of(lists.begin(), lists.end(), [](const List& l) { return l.starred(); });
  const size_t curve = curve_of(lists);
  std::vector<Setting> settings = {first};
  for (size_t i = 0; i < lists.size(); ++i) {
    const List& list = lists[i];
    std::vector<Setting> grown;
    for (const Setting& s : settings) {
      for (const Value& value : list.values) {
        grown.push_back(s);
        Setting& g = grown.back();
        const std::string pair = list.field->spec + ("=" + value.text);
        if (!g.selection.accepts(list.field->name, value.text))
          refuse(list.field->spec, value.text, list.field->expected);
        g.label += " " + pair;
        if (i == curve) g.point = pair;
        if (i != curve) g.series += " " + pair;
        if (list.starred() && !value.starred) g.paper_default = false;
      }
    }
    settings = std::move(grown);
  }
  check_fields(lists, settings);
  for (Given& g : given) {
    const bool own =
        std::any_of(lists.begin(), lists.end(), [&](const List& l) { return l.field == g.flag; });
    for (Setting& s : settings) {
      if (!cli::read_by(*g.flag, s.selection)) continue;
      g.read = true;
      if (own) continue;
      g.used = true;
      // The standard list's stars mark the papers' settings. This setting now differs from them.
      if (is_standard && s.selection.text(g.flag->name) != g.flag->standard)
        s.paper_default = false;
    }
  }
  return settings;
}

std::vector<Setting> parse_specs(const std::string& text, const SelectionFlags& flags,
                                 const std::string& flag, bool is_standard) {
  std::vector<Setting> all;
  std::vector<Given> given;
  for (const cli::SettingRow* f : flags.given) given.push_back({f});
  try {
    for (const std::string& spec : split(text, ';')) {
      if (spec.empty()) continue;  // a trailing ';'
      const std::vector<Setting> settings = parse_spec(spec, flags.selection, is_standard, given);
      all.insert(all.end(), settings.begin(), settings.end());
    }
  } catch (const Exit& e) {
    throw Exit(e.code(), flag + ": " + e.what());
  }
  if (all.empty()) throw Exit(EXIT_USAGE, flag + ": no setting given");
  for (const Given& g : given) {
    const char* list = is_standard ? "--compare's own list" : flag.c_str();
    if (g.flag == &cli::setting("selector"))
      throw Exit(
          EXIT_USAGE,
          text_of("--selector: it has no effect with %s, whose settings name their selectors",
                  list));
    if (!g.read)
      throw Exit(EXIT_USAGE,
                 text_of("%s: no setting of %s reads it; it is for %s",
                         cli::flag_of(*g.flag).c_str(), list, joined(g.flag->selectors).c_str()));
    if (!g.used)
      throw Exit(EXIT_USAGE, text_of("%s: all settings of %s that read it set %s themselves%s",
                                     cli::flag_of(*g.flag).c_str(), list, g.flag->spec.c_str(),
                                     is_standard ? ": give --compare a SPEC" : ""));
  }
  return all;
}

}  // namespace

Setting dense_setting(const cli::Options& base) {
  Setting s;
  s.label = s.series = "dense";
  s.selection = base;
  s.selection.set("selector", "dense");
  s.selection.set("positions", "true");  // only tokenselect has others
  return s;
}

void add_prefill_shares(std::vector<Setting>& settings, const std::string& shares) {
  const cli::SettingRow& row = cli::setting("prefill-share");
  const std::vector<Setting> plain = settings;
  for (const std::string& text : split(shares, ',')) {
    cli::Options options = plain[0].selection;
    if (!options.accepts("prefill-share", text))
      throw Exit(EXIT_USAGE, "--prefill-shares: found '" + text + "', expected " + row.expected);
    options.set("prefill-share", text);
    for (Setting s : plain) {
      s.prefill_share = options.number("prefill-share");
      s.label += " prompt=" + text;
      s.series += " prompt=" + text;
      settings.push_back(std::move(s));
    }
  }
}

Setting flag_setting(const cli::Options& base) {
  Setting s;
  s.label = s.series = base.text("selector");
  s.selection = base;
  if (base.is("selector", "psa")) s.point = text_of("epsilon=%g", base.number("epsilon"));
  if (base.is("selector", "topk")) s.point = text_of("budget=%g", base.number("budget"));
  if (!s.point.empty()) s.label += " " + s.point;
  return s;
}

std::vector<Setting> parse_sweep(const std::string& text, const SelectionFlags& flags,
                                 const std::string& flag) {
  return parse_specs(text, flags, flag, false);
}

std::vector<Setting> default_comparison(const SelectionFlags& flags) {
  constexpr const char* kSpecs =
      // PSA, section 6: epsilon 0.95 with ArkVale's cuboid-mean.
      "psa:epsilon=0.1,0.3,0.5,0.7,0.9,0.95*;"
      "psa:stop=veto,epsilon=0.3,0.5,0.7,0.9;"
      // Progressive stopping without the errors of digests: key codes, and every query head counts.
      "psa:rank=codes,gqa=union,epsilon=0.5,0.8,0.95;"
      // SparseServe, section 4: 2048 tokens ranked by cuboid-mean.
      "topk:budget=0.02,0.05,0.1,0.2,0.4,2048*;"
      "topk:digest=quest,budget=0.02,0.05,0.1,0.2,0.4;"
      "topk:rank=codes,budget=0.05,0.1,0.2;"
      // Twilight, section 5: p 0.95 within a quarter of the KV (its base is Quest there).
      "twilight:digest=quest,top_p_attn=0.5,0.7,0.85,0.95*;"
      "twilight:base=all,top_p_attn=0.5,0.7,0.85,0.95;"
      // TokenSelect, section 5: 2048 tokens by the soft vote plus the first 128 and the last 512
      // tokens, theta 0.9.
      "tokenselect:select_tokens=128,256,512,1024,2048*;"
      "tokenselect:vote=hard,select_tokens=128,512,2048;"
      // LFPS: gamma 0.95, bypass 0.85, alpha 0.2 or 0.3.
      "lfps:alpha=0.1,0.2*,0.3*,0.4;"
      "lfps:top_tokens=0.05,0.1,0.2;"
      "share:share=0.05,0.02,0.01,0.005,0.002";
  return parse_specs(kSpecs, flags, "--compare", true);
}

std::string sweep_fields() {
  std::vector<std::string> names;
  for (const cli::SettingRow* f : cli::settings_of("selection"))
    if (f != &cli::setting("selector")) names.push_back(f->spec);
  return joined(names);
}

std::vector<bool> named_settings(const std::vector<std::string>& names,
                                 const std::vector<Setting>& settings, const std::string& flag) {
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
      if (settings[i].selection.is("selector", "dense")) continue;
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
    const std::string selector = settings[i].selection.text("selector");
    if (selector == "dense") continue;
    const auto same = [&](const Setting& s) { return s.selection.is("selector", selector); };
    const auto marked = [&](const Setting& s) { return same(s) && s.paper_default; };
    const auto first = std::find_if(settings.begin(), settings.end(), same) - settings.begin();
    const bool any = std::any_of(settings.begin(), settings.end(), marked);
    chosen[i] = any ? settings[i].paper_default : static_cast<size_t>(first) == i;
  }
  return chosen;
}

}  // namespace riffle::eval
