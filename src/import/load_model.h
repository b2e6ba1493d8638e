// Loads a model, as a whole or by functions that work on memory.
#pragma once
#include <memory>

#include "formats/gguf.h"
#include "import/gguf_vocab.h"
#include "model/model.h"
#include "text/bpe.h"
#include "util/mapped_file.h"

namespace riffle {

// path: a .gguf file or a Hugging Face folder. chat: the format of conversations; null: the model's
// own template. Its end-of-turn tokens end answers too (Config::eos_ids). Throws Error: RIFFLE_IO,
// RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress,
                                  std::unique_ptr<const ChatTemplate> chat);
std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress);

// Reads the files at path and adds nothing that follows from them: no chat format, and only the end
// tokens that the files name.
std::unique_ptr<Model> read_model(const std::string& path, const LoadProgress& progress);

// Reads everything except the tokenizer from a GGUF file in memory. Requires: it outlives
// the model.
std::unique_ptr<Model> model_from_gguf(const GgufFile& gguf, const LoadProgress& progress);

// vocab: gguf_vocab() of the file. Throws RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& gguf, GgufVocab vocab);

// The vocabulary in the files of a Hugging Face folder.
struct FolderVocab {
  std::shared_ptr<MappedFile> sentencepiece;  // tokenizer.model; null: none
  std::optional<BpeSpec>
      bpe;  // from tokenizer.json, if there is no tokenizer.model or it lacks added tokens
  bool add_bos = true;  // only with sentencepiece
};
FolderVocab vocab_of_folder(const std::string& folder, const Config& config);

}  // namespace riffle
