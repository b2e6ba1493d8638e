// Writes a model's configuration and vocabulary as metadata of a GGUF file (ggml docs/gguf.md), in
// the keys that config_from_gguf, gguf_vocab and bpe_from_gguf read.
#pragma once
#include "formats/gguf_writer.h"
#include "model/model.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace riffle {

// Writes general.* except the types of weights, and the architecture's keys. The caller writes the
// tensors of rope_factors_of. Throws RIFFLE_UNSUPPORTED if a field of config has no key.
void write_config(GgufFileWriter& out, const Config& config, const std::string& where);

// The tensors of RoPE that the file has: divisors of the frequencies, with their names (llama3
// scaling, factors, longrope). Empty for other scalings.
struct NamedFactors {
  const char* name;
  std::vector<float> values;
};
std::vector<NamedFactors> rope_factors_of(const Config& config);

// Write tokenizer.ggml.*, and add unused pieces until there is a piece for each row of the
// embedding. write_pieces: a sentencepiece vocabulary of the BPE kind. write_bpe: byte-level BPE.
// User-defined pieces get bare spaces (with_bare_spaces).
void write_pieces(GgufFileWriter& out, std::vector<VocabPiece> pieces, bool add_space_prefix,
                  bool add_bos, const Config& config);
void write_bpe(GgufFileWriter& out, const BpeSpec& spec, const Config& config);

}  // namespace riffle
