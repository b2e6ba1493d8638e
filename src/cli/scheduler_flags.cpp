#include "cli/scheduler_flags.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <map>

namespace riffle::cli {

std::vector<CLI::Option*> add_scheduler_flags(CLI::App& app, riffle_scheduler_options& o,
                                              const std::string& heading) {
  std::vector<CLI::Option*> added;
  const auto flag = [&](const char* name, bool& target, const char* what) {
    added.push_back(app.add_flag(name, target, what)->group(heading));
  };
  const auto number = [&](const char* name, int32_t& target, int most, const char* what) {
    added.push_back(app.add_option(name, target, what)
                        ->group(heading)
                        ->type_name("N")
                        ->check(CLI::Range(1, most))
                        ->capture_default_str());
  };
  const auto size = [&](const char* name, auto& target, const char* what) {
    using T = std::remove_reference_t<decltype(target)>;
    const auto set = [&target, name](const std::string& text) {
      const uint64_t v = parse_size(name, text);
      if (v > static_cast<uint64_t>(std::numeric_limits<T>::max()))
        throw CLI::ValidationError(name, "'" + text + "' is too large");
      target = static_cast<T>(v);
    };
    added.push_back(app.add_option_function<std::string>(name, set, what)
                        ->group(heading)
                        ->type_name("N")
                        ->default_str("0"));
  };
  flag("--no-ws-control", o.no_ws_control,
       "step all sequences together, whatever the pool holds (to compare)");
  number("--window", o.window, 64, "steps whose blocks make up a sequence's working set");
  number("--max-skips", o.max_skips, INT32_MAX,
         "iterations that a sequence waits for room in the pool at most");
  size("--max-iteration-tokens", o.max_tokens,
       "tokens of one iteration, answers' and prompts'; 0: no limit");
  size("--max-inject-tokens", o.max_inject_tokens,
       "prompt tokens times layers between two steps of the answers, but a chunk of one layer at "
       "least; 0: 2048 for each layer");
  flag("--no-prefix-reuse", o.no_prefix_reuse,
       "read each prompt on its own, also where they begin alike");
  size("--reuse-unit", o.reuse_unit,
       "reuse a multiple of so many tokens; 0: the smallest that changes no answer (cuda: the "
       "prefill chunk, else 1)");
  return added;
}

void add_prefill_mode_flag(CLI::App& app, riffle_prefill_mode& target, const std::string& heading) {
  static const std::map<std::string, riffle_prefill_mode> modes = {
      {"layers", RIFFLE_PREFILL_LAYERS},
      {"chunks", RIFFLE_PREFILL_CHUNKS},
      {"whole", RIFFLE_PREFILL_WHOLE}};
  app.add_option_function<std::string>(
         "--prefill",
         [&target](const std::string& word) {
           const auto mode = modes.find(word);
           if (mode == modes.end())
             throw CLI::ValidationError("--prefill",
                                        "'" + word + "': expected one of layers, chunks, whole");
           target = mode->second;
         },
         "how prompts are read beside answers under way: layer by layer, piece by piece, at one go")
      ->group(heading)
      ->type_name("layers|chunks|whole")
      ->default_str("layers");
}

}  // namespace riffle::cli
