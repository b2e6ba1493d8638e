// Command-line flags that subcommands share, and the list of subcommands.
//
// A subcommand lives in one file and registers itself:
//     void add_info(CLI::App& app, Command& chosen) {
//       auto o = std::make_shared<EvalOptions>();  // holds a CommonOptions
//       CLI::App* sub = app.add_subcommand("eval", "...");
//       add_common_flags(*sub, o->common, CONTEXT_FLAGS | SELECTION_FLAGS);
//       sub->add_option("--tasks", o->tasks, "...");
//       sub->final_callback([o, &chosen] { chosen = [o] { return eval_main(*o); }; });
//     }
// The function it hands over returns an ExitCode or throws Exit (common.h); main prints the text
// and ends with the code.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/thinking.h"
#include "riffle.h"

// The headers of CLI11 and of JSON are slow to compile: only files that use them include them.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace riffle::cli {

// Everything the shared flags say. Built with the library's defaults; flags change it.
struct CommonOptions {
  CommonOptions();
  std::string model_path;  // -m; "" until resolve_model_path() (common.h, called by load_model)
  riffle_context_options context;             // holds .selection too
  riffle_generate_options generate;           // -n and the sampler's numbers, without seed, biases
  std::vector<riffle_logit_bias> logit_bias;  // --logit-bias
  std::vector<std::string> breakers;          // --dry-sequence-breaker; generate points to them
  std::vector<const char*> breaker_pointers;  // if the flag is there
  std::optional<uint64_t> seed;               // --seed; none: each command draws its own (seed.h)
  std::string chat_template;                  // --chat-template; "": the model's own
  Thinking thinking;                          // --think, --no-think, --chat-template-kwargs
  std::string weights;                        // --weights; "": as the file has them
  bool json = false;
  bool quiet = false;
  std::vector<std::pair<const riffle_setting*, const CLI::Option*>> selection_flags;  // as parsed
};

// Which groups of flags a subcommand takes. -m and -q always.
enum FlagGroups : unsigned {
  CONTEXT_FLAGS = 1,      // settings of riffle_context_options
  SELECTION_FLAGS = 2,    // settings of riffle_selection
  SAMPLING_FLAGS = 4,     // -n --temp --top-k --top-p --min-p --seed, penalties, XTC, DRY
  JSON_FLAG = 8,          // --json
  CHAT_FLAG = 16,         // --chat-template
  WEIGHTS_FLAG = 32,      // --weights
  COMPARISON_FLAGS = 64,  // with those settings that are only for comparison
  THINK_FLAGS = 128       // --think --no-think --chat-template-kwargs
};

// A check for options whose value is a type of weights; "q8|q4|..." for their help.
std::string weight_type_error(const std::string& word);
std::string weight_type_words();

void add_common_flags(CLI::App& app, CommonOptions& options, unsigned groups);
// The flag of one setting of riffle_selection.
void add_selection_flag(CLI::App& app, const riffle_setting& setting, CommonOptions& options);

// --stop: texts that end an answer.
void add_stop_flag(CLI::App& app, std::vector<std::string>& stop);

// Has sampling point to these breakers of DRY, also if there are none; `pointers` holds what it
// points to.
void set_breakers(const std::vector<std::string>& breakers, std::vector<const char*>& pointers,
                  riffle_sampling& sampling);

// The spellings that flags accept, for tables and JSON.
const char* selector_name(riffle_selector v);
const char* device_name(riffle_device v);
const char* kv_name(riffle_kv_type v);

// A check of a flag: a script's variable that is not set is no path.
std::string not_empty(const std::string& value);

// A word of a flag's value to its enum, e.g. for a list such as --selectors dense,psa. Throws
// CLI::ValidationError.
riffle_selector parse_selector(const std::string& word);

// A number with a suffix: "4096", "32K", "1.5G" (K = 1024), of bytes also "12GB" and "12GiB", in
// upper or lower case. None if it is anything else, no whole number, or above 9.2e18.
enum class Unit : uint8_t { COUNT, BYTES };
std::optional<uint64_t> size_of(const std::string& text, Unit unit);
// Returns the examples of a size that messages give; all are accepted: "such as 4096 or 32K".
const char* size_examples(Unit unit);
// Bytes as a size that the user is told to give, rounded up: "24M".
std::string least_size(uint64_t bytes);
// An error for a plain number too small to be meant in bytes, such as 12 for 12G; "": the size is
// plausible.
std::string size_without_unit(const std::string& text, Unit unit);
// size_of. Throws CLI::ValidationError, naming the flag.
uint64_t parse_size(const std::string& flag, const std::string& text, Unit unit);
// "512,4K,30000" to counts.
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
