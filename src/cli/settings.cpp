#include "cli/settings.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/args.h"
#include "cli/common.h"

namespace riffle::cli {
namespace {

// Longer lists of words go after the help text, not into the column of the flags.
constexpr size_t kShortWords = 12;

std::vector<std::string> words_of(const Facts& facts, const char* name) {
  const std::string words = facts.text(name);
  return words.empty() ? std::vector<std::string>() : split(words, '|');
}

SettingRow read_setting(const riffle_info* info) {
  const Facts f(info);
  SettingRow s;
  s.name = f.text("name");
  s.options = f.text("options");
  s.type = f.text("type");
  s.standard = f.text("default");
  s.words = words_of(f, "words");
  s.range = f.text("range");
  s.expected = f.text("expected");
  s.low = f.number("low");
  s.high = f.number("high");
  s.flag = f.text("flag");
  s.group = f.text("group");
  s.help = f.text("help");
  s.json = f.text("json");
  s.spec = f.text("spec");
  s.comparison = f.on("comparison");
  s.selectors = words_of(f, "selectors");
  s.bases = words_of(f, "bases");
  return s;
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Returns the name of a flag's value in the help.
std::string value_name(const SettingRow& s, bool listed) {
  if (!s.words.empty()) return listed ? "NAME" : joined(s.words, "|");
  return s.type == "number" ? "X" : s.type == "size" ? "SIZE" : "N";
}

}  // namespace

const std::vector<SettingRow>& all_settings() {
  static const std::vector<SettingRow> all = [] {
    std::vector<SettingRow> rows;
    for (size_t i = 0; const riffle_info* info = riffle_setting_at(i); ++i)
      rows.push_back(read_setting(info));
    return rows;
  }();
  return all;
}

std::vector<const SettingRow*> settings_of(std::string_view options) {
  std::vector<const SettingRow*> some;
  for (const SettingRow& s : all_settings())
    if (s.options == options) some.push_back(&s);
  return some;
}

const SettingRow& setting(std::string_view name) {
  for (const SettingRow& s : all_settings())
    if (s.name == name) return s;
  throw std::logic_error("there is no setting " + std::string(name));
}

const SettingRow* spec_setting(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  for (const SettingRow* s : settings_of("selection"))
    if (name == s->spec || name == s->json) return s;
  return nullptr;
}

std::string flag_of(const SettingRow& s) { return s.flag.substr(0, s.flag.find(',')); }

const char* flag_of_name(const char* name) {
  static const std::map<std::string, std::string> flags = [] {
    std::map<std::string, std::string> all;
    for (const SettingRow& s : all_settings()) all[s.name] = flag_of(s);
    return all;
  }();
  const auto at = flags.find(name);
  return at == flags.end() || at->second.empty() ? nullptr : at->second.c_str();
}

bool is_number(const SettingRow& s) {
  return s.words.empty() && (s.type == "number" || s.type == "integer" || s.type == "size");
}

Json setting_json(const SettingRow& s, const Options& options) {
  if (s.type == "switch" && s.words.empty()) return options.on(s.name);
  if (s.type == "number") return number(std::strtof(options.text(s.name).c_str(), nullptr));
  if (s.type == "size") return options.size(s.name);
  if (s.type == "integer") return options.count(s.name);
  return options.text(s.name);
}

Json settings_json(std::string_view kind, const Options& options) {
  Json json = Json::object();
  for (const SettingRow* s : settings_of(kind))
    if (!s->json.empty()) json[s->json] = setting_json(*s, options);
  return json;
}

bool known_to(const SettingRow& s, std::string_view selector) {
  return contains(s.selectors, selector);
}

bool read_by(const SettingRow& s, const Options& o) {
  return known_to(s, o.text("selector")) &&
         (!o.is("selector", "twilight") || contains(s.bases, o.text("base")));
}

Flag add_setting_flag(CLI::App& app, const SettingRow& s, Options& options) {
  if (s.type == "switch" && s.words.empty()) {
    // --no-pin turns pin off.
    const bool on = !s.flag.starts_with("--no-");
    return add_switch(
               app, s.flag, [&s, &options, on](bool given) { options.set(s.name, given == on); },
               s.help)
        .group(s.group);
  }
  const bool listed = joined(s.words, "|").size() > kShortWords;
  const std::string standard = options.text(s.name);
  return add_text(
             app, s.flag, [&s, &options](const std::string& value) { options.set(s.name, value); },
             listed ? s.help + ": " + joined(s.words) : s.help)
      .group(s.group)
      .value(value_name(s, listed))
      .standard(standard);
}

std::vector<Flag> add_setting_flags(CLI::App& app, std::string_view kind, Options& options,
                                    bool comparison) {
  std::vector<Flag> added;
  for (const SettingRow* s : settings_of(kind))
    if (!s->help.empty() && (comparison || !s->comparison))
      added.push_back(add_setting_flag(app, *s, options));
  return added;
}

}  // namespace riffle::cli
