// Hashes by which a session's file identifies the model that it was made with.
#pragma once
#include <cstdint>

#include "model/model.h"

namespace riffle {

// Hashes the configuration, and every tensor's name, type, shape, first and last bytes and some
// bytes between: a few megabytes of a model of any size. A model that was trained further differs
// everywhere, so its hash differs too.
uint64_t weights_fingerprint(const Model& model);

// Hashes all pieces, their order, and their merges or scores (Tokenizer::rules_hash). Returns 0 if
// the model has no tokenizer.
uint64_t tokenizer_fingerprint(const Model& model);

}  // namespace riffle
