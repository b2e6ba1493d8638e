// Commands that measure (src/measure/commands). A build of the core alone lacks them and has
// no_measure.cpp instead.
#pragma once
#include <string>

#include "cli/common.h"

namespace riffle::cli {

// Adds the commands bench, demo and eval.
void add_measure(CLI::App& app, Command& chosen);

// Tells whether this build has synthetic models of known shapes.
bool has_shapes();
// Makes one with weights of this type, and prints a description. Throws Exit.
Model shape_model(const std::string& shape, const std::string& weights, std::string& name);

}  // namespace riffle::cli
