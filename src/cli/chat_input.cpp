#include "cli/chat_input.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <utility>

#include "cli/common.h"
#include "cli/seed.h"
#include "cli/settings.h"

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

// What /set can change, except the seed.
std::vector<const riffle_setting*> answer_settings() {
  std::vector<const riffle_setting*> all;
  for (const riffle_options_kind kind : {RIFFLE_OPTIONS_SAMPLING, RIFFLE_OPTIONS_GENERATE})
    for (const riffle_setting* s : settings_of(kind))
      if (*s->flag) all.push_back(s);
  return all;
}

// "max-tokens" of the flag "-n,--max-tokens".
std::string name_of(const riffle_setting& s) {
  const std::string flags = s.flag;
  return flags.substr(flags.rfind("--") + 2);
}

std::string with_dashes(std::string_view name) {
  std::string word(name);
  std::replace(word.begin(), word.end(), '_', '-');
  return word;
}

// Returns whether word is the setting's long or short flag, or its member's name.
bool is_named(const riffle_setting& s, const std::string& word) {
  const std::string_view id = s.id;
  return word == name_of(s) || word == with_dashes(id.substr(id.find('.') + 1)) ||
         (word.size() == 1 && flag_of(s) == "-" + word);
}

// The struct of which the setting is a member.
void* options_of(riffle_generate_options& generate, const riffle_setting& s) {
  if (s.options == RIFFLE_OPTIONS_SAMPLING) return &generate.sampling;
  return &generate;
}

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
  options.generate.sampling.seed = seed;
}

std::string setting_names() {
  std::string names;
  for (const riffle_setting* s : answer_settings()) names += name_of(*s) + ", ";
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
    for (const riffle_setting* s : answer_settings()) names.push_back(name_of(*s));
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
  riffle_generate_options generate = options.generate;
  for (const riffle_setting* s : answer_settings())
    text += text_of("%-10s  %g\n", name_of(*s).c_str(),
                    riffle_setting_get(s, options_of(generate, *s)));
  return text + text_of("%-10s  %s\n", "seed", std::to_string(generate.sampling.seed).c_str());
}

bool set_chat_setting(CommonOptions& options, std::string_view name, const std::string& value) {
  const std::string word = with_dashes(name);
  if (word == "seed") {
    set_seed(options, value);
    return true;
  }
  for (const riffle_setting* s : answer_settings()) {
    if (!is_named(*s, word)) continue;
    if (!set(*s, options_of(options.generate, *s), value))
      throw Exit(EXIT_RUN, text_of("/set %s: found '%s', expected %s", name_of(*s).c_str(),
                                   value.c_str(), expected(*s).c_str()));
    return false;
  }
  throw Exit(EXIT_RUN, text_of("/set: found '%s', expected one of %s", std::string(name).c_str(),
                               setting_names().c_str()));
}

}  // namespace riffle::cli
