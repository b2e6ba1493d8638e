// Model configuration out of GGUF metadata or config.json. Whatever would change the arithmetic and
// is not implemented is refused by name, never ignored.
#pragma once
#include "import/end_tokens.h"
#include "import/gguf_vocab.h"
#include "model/model.h"

namespace riffle {

struct Family;

// name, bos_id, eos_id, eos_ids and tied_output are filled too (tied: the file has no output
// tensor), and *vocab, which those ids come from. Throws RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
Config config_from_gguf(const GgufFile& gguf, GgufVocab* vocab);

// file: config.json of a Hugging Face folder (transformers' LlamaConfig, its defaults included).
// name stays empty; bos_id and eos_id are -1 if it does not give them. Throws RIFFLE_BAD_MODEL,
// RIFFLE_UNSUPPORTED. family: is set, unless null; two with the same architecture may differ in the
// names of tensors.
Config config_from_json(const FileView& file, const Family** family = nullptr);

// file: generation_config.json. Adds the tokens that it ends answers with to eos_ids. Throws
// RIFFLE_BAD_MODEL.
void add_generation_config(const FileView& file, Config* config);

}  // namespace riffle
