// Generation: sample, stream the text, step, for several sequences at once.
#pragma once
#include <optional>
#include <span>

#include "engine/answer.h"
#include "engine/engine.h"

namespace riffle {

// Calls Answer::advance with the sequence's logits and the context's remaining room. Logits that
// are not numbers are RIFFLE_BAD_SESSION if they may come from a file that the sequence was loaded
// from (Engine::check_loaded).
std::optional<int32_t> draw(Engine& engine, const Sequence& sequence, Answer& answer,
                            int32_t sampled, const Answer::Show& show);

// options[i] and results[i] belong to sequences[i]. An abort ends all answers with
// RIFFLE_FINISH_ABORTED. Requires: every sequence has logits.
void generate(Engine& engine, std::span<Sequence* const> sequences,
              std::span<const GenerateOptions> options, riffle_token_fn callback, void* user,
              std::span<riffle_result> results);

}  // namespace riffle
