// riffle eval: its options, and the run.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/args.h"

namespace riffle::cli {

struct EvalOptions {
  CommonOptions common;
  std::vector<const SettingRow*> selection_given;  // flags of the selection that were given
  std::vector<std::string> text_paths;
  std::string lengths, tasks, sweep, out_path, records_path, reference_path;
  int questions = 100, questions_per_document = 10, answer_tokens = 64, nll_tokens = 128,
      nll_segments = 2;
  uint64_t seed = 1;
  std::string prefill_shares;  // values of prefill_share with which prompts are read as well
  bool coverage = false, dense_only = false;
  bool compare = false;
  std::string compare_spec, report_path;  // compare_spec: empty for the default list
  std::vector<std::string> heat_maps;     // settings, or "none"
};

// Facts of a run (command, place, time): (name, value), in the order of reports.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

// Returns an ExitCode or throws Exit.
int run_eval(EvalOptions& options);

}  // namespace riffle::cli
