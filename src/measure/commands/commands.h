#pragma once
#include "cli/args.h"

namespace riffle::cli {

void add_bench(CLI::App& app, Command& chosen);
void add_demo(CLI::App& app, Command& chosen);
void add_eval(CLI::App& app, Command& chosen);

}  // namespace riffle::cli
