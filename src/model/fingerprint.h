// By what a session's file knows the model that it was made with.
#pragma once
#include <cstdint>

#include "model/model.h"

namespace riffle {

// Of the configuration, and of every tensor's name, type and shape, its first and last bytes and
// some between: a few megabytes of a model of any size. Models that were trained on differ
// everywhere, so they differ here.
uint64_t weights_fingerprint(const Model& model);

// Of all pieces, their order, and their merges or scores (Tokenizer::rules_hash); 0: the model has
// no tokenizer.
uint64_t tokenizer_fingerprint(const Model& model);

}  // namespace riffle
