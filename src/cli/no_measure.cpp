// Replaces the commands that measure in a build of the core alone.
#include "cli/measure.h"

namespace riffle::cli {

void add_measure(CLI::App&, Command&) {}

bool has_shapes() { return false; }
Model shape_model(const std::string& shape, const std::string&, std::string&) {
  throw Exit(EXIT_USAGE, "found shape '" + shape +
                             "', expected a model file: this riffle was built "
                             "without measuring");
}

}  // namespace riffle::cli
