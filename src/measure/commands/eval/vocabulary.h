// A model's vocabulary in the form that documents with hidden facts are made with
// (measure/commands/eval/tasks.h).
#pragma once
#include "cli/common.h"
#include "measure/commands/eval/tasks.h"

namespace riffle::cli {

// The model outlives it.
eval::Vocabulary eval_vocabulary(riffle_model* model, const Facts& info);

}  // namespace riffle::cli
