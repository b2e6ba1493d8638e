// Flags of riffle_scheduler_options.
#pragma once
#include "cli/args.h"

namespace riffle::cli {

// --no-ws-control --window --prefill --max-inject-tokens --no-prefix-reuse. options: as riffle_scheduler_defaults left
// it.
void add_scheduler_flags(CLI::App& app, riffle_scheduler_options& options);

}  // namespace riffle::cli
