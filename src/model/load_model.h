// load_model (model.h) in pieces that work on memory, for tests and fuzzers.
#pragma once
#include <memory>

#include "model/formats/gguf.h"
#include "model/formats/mapped_file.h"
#include "model/model.h"
#include "model/text/bpe.h"

namespace riffle {

// What the files at path say, and nothing that follows from it: no chat format, and of the end
// tokens only those that the files name.
std::unique_ptr<Model> read_model(const std::string& path, const LoadProgress& progress);

// Everything but the tokenizer, from a GGUF file in memory, which must outlive the model. vocab, if
// not null: the pieces, for tokenizer_from_gguf.
std::unique_ptr<Model> model_from_gguf(const GgufFile& gguf, const LoadProgress& progress,
                                       GgufVocab* vocab = nullptr);

// vocab: gguf_vocab() of the file. Throws RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& gguf, GgufVocab vocab);

// The vocabulary of a Hugging Face folder, as its files have it.
struct FolderVocab {
  std::shared_ptr<MappedFile> sentencepiece;  // tokenizer.model; null: none
  std::optional<BpeSpec>
      bpe;  // of tokenizer.json, where there is no tokenizer.model or where that lacks added tokens
  bool add_bos = true;  // with sentencepiece alone
};
FolderVocab vocab_of_folder(const std::string& folder, const Config& config);

}  // namespace riffle
