// tokenizer.json of a Hugging Face folder (the format of the tokenizers library), as far as byte
// pair encoding goes.
#pragma once
#include "text/bpe.h"
#include "util/checked.h"

namespace riffle {

// Settings from outside of the file that override it.
struct TokenizerJsonOptions {
  std::string bos_token, eos_token, pad_token;  // tokenizer_config.json; may be empty
  std::optional<bool>
      add_bos;  // tokenizer_config.json's add_bos_token, which overrides the post_processor
  int bos_id = -1, eos_id = -1;  // config.json's, used if the names above are empty or unknown
  int max_vocab =
      1 << 22;  // rows of the embedding; the padding token may lie beyond and is left out
};

// Throws RIFFLE_BAD_MODEL; RIFFLE_UNSUPPORTED for a feature that riffle lacks, with its name.
BpeSpec parse_tokenizer_json(const FileView& file, const TokenizerJsonOptions& options);

}  // namespace riffle
