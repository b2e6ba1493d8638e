#include "cli/spelling.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>

#include "cli/common.h"
#include "cli/foreign.h"
#include "riffle_tools.h"

namespace riffle::cli {
namespace {

// Finds the nearest of the words added.
class Nearest {
 public:
  explicit Nearest(std::string typed) : typed_(std::move(typed)) {}
  // meant: text to show in place of the word.
  void add(const std::string& word, const std::string& meant) {
    words_.push_back(word);
    meant_.push_back(meant);
  }
  std::string meant() const {
    std::vector<const char*> words;
    for (const std::string& word : words_) words.push_back(word.c_str());
    const char* const near = riffle_nearest_word(typed_.c_str(), words.data(), words.size());
    const auto at = std::find(words.begin(), words.end(), near);
    return at == words.end() ? "" : meant_[static_cast<size_t>(at - words.begin())];
  }

 private:
  std::string typed_;
  std::vector<std::string> words_, meant_;
};

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* sub : commands_of(app))
    names += (names.empty() ? "" : ", ") + sub->get_name();
  return names;
}

const CLI::App* command_named(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : commands_of(app))
    if (sub->get_name() == name) return sub;
  return nullptr;
}

const CLI::Option* option_of(const CLI::App& command, const std::string& flag) {
  return command.get_option_no_throw(flag);
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

// Tells whether a value may follow the equals sign of a flag that is on or off.
bool is_switch(std::string_view value) {
  for (const char* word : {"true", "false", "on", "off", "yes", "no", "1", "0"})
    if (value == word) return true;
  return false;
}

// Returns the other words that may follow it, such as the levels of --think.
std::vector<std::string> words_of(const CLI::Option& option) {
  const std::string words = option.get_type_name();
  return words.empty() ? std::vector<std::string>() : split(words, '|');
}

const ForeignFlag* foreign(const std::string& flag) {
  for (const ForeignFlag& f : foreign_flags())
    if (std::find(f.spellings.begin(), f.spellings.end(), flag) != f.spellings.end()) return &f;
  return nullptr;
}

// Returns a hint at the field of a batch line that replaces a flag; "": there is none.
std::string field_of_line(const CLI::App& command, const std::string& flag) {
  static const std::map<std::string, std::string> fields = {
      {"--json-schema", "response_format"},
      {"--grammar", "grammar"},
      {"--stop", "stop"},
      {"--system", "messages, with a message of role system"},
      {"--prompt", "messages or prompt"},
      {"-p", "messages or prompt"}};
  const auto it = command.get_name() == "batch" ? fields.find(flag) : fields.end();
  return it == fields.end() ? "" : "; a line's body has " + it->second;
}

// Refuses a flag. typed: the flag as it was typed; flag: riffle's spelling.
[[noreturn]] void refuse_flag(const CLI::App& app, const CLI::App& command,
                              const std::string& typed, const std::string& flag) {
  const std::string unknown = "unknown flag " + typed;
  std::string others;
  for (const CLI::App* sub : commands_of(app))
    if (option_of(*sub, flag)) others += (others.empty() ? "" : ", ") + sub->get_name();
  if (!others.empty()) {
    const std::string same = typed == flag ? "" : " (" + flag + ")";
    throw Exit(EXIT_USAGE, unknown + same + " of riffle " + command.get_name() +
                               "; these have it: " + others + field_of_line(command, flag));
  }
  Nearest nearest(flag.substr(flag.find_first_not_of('-')));
  for (const CLI::Option* o : command.get_options()) {
    for (const std::string& name : o->get_lnames()) nearest.add(name, "--" + name);
  }
  for (const ForeignFlag& f : foreign_flags())
    for (const std::string& name : f.spellings)
      if (f.ours && name.size() > 3 && option_of(command, f.ours))
        nearest.add(name.substr(name.find_first_not_of('-')), f.ours);
  const std::string meant = nearest.meant();
  throw Exit(EXIT_USAGE, meant.empty() ? unknown : unknown + "; did you mean " + meant + "?");
}

[[noreturn]] void refuse_command(const CLI::App& app, const std::string& word) {
  for (const ForeignCommand& c : foreign_commands())
    if (std::find(c.names.begin(), c.names.end(), word) != c.names.end())
      throw Exit(EXIT_USAGE, "'" + word + "' is not a command: " + c.answer);
  Nearest nearest(word);
  for (const CLI::App* sub : commands_of(app)) nearest.add(sub->get_name(), sub->get_name());
  const std::string meant = nearest.meant();
  throw Exit(EXIT_USAGE, "'" + word +
                             "' is not a command, expected a command: " + command_names(app) +
                             (meant.empty() ? "" : "; did you mean " + meant + "?"));
}

// Reads the words of a command line, one after the other.
class Words {
 public:
  Words(const CLI::App& app, const CLI::App& command) : app_(app), command_(command) {}

  // Reads the flags in one word: "--name", "--name=value", "-n", "-nVALUE", "-n=VALUE", "-qn".
  // Replaces the word by riffle's spelling. Returns whether the next word is the flag's value.
  bool read_flag(std::string& word) {
    const size_t equals = word.find('=');
    const std::string typed = word.substr(0, equals);
    std::string name = typed;
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    std::string value = equals == word.npos ? "" : word.substr(equals);
    if (const ForeignFlag* f = option_of(command_, name) ? nullptr : foreign(name)) {
      if (f->answer && !(f->ours && option_of(command_, f->ours)))
        throw Exit(EXIT_USAGE, typed + ": " + f->answer);
      name = f->ours;
      if (!option_of(command_, name)) refuse_flag(app_, command_, typed, name);
    }
    if (const CLI::Option* o = option_of(command_, name)) {
      count(*o, typed);
      if (!takes_value(*o) && equals != word.npos) {
        const std::string found = word.substr(equals + 1);
        if (name.size() == 2)
          throw Exit(EXIT_USAGE, typed + ": found the value '" + found + "', expected none");
        const std::vector<std::string> words = words_of(*o);
        if (!is_switch(found) && std::find(words.begin(), words.end(), found) == words.end())
          throw Exit(EXIT_USAGE, typed + ": '" + found + "': expected " +
                                     (words.empty() ? "" : joined(words) + ", ") + "true or false");
      }
      // The parser would read the equals sign after a short flag as a part of the value.
      if (name.size() == 2 && !value.empty()) value.erase(0, 1);
      if (name.size() == 2 && value.empty() && equals != word.npos)
        throw Exit(EXIT_USAGE, "found " + word + " without a value, expected a value after it");
      word = name + value;
      return takes_value(*o) && equals == word.npos;
    }
    if (word.starts_with("--")) refuse_flag(app_, command_, typed, name);
    // A long flag with one dash: the parser would read its first letter as a flag.
    if (name.size() > 2 && option_of(command_, "-" + name))
      throw Exit(EXIT_USAGE, "unknown flag " + name + "; did you mean -" + name + "?");
    return read_letters(word);
  }

  // Returns true if the next word is a level of this flag, as in "--think high". The parser itself
  // takes a level only after an equals sign. Commands with such flags take no words of their own,
  // so the word can be nothing else.
  bool takes_word(const std::string& flag, const std::string& next) const {
    const CLI::Option* const o = option_of(command_, flag);
    if (!o || takes_value(*o)) return false;
    const std::vector<std::string> words = words_of(*o);
    return !words.empty() &&
           (is_switch(next) || std::find(words.begin(), words.end(), next) != words.end());
  }

 private:
  // Reads the letters of a word such as "-nVALUE" or "-qn".
  bool read_letters(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      const std::string name = std::string("-") + word[i];
      const CLI::Option* o = option_of(command_, name);
      if (!o && i == 1) refuse_flag(app_, command_, word, word);
      if (!o) return false;  // the parser reports it
      count(*o, name);
      if (takes_value(*o)) return i + 1 == word.size();
    }
    return false;
  }

  void count(const CLI::Option& option, const std::string& typed) {
    const bool one = option.get_items_expected_max() == 1 && takes_value(option) &&
                     option.get_multi_option_policy() == CLI::MultiOptionPolicy::Throw;
    std::string& first = first_[&option];
    if (one && !first.empty())
      throw Exit(EXIT_USAGE, first == typed
                                 ? "found " + typed + " twice, expected it once"
                                 : "found both " + first + " and " + typed +
                                       ", which are the same flag; expected one of them");
    first = typed;
  }

  const CLI::App &app_, &command_;
  std::map<const CLI::Option*, std::string> first_;  // first spelling of each flag
};

}  // namespace

