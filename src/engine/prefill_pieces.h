// A long prompt, read so that stopping it does not lose all of it.
#pragma once
#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace riffle {

// As Engine::prefill, but a run of layers takes a few seconds' worth of tokens at most, so that
// after RIFFLE_ABORTED (and after any other error) the sequence holds what the finished runs have
// read. Keys and values do not depend on where the pieces end. Selectors that learn from the end of
// a prompt, and lists of positions, get the prompt as one piece. riffle.h and riffle-read(1) name
// the smallest piece, and how long one takes.
void prefill_in_pieces(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens,
                       const Engine::Progress& progress);

}  // namespace riffle
