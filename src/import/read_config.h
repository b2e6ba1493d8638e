// Reads a model's configuration from GGUF metadata or config.json. An option that would change the
// arithmetic and is not implemented is refused by name, never ignored.
#pragma once
#include "import/end_tokens.h"
#include "import/gguf_vocab.h"
#include "model/model.h"

namespace riffle {

struct Family;

// Also fills in name, bos_id, eos_id, eos_ids and tied_output (tied: the file has no output
// tensor), and *vocab, from which those ids come. Throws RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
Config config_from_gguf(const GgufFile& gguf, GgufVocab* vocab);

// file: config.json of a Hugging Face folder (transformers' LlamaConfig, its defaults included).
// name stays empty; bos_id and eos_id are -1 if the file does not give them. Throws
// RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED. family: set unless null; two families with the same
// architecture may differ in the names of tensors.
Config config_from_json(const FileView& file, const Family** family = nullptr);

// file: generation_config.json. Adds the tokens that end answers according to the file to eos_ids.
// Throws RIFFLE_BAD_MODEL.
void add_generation_config(const FileView& file, Config* config);

}  // namespace riffle
