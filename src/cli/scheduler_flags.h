// Flags of riffle_scheduler_options.
#pragma once
#include <string>
#include <vector>

#include "cli/args.h"

namespace riffle::cli {

// --no-ws-control --window --max-skips --max-iteration-tokens --max-inject-tokens --no-prefix-reuse
// --reuse-unit. options: as riffle_scheduler_defaults left it.
std::vector<CLI::Option*> add_scheduler_flags(CLI::App& app, riffle_scheduler_options& options,
                                              const std::string& heading);
// --prefill, which means something else elsewhere.
void add_prefill_mode_flag(CLI::App& app, riffle_prefill_mode& mode, const std::string& heading);

}  // namespace riffle::cli
