#include "cli/scheduler_flags.h"

#include <limits>
#include <map>

namespace riffle::cli {

void add_scheduler_flags(CLI::App& app, riffle_scheduler_options& o) {
  const char* const heading = "Many sequences at once";
  app.add_flag("--no-ws-control", o.no_ws_control, "step all sequences together, whatever the pool holds (to compare)")
      ->group(heading);
  app.add_option("--window", o.window, "steps whose blocks make up a sequence's working set")
      ->group(heading)
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  static const std::map<std::string, riffle_prefill_mode> modes = {
      {"layers", RIFFLE_PREFILL_LAYERS}, {"chunks", RIFFLE_PREFILL_CHUNKS}, {"whole", RIFFLE_PREFILL_WHOLE}};
  app.add_option_function<std::string>(
         "--prefill",
         [&o](const std::string& word) {
           const auto mode = modes.find(word);
           if (mode == modes.end())
             throw CLI::ValidationError("--prefill", "'" + word + "': expected one of layers, chunks, whole");
           o.prefill = mode->second;
         },
         "how prompts are read beside answers under way: layer by layer, piece by piece, at one go")
      ->group(heading)
      ->type_name("layers|chunks|whole")
      ->default_str("layers");
  app.add_option_function<std::string>(
         "--max-inject-tokens",
         [&o](const std::string& text) {
           const uint64_t v = parse_size("--max-inject-tokens", text);
           if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
             throw CLI::ValidationError("--max-inject-tokens", "'" + text + "' is too large");
           o.max_inject_tokens = static_cast<int64_t>(v);
         },
         "prompt tokens times layers between two steps of the answers; 0: 2048 for each layer")
      ->group(heading)
      ->type_name("N")
      ->default_str("0");
  app.add_flag("--no-prefix-reuse", o.no_prefix_reuse, "read each prompt on its own, also where they begin alike")
      ->group(heading);
}

}  // namespace riffle::cli
