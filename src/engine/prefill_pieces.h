// Reads a long prompt so that stopping does not lose all of it.
#pragma once
#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace riffle {

// Does the same as Engine::prefill in pieces of a few seconds. A piece is a part of the prompt's
// tokens; it goes through all layers before the next one begins. So after RIFFLE_ABORTED (and after
// any other error) the sequence holds the tokens of the finished pieces. Keys and values do not
// depend on the ends of the pieces. Selectors that learn from the end of a prompt, and lists of
// positions, get the prompt as one piece. riffle.h and riffle-read(1) give the smallest size of a
// piece, and the time that a piece takes.
void prefill_in_pieces(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens,
                       const Engine::Progress& progress);

}  // namespace riffle
