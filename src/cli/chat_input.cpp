#include "cli/chat_input.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <type_traits>
#include <utility>

#include "cli/common.h"
#include "cli/sampling_range.h"
#include "cli/seed.h"

namespace riffle::cli {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kWithPath[] = {"/load ", "/open ", "/save "};
constexpr std::string_view kSet = "/set ", kThink = "/think ";

std::string with_home(const std::string& path) {
  if (!path.starts_with("~") || (path.size() > 1 && path[1] != '/')) return path;
  const char* const home = std::getenv("HOME");
  return home && *home ? home + path.substr(1) : path;
}

std::string without_backslashes(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i)
    out += text[i] == '\\' && i + 1 < text.size() ? text[++i] : text[i];
  return out;
}

// The files whose path begins with what was typed. A quote at its beginning is kept.
std::vector<std::string> complete_path(const std::string& typed) {
  const bool quoted = typed.starts_with('"') || typed.starts_with('\'');
  const std::string quote = quoted ? typed.substr(0, 1) : "";
  const std::string path = typed.substr(quote.size());
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "" : path.substr(0, slash + 1);
  const std::string begin = slash == path.npos ? path : path.substr(slash + 1);
  std::vector<std::string> words;
  std::error_code error;
  const fs::path where = folder.empty() ? "." : quote == "'" ? folder : with_home(folder);
  for (fs::directory_iterator at(where, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begin) || (begin.empty() && name.starts_with('.'))) continue;
    std::error_code unused;
    const bool is_folder = at->is_directory(unused);
    words.push_back(quote + folder + name + (is_folder ? "/" : quote));
  }
  return words;
}

// A setting of the sampler: its name, its range, and where its value is.
struct Setting {
  const char* name;
  const char* other_name;  // "" if it has none
  double low, high;
  bool whole;  // whole numbers only
  double (*get)(const CommonOptions&);
  void (*set)(CommonOptions&, double);
};

// Of a member of CommonOptions::sampling.
template <auto member>
constexpr Setting of(const char* name, const char* other_name = "") {
  using Value = std::remove_reference_t<decltype(std::declval<riffle_sampling&>().*member)>;
  return {name,
          other_name,
          range_of<member>.low,
          range_of<member>.high,
          std::is_integral_v<Value>,
          [](const CommonOptions& o) { return static_cast<double>(o.sampling.*member); },
          [](CommonOptions& o, double v) { o.sampling.*member = static_cast<Value>(v); }};
}

const Setting kSettings[] = {
    of<&riffle_sampling::temperature>("temp", "temperature"),
    of<&riffle_sampling::top_k>("top-k"),
    of<&riffle_sampling::top_p>("top-p"),
    of<&riffle_sampling::min_p>("min-p"),
    of<&riffle_sampling::xtc_probability>("xtc-probability"),
    of<&riffle_sampling::xtc_threshold>("xtc-threshold"),
    of<&riffle_sampling::repeat_penalty>("repeat-penalty"),
    of<&riffle_sampling::repeat_last_n>("repeat-last-n"),
    of<&riffle_sampling::frequency_penalty>("frequency-penalty"),
    of<&riffle_sampling::presence_penalty>("presence-penalty"),
    of<&riffle_sampling::dry_multiplier>("dry-multiplier"),
    of<&riffle_sampling::dry_base>("dry-base"),
    of<&riffle_sampling::dry_allowed_length>("dry-allowed-length"),
    of<&riffle_sampling::dry_penalty_last_n>("dry-penalty-last-n"),
    {"max-tokens", "n", -1, kMaxInt, true,
     [](const CommonOptions& o) { return static_cast<double>(o.max_tokens); },
     [](CommonOptions& o, double v) { o.max_tokens = static_cast<int32_t>(v); }}};

void set_seed(CommonOptions& options, const std::string& value) {
  uint64_t seed = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, seed);
  if (value == "-1") seed = draw_seed();
  else if (error != std::errc() || stop != end)
    throw Exit(EXIT_RUN,
               text_of("/set seed: found '%s', expected a whole number from 0 to %s, or -1 for "
                       "a random seed",
                       value.c_str(), std::to_string(UINT64_MAX).c_str()));
  options.sampling.seed = seed;
}

std::string setting_names() {
  std::string names;
  for (const Setting& s : kSettings) names += std::string(s.name) + ", ";
  return names + "seed";
}

}  // namespace

const std::vector<std::string>& chat_commands() {
  static const std::vector<std::string> commands = {"/clear", "/exit",   "/help", "/load",
                                                    "/open",  "/retry",  "/save", "/set",
                                                    "/stats", "/system", "/think"};
  return commands;
}

std::string typed_path(const std::string& text) {
  const char quote = text.empty() ? 0 : text[0];
  if (text.size() > 1 && (quote == '"' || quote == '\'') && text.back() == quote) {
    const std::string inside = text.substr(1, text.size() - 2);
    return quote == '"' ? with_home(inside) : inside;
  }
  const std::string path = with_home(text);
  std::error_code error;
  return fs::exists(path, error) ? path : without_backslashes(path);
}

Completion complete_chat(const std::string& before_cursor) {
  Completion found;
  const auto offer = [&](size_t from, const std::vector<std::string>& words) {
    found.from = from;
    const std::string begin = before_cursor.substr(from);
    for (const std::string& word : words)
      if (word.starts_with(begin)) found.words.push_back(word);
  };
  const auto begins = [&](std::string_view command) { return before_cursor.starts_with(command); };
  if (std::any_of(std::begin(kWithPath), std::end(kWithPath), begins)) {
    const size_t from = before_cursor.find_first_not_of(' ', before_cursor.find(' '));
    found.from = from == before_cursor.npos ? before_cursor.size() : from;
    found.words = complete_path(before_cursor.substr(found.from));
  } else if (before_cursor.starts_with(kSet)) {
    std::vector<std::string> names = {"seed"};
    for (const Setting& s : kSettings) names.push_back(s.name);
    offer(kSet.size(), names);
  } else if (before_cursor.starts_with(kThink)) {
    std::vector<std::string> levels(std::begin(kEfforts), std::end(kEfforts));
    levels.insert(levels.end(), {"off", "on"});
    offer(kThink.size(), levels);
  } else if (before_cursor.starts_with("/") && before_cursor.find(' ') == before_cursor.npos) {
    offer(0, chat_commands());
  }
  return found;
}

std::string chat_settings(const CommonOptions& options) {
  std::string text;
  for (const Setting& s : kSettings) text += text_of("%-10s  %g\n", s.name, s.get(options));
  return text + text_of("%-10s  %s\n", "seed", std::to_string(options.sampling.seed).c_str());
}

bool set_chat_setting(CommonOptions& options, std::string_view name, const std::string& value) {
  std::string word(name);
  std::replace(word.begin(), word.end(), '_', '-');
  if (word == "seed") {
    set_seed(options, value);
    return true;
  }
  for (const Setting& s : kSettings) {
    if (word != s.name && word != s.other_name) continue;
    double v = 0;
    const char* const end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, v);
    const bool number = error == std::errc() && stop == end && v >= s.low && v <= s.high;
    if (!number || (s.whole && v != std::floor(v)))
      throw Exit(EXIT_RUN, text_of("/set %s: found '%s', expected a %snumber from %.10g to %.10g",
                                   s.name, value.c_str(), s.whole ? "whole " : "", s.low, s.high));
    s.set(options, v);
    return false;
  }
  throw Exit(EXIT_RUN, text_of("/set: found '%s', expected one of %s", std::string(name).c_str(),
                               setting_names().c_str()));
}

}  // namespace riffle::cli
