// load_model (model.h) in pieces that work on memory, for tests and fuzzers.
#pragma once
#include <memory>

#include "model/gguf.h"
#include "model/model.h"

namespace riffle {

// Everything but the tokenizer, from a GGUF file in memory, which must outlive the model.
std::unique_ptr<Model> model_from_gguf(const GgufFile& gguf, const LoadProgress& progress);

// Throws RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& gguf);

}  // namespace riffle
