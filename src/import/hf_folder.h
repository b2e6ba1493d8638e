// A Hugging Face folder: config.json, *.safetensors in one or several files, tokenizer.model or
// tokenizer.json, tokenizer_config.json, chat_template.json.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "util/checked.h"

namespace riffle {

// Everything but the tokenizer. Throws RIFFLE_IO, RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED,
// RIFFLE_ABORTED.
std::unique_ptr<Model> read_hf_folder(const std::string& folder, const LoadProgress& progress);

}  // namespace riffle
