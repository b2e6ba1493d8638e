// riffle: the command line. It uses only riffle.h and the headers next to it, nothing else of the
// library.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>

#include "cli/common.h"
#include "cli/file_cut.h"
#include "cli/help.h"
#include "cli/measure.h"
#include "cli/spelling.h"
#include "cli/standard_streams.h"

namespace riffle::cli {
namespace {

const char* const kFooter = R"(Exit codes:
  0    done
  1    a run-time error (also: an empty prompt, a file that cannot be read or written, a session's
       file that is damaged or does not fit, --device cuda where no GPU works)
  2    bad flags or flag values, a wrong or unsupported grammar or schema, no prompt, no model
  3    the model file is missing, damaged or unsupported
  4    out of memory, or --gpu-mem / --host-mem / --slots too small
  5    the prompt does not fit the context
  6    batch: all lines have a record, but some of them an error
  130  stopped by Ctrl-C, SIGTERM or SIGHUP (a closed terminal)
Answers go to stdout, everything else to stderr.
Environment:
  RIFFLE_MODEL          the model if -m is not given
  NO_COLOR              no colors
  RIFFLE_HISTORY        file of chat's history; empty: none
  CUDA_VISIBLE_DEVICES  the first GPU named is used
  CUDA_HOME             riffle looks for cuBLAS here after the system's own paths
riffle COMMAND --help lists the options of a command, and --help-all lists all of them.)";

void complain(const char* text) {
  const bool color = color_ok(STDERR_FILENO);
  if (color) put_controls("\033[1;31m");
  std::fputs("riffle:", stderr);
  if (color) put_controls("\033[0m");
  std::fprintf(stderr, " %s\n", text);
}

// Guesses the flag that the user left out before an argument, among those of the command.
std::string unexpected(const CLI::App& command, const std::vector<std::string>& typed) {
  const std::vector<std::string> rest = command.remaining();
  std::string text;
  for (const std::string& word : typed)  // the first of them, in the order of the command line
    if (text.empty() && std::find(rest.begin(), rest.end(), word) != rest.end())
      text = "unexpected argument '" + word + "'";
  if (text.empty()) text = "unexpected argument";
  const std::pair<const char*, const char*> takes[] = {
      {"--input", "-i FILE gives the input"},
      {"--model", "-m PATH gives the model (riffle downloads none)"},
      {"--output", "-o FILE gives the output"},
      {"--prompt", "-p TEXT gives the prompt"}};
  const char* separator = ": ";
  for (const auto& [flag, meaning] : takes)
    if (command.get_option_no_throw(flag)) {
      text += separator + std::string(meaning);
      separator = ", ";
    }
  return text;
}

// Rewords the parser's error about flags that exclude each other or are missing, as found and
// expected.
std::string reworded(const CLI::ParseError& e) {
  const std::string text = e.what();
  const auto parts = [&](const std::string& between) {
    const size_t at = text.find(between);
    return at == text.npos ? std::pair<std::string, std::string>()
                           : std::pair(text.substr(0, at), text.substr(at + between.size()));
  };
  if (const auto [a, b] = parts(" excludes "); dynamic_cast<const CLI::ExcludesError*>(&e))
    return "found both " + a + " and " + b + ", expected one of them";
  if (const auto [a, b] = parts(" requires "); dynamic_cast<const CLI::RequiresError*>(&e))
    return "found " + a + " without " + b + ", expected both";
  if (const auto [a, b] = parts(" is required"); dynamic_cast<const CLI::RequiredError*>(&e))
    return "found no " + a + "; expected " + a + " with a value";
  return text;
}

void add_commands(CLI::App& app, Command& chosen) {
  set_help(app);
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "print this help and exit");
  app.set_help_all_flag("--help-all", "print the help with all options and exit");
  app.set_version_flag("--version", std::string("riffle ") + riffle_version(),
                       "print the version and exit");
  add_chat(app, chosen);
  add_run(app, chosen);
  add_read(app, chosen);
  add_batch(app, chosen);
  add_info(app, chosen);
  add_measure(app, chosen);
  add_quantize(app, chosen);
  add_tokenize(app, chosen);
  app.footer(kFooter);  // last: commands that are added later would inherit it
}

// command: the name of the command, or "".
int refuse_usage(const std::string& text, const std::string& command) {
  for (const std::string& line : split(text, '\n')) complain(line.c_str());
  std::fprintf(stderr, "See riffle%s --help.\n", (command.empty() ? "" : " " + command).c_str());
  return EXIT_USAGE;
}

int run(int argc, char** argv) {
  CLI::App app("riffle: answers from very long documents with little memory", "riffle");
  Command chosen;
  add_commands(app, chosen);
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string first = args.empty() ? "" : args[0];
  try {
    args = spelled(std::move(args), app);
    std::reverse(args.begin(), args.end());  // as the parser takes them
    app.parse(args);
  } catch (const Exit& e) {
    const auto named =
        app.get_subcommands([&](const CLI::App* s) { return s->get_name() == first; });
    return refuse_usage(e.what(), named.empty() ? "" : first);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      return EXIT_OK;
    }
    const auto subs = app.get_subcommands();
    const std::string command = subs.empty() ? "" : subs.front()->get_name();
    if (!subs.empty() && dynamic_cast<const CLI::ExtrasError*>(&e))
      return refuse_usage(unexpected(*subs.front(), {argv + 2, argv + argc}), command);
    return refuse_usage(reworded(e), command);
  }
  return chosen();
}

}  // namespace
}  // namespace riffle::cli

int main(int argc, char** argv) {
  using namespace riffle::cli;
  if (!hold_closed_streams()) {  // before anything is opened
    std::fprintf(stderr,
                 "riffle: cannot open /dev/null or / in place of a closed stdin, stdout or stderr: "
                 "%s\n",
                 std::strerror(errno));
    return EXIT_RUN;
  }
  const TerminalStreams streams;
  // Character types only (for line editing); numbers keep the form that JSON and scripts need.
  if (!std::setlocale(LC_CTYPE, "") || std::strcmp(std::setlocale(LC_CTYPE, nullptr), "C") == 0)
    std::setlocale(LC_CTYPE, "C.UTF-8");
  watch_for_cut_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then fails with an error
  try {
    return run(argc, argv);
  } catch (const Exit& e) {
    if (*e.what()) complain(e.what());
    return e.code();
  } catch (const CLI::Error& e) {  // for values that only the subcommand could check
    complain(e.what());
    return EXIT_USAGE;
  } catch (const std::bad_alloc&) {
    complain("out of memory");
    return EXIT_MEMORY;
  } catch (const std::exception& e) {
    complain(e.what());
    return EXIT_RUN;
  }
}
