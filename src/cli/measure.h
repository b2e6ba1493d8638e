// Measuring's part of the command line (src/measure/commands). A build of only the core has none of
// it: no_measure.cpp.
#pragma once
#include <string>

#include "cli/common.h"

namespace riffle::cli {

// Adds the commands bench, demo and eval.
void add_measure(CLI::App& app, Command& chosen);

// Tells whether there are models of known shapes without a file.
bool has_shapes();
// Makes one with weights of this type, and prints a description. Throws Exit.
Model shape_model(const std::string& shape, const std::string& weights, std::string& name);

}  // namespace riffle::cli
