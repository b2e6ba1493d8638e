// The vocabulary of a GGUF file: tokenizer.ggml.*.
#pragma once
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace riffle {

// tokenizer.ggml.*: pieces and options, of sentencepiece's kind (model "llama", for
// tokenizer_from_pieces) or of byte-level BPE's ("gpt2", options.byte_level, for bpe_from_gguf,
// which reads the rest).
struct GgufVocab {
  std::vector<VocabPiece> pieces;
  VocabOptions options;
};
// Throws RIFFLE_BAD_MODEL; RIFFLE_UNSUPPORTED for another kind.
GgufVocab gguf_vocab(const GgufFile& gguf);

// tokenizer.ggml.* with model "gpt2". Throws RIFFLE_BAD_MODEL; RIFFLE_UNSUPPORTED, for a
// pre-tokenizer (tokenizer.ggml.pre) too that riffle does not know. One that names none is taken
// for "default", with a note.
// vocab: gguf_vocab() of the file.
BpeSpec bpe_from_gguf(const GgufFile& gguf, GgufVocab vocab);
// The tokenizer.ggml.pre under which bpe_from_gguf cuts text as spec says; RIFFLE_UNSUPPORTED if
// there is none.
std::string_view gguf_pre(const BpeSpec& spec);

}  // namespace riffle
