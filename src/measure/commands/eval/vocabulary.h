// A model's vocabulary in the form that is needed to build documents with hidden facts
// (measure/commands/eval/tasks.h).
#pragma once
#include "cli/common.h"
#include "measure/commands/eval/tasks.h"

namespace riffle::cli {

// Requires: the model outlives the vocabulary.
eval::Vocabulary eval_vocabulary(riffle_model* model, const Facts& info);

}  // namespace riffle::cli
