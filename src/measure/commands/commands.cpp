// The commands for measuring, as the command line takes them.
#include "measure/commands/commands.h"

#include "cli/measure.h"
#include "measure/commands/bench/bench.h"

namespace riffle::cli {

void add_measure(CLI::App& app, Command& chosen) {
  add_bench(app, chosen);
  add_demo(app, chosen);
  add_eval(app, chosen);
}

bool has_shapes() { return true; }
Model shape_model(const std::string& shape, const std::string& weights, std::string& name) {
  name = shape + " " + weights + ", synthetic weights";
  return make_synthetic(shape, weights);
}

}  // namespace riffle::cli
