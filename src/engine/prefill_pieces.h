// A long prompt, read so that stopping it does not lose all of it.
#pragma once
#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace riffle {

// Prefills as Engine::prefill does, but in pieces of a few seconds each. After RIFFLE_ABORTED (or
// any other error) the sequence holds the tokens of the finished pieces. Keys and values do not
// depend on where the pieces end. Selectors that learn from the end of a prompt, and lists of
// positions, get the prompt as one piece.
void prefill_in_pieces(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens,
                       const Engine::Progress& progress);

}  // namespace riffle
