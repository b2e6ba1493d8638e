#include "model/load_model.h"

#include "model/hf_folder.h"
#include "model/mapped_file.h"
#include "model/tokenizer.h"
#include "util/error.h"

namespace riffle {

namespace {

// Rows of the embedding beyond the last piece are padding; pieces beyond the last row would have no embedding.
void check_vocab(const Model& model, const std::string& where) {
  const int n_pieces = model.tokenizer->vocab_size();
  if (n_pieces > model.config.vocab_size) {
    bad_model(where, "vocab_size", std::to_string(model.config.vocab_size),
              "at least " + std::to_string(n_pieces) + ", the number of pieces of the tokenizer");
  }
}

std::string file_stem(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
}

std::unique_ptr<Model> load_gguf(const std::string& path, const LoadProgress& progress) {
  const auto file = MappedFile::open(path);
  const GgufFile gguf = parse_gguf(file->view());
  auto model = model_from_gguf(gguf, progress);
  model->files.push_back(file);
  if (model->config.name.empty()) model->config.name = file_stem(path);
  VocabOptions options;
  const std::vector<VocabPiece> pieces = gguf_vocab(gguf, &options);
  model->tokenizer = tokenizer_from_pieces(pieces, options, path);
  check_vocab(*model, path);
  return model;
}

// Tokens added after training have no piece; sentencepiece would never produce their ids.
void refuse_added_tokens(const TokenizerConfig& config, const Tokenizer& tokenizer, const std::string& where) {
  for (const auto& token : config.added_tokens) {
    if (token.id < static_cast<uint64_t>(tokenizer.vocab_size()) || token.text == config.pad_token) continue;
    unsupported(where, "added_tokens_decoder", "token \"" + token.text + "\" with id " + std::to_string(token.id),
                "only the " + std::to_string(tokenizer.vocab_size()) + " pieces of tokenizer.model");
  }
}

std::unique_ptr<Model> load_folder(const std::string& folder, const LoadProgress& progress) {
  constexpr uint64_t kMaxTokenizerBytes = 256 << 20;
  auto model = read_hf_folder(folder, progress);
  const std::string path = folder + "/tokenizer.model";
  if (!file_exists(path) && file_exists(folder + "/tokenizer.json")) {
    unsupported(folder, "tokenizer", "tokenizer.json alone", "tokenizer.model (sentencepiece)");
  }
  const auto file = MappedFile::open(path);
  if (file->view().size > kMaxTokenizerBytes) {
    bad_model(path, "file size", std::to_string(file->view().size) + " bytes", "at most 256 MiB");
  }
  model->tokenizer = tokenizer_from_model(file->view().text(), path);
  check_vocab(*model, folder);
  Config& c = model->config;
  if (c.bos_id < 0) c.bos_id = model->tokenizer->bos_id();
  if (c.eos_id < 0) c.eos_id = model->tokenizer->eos_id();

  const std::string settings = folder + "/tokenizer_config.json";
  if (file_exists(settings)) {
    const TokenizerConfig config = parse_tokenizer_config(MappedFile::open(settings)->view());
    refuse_added_tokens(config, *model->tokenizer, settings);
    model->chat_template = config.chat_template;
  }
  // Where newer versions of transformers keep the template; they prefer it.
  const std::string jinja = folder + "/chat_template.jinja";
  if (file_exists(jinja)) model->chat_template = MappedFile::open(jinja)->view().text();
  return model;
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress) {
  if (path.find('\0') != std::string::npos) throw Error(RIFFLE_IO, "model path: found a NUL, expected a file name");
  return is_folder(path) ? load_folder(path, progress) : load_gguf(path, progress);
}

}  // namespace riffle
