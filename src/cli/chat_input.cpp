#include "cli/chat_input.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <utility>

#include "cli/common.h"
#include "cli/settings.h"
#include "cli/text_file.h"
#include "riffle_request.h"

namespace riffle::cli {

const char* const kChatHelp =
    R"(/load FILE         read a document; it goes in front of your next question
/retry             answer the last message again
/save FILE         save the conversation and the documents read for it
/open FILE         continue a saved conversation, or ask about a document of riffle read
/result NAME TEXT  give the result of a call that the model has written (--tools)
/system TEXT       set the system message; without TEXT: remove it
/think [LEVEL]     reasoning: on, off, low, medium or high; without LEVEL: show the setting
/set NAME VALUE    change temp, top-k, top-p, min-p, seed, max-tokens, ...; without both: show them
/stats             show the numbers of tokens, the speed and the seed
/clear             forget the conversation
/help              show this list
/exit              leave (also Ctrl-D)
""" begins and ends a message of several lines; so does a \ at the end of a line; a pasted text is
one message. Tab completes commands and paths. Ctrl-C stops an answer; at an empty prompt it leaves,
unless something is unsaved.)";

namespace {
namespace fs = std::filesystem;

constexpr std::string_view kQuotes = "\"\"\"";  // around a message of several lines
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

// Returns the files whose path begins with the typed text. A quote at its beginning is kept.
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

// Returns the settings that /set can change, except the seed.
std::vector<const SettingRow*> answer_settings() {
  std::vector<const SettingRow*> all;
  for (const char* kind : {"sampling", "answer"})
    for (const SettingRow* s : settings_of(kind))
      if (!s->flag.empty()) all.push_back(s);
  return all;
}

std::string with_dashes(std::string_view name) {
  std::string word(name);
  std::replace(word.begin(), word.end(), '_', '-');
  return word;
}

// Returns whether word is the setting's name or short flag.
bool is_named(const SettingRow& s, const std::string& word) {
  const bool temperature = s.name == "temp" && word == "temperature";
  return word == s.name || temperature || (word.size() == 1 && flag_of(s) == "-" + word);
}

void set_seed(CommonOptions& options, const std::string& value) {
  uint64_t seed = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, seed);
  if (value == "-1") seed = riffle_random_seed();
  else if (error != std::errc() || stop != end)
    throw Exit(EXIT_RUN,
               text_of("/set seed: found '%s', expected a whole number from 0 to %s, or -1 for "
                       "a random seed",
                       value.c_str(), std::to_string(UINT64_MAX).c_str()));
  options.options.set("seed", seed);
}

// Reads the next line of a message. Ctrl-C drops the message and does not leave the chat.
LineEditor::Got read_more(LineEditor& editor, std::string& line) {
  const LineEditor::Got got = editor.read("| ", line);
  return got == LineEditor::Got::INTERRUPTED_EMPTY && editor.interactive()
             ? LineEditor::Got::INTERRUPTED_TEXT
             : got;
}

// text begins with the opening quotes. Reads up to the closing ones, and leaves the text between
// them in `text`.
LineEditor::Got read_quoted(LineEditor& editor, std::string& text) {
  text.erase(0, kQuotes.size());
  while (!text.ends_with(kQuotes)) {
    std::string more;
    const LineEditor::Got got = read_more(editor, more);
    if (got == LineEditor::Got::END)
      throw Exit(
          EXIT_RUN,
          "the input ended in a message that begins with \"\"\", expected \"\"\" at its end");
    if (got != LineEditor::Got::LINE) return got;
    text += (text.empty() ? "" : "\n") + more;
  }
  text.resize(text.size() - kQuotes.size());
  if (text.ends_with('\n')) text.pop_back();
  return LineEditor::Got::LINE;
}

std::string setting_names() {
  std::string names;
  for (const SettingRow* s : answer_settings()) names += s->name + ", ";
  return names + "seed";
}

}  // namespace

const std::vector<std::string>& chat_commands() {
  static const std::vector<std::string> commands = {"/clear", "/exit",   "/help",   "/load",
                                                    "/open",  "/result", "/retry",  "/save",
                                                    "/set",   "/stats",  "/system", "/think"};
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

std::string named_path(const std::string& command, const std::string& typed) {
  const std::string path = typed_path(typed);
  if (path.empty())
    throw Exit(EXIT_RUN, command + ": found no file name, expected one after the command");
  return path;
}

std::string real_path(const std::string& path) {
  std::error_code error;
  const fs::path target = link_target(fs::absolute(path, error));
  if (target.empty()) return path;
  // weakly_canonical by itself does not follow a link to a missing file.
  const fs::path real = fs::weakly_canonical(target, error);
  return error ? path : real.string();
}

ChatInput read_chat_input(LineEditor& editor) {
  ChatInput input{};
  std::string& text = input.text;
  input.got = editor.read("> ", text);
  if (input.got != LineEditor::Got::LINE) return input;
  if (text.starts_with(kQuotes)) {
    input.got = read_quoted(editor, text);
    return input;
  }
  input.is_command = text.starts_with('/') && text.find('\n') == text.npos;
  while (!text.empty() && text.back() == '\\') {
    text.back() = '\n';
    std::string more;
    input.got = read_more(editor, more);
    text += more;
    if (input.got == LineEditor::Got::END) input.got = LineEditor::Got::LINE;
    else if (input.got == LineEditor::Got::LINE) continue;
    return input;
  }
  return input;
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
    for (const SettingRow* s : answer_settings()) names.push_back(s->name);
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
  for (const SettingRow* s : answer_settings())
    text += text_of("%-10s  %g\n", s->name.c_str(), options.options.number(s->name));
  return text + text_of("%-10s  %s\n", "seed", options.options.text("seed").c_str());
}

bool set_chat_setting(CommonOptions& options, std::string_view name, const std::string& value) {
  const std::string word = with_dashes(name);
  if (word == "seed") {
    set_seed(options, value);
    return true;
  }
  for (const SettingRow* s : answer_settings()) {
    if (!is_named(*s, word)) continue;
    if (!options.options.accepts(s->name, value))
      throw Exit(EXIT_RUN, text_of("/set %s: found '%s', expected %s", s->name.c_str(),
                                   value.c_str(), s->expected.c_str()));
    return false;
  }
  throw Exit(EXIT_RUN, text_of("/set: found '%s', expected one of %s", std::string(name).c_str(),
                               setting_names().c_str()));
}

}  // namespace riffle::cli