std::vector<std::string> spelled(std::vector<std::string> args, const CLI::App& app) {
  if (args.empty()) throw Exit(EXIT_USAGE, "expected a command: " + command_names(app));
  if (args[0] == "help") {
    args.erase(args.begin());
    args.resize(std::min<size_t>(args.size(), 1));
    args.push_back("--help");
  }
  if (args[0].starts_with("-")) {
    if (args[0] == "-v" || args[0] == "-V")
      throw Exit(EXIT_USAGE, args[0] + ": riffle --version prints the version");
    if (!option_of(app, args[0]))
      throw Exit(EXIT_USAGE, "found the flag " + args[0] +
                                 " first, expected a command before flags: " + command_names(app));
    return args;
  }
  const CLI::App* command = command_named(app, args[0]);
  if (!command) refuse_command(app, args[0]);
  Words words(app, *command);
  // A command line for another program may have many flags that riffle lacks: all are reported at
  // once.
  std::vector<std::string> wrong;
  for (size_t i = 1; i < args.size() && args[i] != "--"; ++i) {
    const std::string& word = args[i];
    if (word.size() < 2 || word[0] != '-') continue;
    if (word[1] != '-' && !std::isalpha(static_cast<unsigned char>(word[1]))) continue;
    const std::string typed = word;
    try {
      if (!words.read_flag(args[i])) {
        if (i + 1 == args.size() || !words.takes_word(args[i], args[i + 1])) continue;
        args[i] += "=" + args[i + 1];
        args.erase(args.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        continue;
      }
    } catch (const Exit& e) {
      if (std::find(wrong.begin(), wrong.end(), e.what()) == wrong.end())
        wrong.emplace_back(e.what());
      continue;
    }
    if (++i == args.size())  // else the next word is the value, even if it looks like a flag
      wrong.push_back("found " + typed + " without a value, expected a value after it");
  }
  if (!wrong.empty()) throw Exit(EXIT_USAGE, joined(wrong, "\n"));
  return args;
}

}  // namespace riffle::cli
