#include "cli/settings.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "cli/args.h"

namespace riffle::cli {
namespace {

// Longer lists of words stand behind the text of the help, not in the column of the flags.
constexpr size_t kShortWords = 12;

Unit unit_of(const riffle_setting& s) {
  return s.type == RIFFLE_MEMBER_UINT64 ? Unit::BYTES : Unit::COUNT;
}

// 0.1, 2048, 2K; of bytes also 12GiB.
std::optional<double> number_of(const riffle_setting& s, const std::string& text) {
  if (s.type == RIFFLE_MEMBER_FLOAT) {
    double v = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, v);
    if (error == std::errc() && stop == end) return v;
  }
  if (s.low < 0 && text.starts_with("-")) {
    int64_t v = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, v);
    if (error == std::errc() && stop == end) return static_cast<double>(v);
  }
  const auto n = size_of(text, unit_of(s));
  if (!n) return std::nullopt;
  return static_cast<double>(*n);
}

bool words_are_values(const riffle_setting& s) { return s.words[0] >= '0' && s.words[0] <= '9'; }

std::optional<double> value_of(const riffle_setting& s, const std::string& text) {
  if (!*s.words) return number_of(s, text);
  const std::vector<std::string> words = split(s.words, '|');
  const auto word = std::find(words.begin(), words.end(), text);
  if (word == words.end()) return std::nullopt;
  if (words_are_values(s)) return number_of(s, text);
  return s.low + static_cast<double>(word - words.begin());
}

std::string names_in(uint32_t bits, const riffle_setting& words) {
  std::vector<std::string> names;
  for (int i = 0; i < 32; ++i)
    if (bits >> i & 1) names.push_back(word_of(words, i));
  return joined(names);
}

}  // namespace

std::vector<const riffle_setting*> settings_of(riffle_options_kind kind) {
  std::vector<const riffle_setting*> all;
  for (size_t i = 0; const riffle_setting* s = riffle_setting_at(i); ++i)
    if (s->options == kind) all.push_back(s);
  return all;
}

const riffle_setting& setting(const char* id) {
  for (size_t i = 0; const riffle_setting* s = riffle_setting_at(i); ++i)
    if (std::string_view(id) == s->id) return *s;
  throw std::logic_error(std::string("there is no setting ") + id);
}

const riffle_setting* spec_setting(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  for (const riffle_setting* s : settings_of(RIFFLE_OPTIONS_SELECTION))
    if (name == s->spec || name == s->json) return s;
  return nullptr;
}

std::string flag_of(const riffle_setting& s) {
  const std::string flags = s.flag;
  return flags.substr(0, flags.find(','));
}

const char* flag_of_id(const char* id) {
  static const std::map<std::string, std::string> flags = [] {
    std::map<std::string, std::string> all;
    for (size_t i = 0; const riffle_setting* s = riffle_setting_at(i); ++i)
      all[s->id] = flag_of(*s);
    return all;
  }();
  const auto at = flags.find(id);
  return at == flags.end() || at->second.empty() ? nullptr : at->second.c_str();
}

bool is_number(const riffle_setting& s) { return !*s.words && s.type != RIFFLE_MEMBER_BOOL; }

std::string expected(const riffle_setting& s) {
  if (*s.words) return "one of " + joined(split(s.words, '|'));
  if (s.type == RIFFLE_MEMBER_UINT64)
    return std::string("a size ") + size_examples(Unit::BYTES) + ", " + s.range;
  if (s.type == RIFFLE_MEMBER_FLOAT) return std::string("a number, ") + s.range;
  const std::string examples = size_examples(Unit::COUNT);
  return "a whole number" + (s.high >= 32768 ? " " + examples : "") + ", " + s.range;
}

bool set(const riffle_setting& s, void* options, const std::string& text) {
  const std::optional<double> v = value_of(s, text);
  return v && riffle_setting_set(&s, options, *v);
}

const char* word_of(const riffle_setting& s, double value) {
  static const std::map<std::string, std::vector<std::string>> words = [] {
    std::map<std::string, std::vector<std::string>> all;
    for (size_t i = 0; const riffle_setting* x = riffle_setting_at(i); ++i)
      all[x->id] = split(x->words, '|');
    return all;
  }();
  const std::vector<std::string>& own = words.at(s.id);
  const double index = value - s.low;
  if (!(index >= 0 && index < static_cast<double>(own.size()))) return "?";
  return own[static_cast<size_t>(index)].c_str();
}

std::string text(const riffle_setting& s, const void* options) {
  const double v = riffle_setting_get(&s, options);
  if (*s.words && !words_are_values(s)) return word_of(s, v);
  return s.type == RIFFLE_MEMBER_FLOAT ? text_of("%g", v) : text_of("%.0f", v);
}

Json settings_json(riffle_options_kind kind, const void* options) {
  Json json = Json::object();
  for (const riffle_setting* s : settings_of(kind)) {
    if (!*s->json) continue;
    const double v = riffle_setting_get(s, options);
    if (*s->words && !words_are_values(*s)) json[s->json] = word_of(*s, v);
    else if (s->type == RIFFLE_MEMBER_BOOL) json[s->json] = v != 0;
    else if (s->type == RIFFLE_MEMBER_FLOAT) json[s->json] = number(static_cast<float>(v));
    else if (s->type == RIFFLE_MEMBER_UINT64) json[s->json] = static_cast<uint64_t>(v);
    else json[s->json] = static_cast<int64_t>(v);
  }
  return json;
}

bool known_to(const riffle_setting& s, riffle_selector selector) {
  return s.selectors >> selector & 1;
}

bool read_by(const riffle_setting& s, const riffle_selection& selection) {
  return known_to(s, selection.selector) &&
         (selection.selector != RIFFLE_SELECTOR_TWILIGHT || (s.bases >> selection.base & 1));
}

std::string selectors_of(const riffle_setting& s) {
  return names_in(s.selectors, setting("selection.selector"));
}
std::string bases_of(const riffle_setting& s) {
  return names_in(s.bases, setting("selection.base"));
}

CLI::Option* add_setting_flag(CLI::App& app, const riffle_setting& s, void* options) {
  if (s.type == RIFFLE_MEMBER_BOOL && !*s.words)
    return app
        .add_flag_function(
            s.flag, [&s, options](int64_t n) { riffle_setting_set(&s, options, n > 0); }, s.help)
        ->group(s.group);
  const bool listed = std::string(s.words).size() > kShortWords;
  return app
      .add_option_function<std::string>(
          s.flag,
          [&s, options](const std::string& value) {
            const std::string why = size_without_unit(value, unit_of(s));
            if (!why.empty()) throw CLI::ValidationError(flag_of(s), why);
            if (!set(s, options, value))
              throw CLI::ValidationError(flag_of(s), "'" + value + "': expected " + expected(s));
          },
          listed ? s.help + (": " + joined(split(s.words, '|'))) : s.help)
      ->group(s.group)
      ->type_name(*s.words                         ? (listed ? "NAME" : s.words)
                  : s.type == RIFFLE_MEMBER_FLOAT  ? "X"
                  : s.type == RIFFLE_MEMBER_UINT64 ? "SIZE"
                                                   : "N")
      ->default_str(text(s, options));
}

std::vector<CLI::Option*> add_setting_flags(CLI::App& app, riffle_options_kind kind, void* options,
                                            bool comparison) {
  std::vector<CLI::Option*> added;
  for (const riffle_setting* s : settings_of(kind))
    if (*s->help && (comparison || !s->comparison))
      added.push_back(add_setting_flag(app, *s, options));
  return added;
}

}  // namespace riffle::cli
