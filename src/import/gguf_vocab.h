// The vocabulary of a GGUF file: tokenizer.ggml.*.
#pragma once
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace riffle {

// tokenizer.ggml.*: pieces and options, of sentencepiece's kind (model "llama", for
// tokenizer_from_pieces), of byte-level BPE's ("gpt2", options.byte_level) or of sentencepiece-like
// BPE's ("gemma4", options.merged), the latter two for bpe_from_gguf, which reads the rest.
struct GgufVocab {
  std::vector<VocabPiece> pieces;
  VocabOptions options;
};
// Throws RIFFLE_BAD_MODEL; RIFFLE_UNSUPPORTED for another kind.
GgufVocab gguf_vocab(const GgufFile& gguf);

// Reads tokenizer.ggml.* with model "gpt2" or "gemma4". Throws RIFFLE_BAD_MODEL;
// RIFFLE_UNSUPPORTED, also for a pre-tokenizer (tokenizer.ggml.pre) that riffle does not know. A
// file that names none is read with "default", and the result has a note. vocab: gguf_vocab() of
// the file.
BpeSpec bpe_from_gguf(const GgufFile& gguf, GgufVocab vocab);
// Returns the tokenizer.ggml.pre with which bpe_from_gguf splits text as spec does. Throws
// RIFFLE_UNSUPPORTED if there is none.
std::string_view gguf_pre(const BpeSpec& spec);
// Tells whether spec is of GGUF's model "gemma4".
bool is_gemma4(const BpeSpec& spec);

}  // namespace riffle
