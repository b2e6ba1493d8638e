// Generation: sample, stream the text, step, for several sequences at once.
#pragma once
#include <span>

#include "engine/answer.h"
#include "engine/engine.h"

namespace riffle {

// Every sequence must have logits. options[i] and results[i] belong to sequences[i]. An abort ends
// all answers with RIFFLE_FINISH_ABORTED.
void generate(Engine& engine, std::span<Sequence* const> sequences,
              std::span<const riffle_generate_options> options, riffle_token_fn callback,
              void* user, std::span<riffle_result> results);

}  // namespace riffle
