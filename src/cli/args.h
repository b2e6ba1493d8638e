// Command-line flags that subcommands share, and the list of subcommands.
//
// A subcommand lives in one file and registers itself:
//     void add_eval(CLI::App& app, Command& chosen) {
//       auto o = std::make_shared<EvalOptions>();  // holds a CommonOptions
//       CLI::App& command = add_command(app, "eval", "...");
//       add_common_flags(command, o->common, CONTEXT_FLAGS | SELECTION_FLAGS);
//       add_text(command, "--tasks", o->tasks, "...").value("NAME,...");
//       when_parsed(command, [o, &chosen] { chosen = [o] { return eval_main(*o); }; });
//     }
// The function that it stores returns an ExitCode or throws Exit (common.h); main prints the text
// and ends with the code.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags.h"
#include "cli/options.h"
#include "cli/settings.h"
#include "cli/thinking.h"
#include "riffle.h"

namespace riffle::cli {

// Values of the shared flags. Begins with the library's defaults; flags change it.
struct CommonOptions {
  std::string model_path;  // -m; "" until resolve_model_path() (common.h, called by load_model)
  Options options;         // options of the model, the context, the selection and the answer
  std::vector<riffle_logit_bias> logit_bias;  // --logit-bias
  std::vector<std::string> breakers;          // --dry-sequence-breaker
  std::optional<uint64_t> seed;               // --seed; none: each command draws one (seed.h)
  Thinking thinking;                          // --think, --no-think, --chat-template-kwargs
  bool json = false;
  bool quiet = false;
  std::vector<std::pair<const SettingRow*, Flag>> selection_flags;  // as parsed
};

// Groups of flags that a subcommand takes. It always takes -m and -q.
enum FlagGroups : unsigned {
  CONTEXT_FLAGS = 1,      // settings of contexts
  SELECTION_FLAGS = 2,    // settings of the selection
  SAMPLING_FLAGS = 4,     // -n --temp --top-k --top-p --min-p --seed, penalties, XTC, DRY
  JSON_FLAG = 8,          // --json
  CHAT_FLAG = 16,         // --chat-template
  WEIGHTS_FLAG = 32,      // --weights
  COMPARISON_FLAGS = 64,  // also the settings that are only for comparison
  THINK_FLAGS = 128       // --think --no-think --chat-template-kwargs
};

// Checks a type of weights; returns the error, or "".
std::string weight_type_error(const std::string& word);
std::string weight_type_words();

void add_common_flags(CLI::App& app, CommonOptions& options, unsigned groups);
// Adds the flag of one setting of the selection.
void add_selection_flag(CLI::App& app, const SettingRow& setting, CommonOptions& options);

// --stop: texts that end an answer.
void add_stop_flag(CLI::App& app, std::vector<std::string>& stop);

// Checks a flag's path: a script's unset variable gives an empty one.
std::string not_empty(const std::string& value);

// Parses a word of --selectors. Refuses any other with refuse_value.
std::string parse_selector(const std::string& word);

// Reads a number with a suffix: "4096", "32K", "1.5G" (K = 1024), for bytes also "12GB" and
// "12GiB", in upper or lower case. Returns nothing if it is anything else, not a whole number, or
// above 9.2e18.
enum class Unit : uint8_t { COUNT, BYTES };
std::optional<uint64_t> size_of(const std::string& text, Unit unit);
// Returns the examples of a size that messages give; all are accepted: "such as 4096 or 32K".
const char* size_examples(Unit unit);
// Returns bytes as a size for an error's advice, rounded up: "24M".
std::string least_size(uint64_t bytes);
// Returns an error for a plain number too small to be meant in bytes, such as 12 for 12G; "" if the
// size is plausible.
std::string size_without_unit(const std::string& text, Unit unit);
// The same as size_of, but refuses other texts with refuse_value.
uint64_t parse_size(const std::string& flag, const std::string& text, Unit unit);
// Parses a list of counts: "512,4K,30000".
std::vector<int64_t> parse_size_list(const std::string& flag, const std::string& text);

using Command = std::function<int()>;
void add_chat(CLI::App& app, Command& chosen);
void add_run(CLI::App& app, Command& chosen);
void add_read(CLI::App& app, Command& chosen);
void add_batch(CLI::App& app, Command& chosen);
void add_info(CLI::App& app, Command& chosen);
void add_quantize(CLI::App& app, Command& chosen);
void add_tokenize(CLI::App& app, Command& chosen);

}  // namespace riffle::cli
