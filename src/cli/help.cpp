#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <vector>

namespace riffle::cli {
namespace {

constexpr size_t kIndent = 28, kWidth = 100;
const char* const kShown[] = {kGeneralGroup, kAnswerGroup, "Context", "Selection of KV blocks",
                              kSelectorsGroup};

bool shown(const std::string& group) {
  return std::find(std::begin(kShown), std::end(kShown), group) != std::end(kShown);
}

// Wraps text to kWidth columns. The first line begins at column `at`, the others at `indent`.
std::string wrapped(const std::string& text, size_t at, size_t indent) {
  std::string out;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word;) {
    if (!first && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
      first = true;
    }
    out += (first ? "" : " ") + word;
    at += word.size() + !first;
    first = false;
  }
  return out + "\n";
}

// Returns "N" in place of the parser's INT, without the descriptions of its checks.
std::string type_of(const CLI::Option& option) {
  std::string type = option.get_type_name();
  type.resize(std::min(type.find(':'), type.size()));
  if (type == "INT" || type == "UINT") return "N";
  return type == "FLOAT" ? "X" : type;
}

std::string names_of(const std::string& before, const std::set<CLI::Option*>& options) {
  std::string names;
  for (const CLI::Option* o : options) names += (names.empty() ? "" : ", ") + o->get_name();
  return names.empty() ? "" : " (" + before + " " + names + ")";
}

std::string line_of(const CLI::Option& option, bool all) {
  std::string left = "  ";
  for (const std::string& name : option.get_snames()) left += "-" + name + ", ";
  if (option.get_snames().empty()) left += "    ";
  for (const std::string& name : option.get_lnames()) left += "--" + name + ", ";
  left.resize(left.size() - 2);
  std::string text = option.get_description();
  if (all)
    text += names_of("not with", option.get_excludes()) + names_of("with", option.get_needs());
  if (option.get_type_size() != 0) {
    // The value of a flag that is on without it follows an equals sign.
    const bool optional = option.get_items_expected_max() == 0;
    if (const std::string type = type_of(option); !type.empty())
      left += optional ? "[=" + type + "]" : " " + type;
    if (option.get_required()) text += "; required";
    // Not added if the text explains the default, as "; 0: the trained length" does.
    std::string standard = option.get_default_str();
    if (standard.size() > 60)  // a list that needs more than one line
      for (size_t at = 0; (at = standard.find(',', at)) != standard.npos; at += 2)
        standard.replace(at, 1, ", ");
    if (!standard.empty() && text.find("; " + standard + ": ") == text.npos)
      text += "; default: " + standard;
  }
  if (left.size() + 2 > kIndent)
    return left + "\n" + std::string(kIndent, ' ') + wrapped(text, kIndent, kIndent);
  left.resize(kIndent, ' ');
  return left + wrapped(text, kIndent, kIndent);
}

// Keeps the lines of a text, and wraps those that are too long.
std::string paragraph(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    out += line.size() > 100 ? wrapped(line, 0, 0) : line + "\n";
  return "\n" + out;
}

std::string commands_of(const CLI::App& app) {
  std::string text;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    std::string line = "  " + sub->get_name();
    line.resize(12, ' ');
    text += line + wrapped(sub->get_description(), 12, 12);
  }
  return text.empty() ? "" : "\nCommands:\n" + text;
}

// Returns the arguments without a flag: their names for the usage line, or a line for each.
std::string positionals_of(const CLI::App& app, bool names) {
  std::string text;
  for (const CLI::Option* o : app.get_options()) {
    if (!o->get_positional()) continue;
    const std::string name = o->get_type_name();
    if (names) {
      text += " [" + name + "]";
      continue;
    }
    std::string line = "  " + name;
    line.resize(std::max<size_t>(line.size() + 2, 12), ' ');
    text += "\n" + line + wrapped(o->get_description(), line.size(), 12);
  }
  return text;
}

class Help : public CLI::FormatterBase {
 public:
  // details: text that follows the footer in --help-all.
  explicit Help(std::string details = "") : details_(std::move(details)) {}
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;

 private:
  std::string details_;
};

std::string Help::make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const {
  const bool all = mode != CLI::AppFormatMode::Normal, top = app->get_parent() == nullptr;
  std::string out = wrapped(app->get_description(), 0, 0);
  out +=
      top ? "Usage: riffle COMMAND [OPTIONS]\n"
          : "Usage: riffle " + app->get_name() + " [OPTIONS]" + positionals_of(*app, true) + "\n";
  out += commands_of(*app);
  out += positionals_of(*app, false);
  std::string rest;
  size_t n_rest = 0;
  for (const std::string& group : app->get_groups()) {
    std::string lines;
    size_t n = 0;
    for (const CLI::Option* o : app->get_options()) {
      if (o->get_group() != group || !o->nonpositional()) continue;
      lines += line_of(*o, all);
      ++n;
    }
    if (n == 0 || group.empty()) continue;
    if (shown(group)) {
      out += "\n" + group + ":\n" + lines;
    } else {
      rest += "\n" + group + ":\n" + lines;
      n_rest += n;
    }
  }
  if (all) out += rest;
  else if (n_rest > 0)
    out += "\nriffle " + app->get_name() + " --help-all lists " + std::to_string(n_rest) +
           " more options.\n";
  if (!app->get_footer().empty()) out += paragraph(app->get_footer());
  if (all && !details_.empty()) out += paragraph(details_);
  if (all && top)
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
      out += "\n\nriffle " + sub->get_name() + "\n" + sub->help("", CLI::AppFormatMode::All);
  return out;
}

}  // namespace

void set_help(CLI::App& command) { command.formatter(std::make_shared<Help>()); }

void set_notes(CLI::App& command, const std::string& notes, const std::string& details) {
  command.footer(notes);
  command.formatter(std::make_shared<Help>(details));
}

}  // namespace riffle::cli
