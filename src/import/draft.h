// A model while it is loaded. Its configuration is complete once all files are read, including its
// tokenizer and chat template.
#pragma once
#include <string>

#include "import/gguf_vocab.h"
#include "model/model.h"

namespace riffle {

struct Draft {
  Config config;
  ModelParts parts;
};

// Reads a GGUF file, except the tokenizer, which is made from *vocab.
Draft draft_from_gguf(const GgufFile& gguf, const LoadProgress& progress, GgufVocab* vocab);

// Reads config.json and the weights of a Hugging Face folder, without the tokenizer, and with only
// config.json's end tokens. Throws RIFFLE_IO, RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED, RIFFLE_ABORTED.
Draft draft_from_folder(const std::string& folder, const LoadProgress& progress);

}  // namespace riffle
