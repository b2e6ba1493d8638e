#include "import/load_model.h"

#include <algorithm>
#include <utility>

#include "chat/chat_template.h"
#include "formats/gguf_split.h"
#include "formats/hf_files.h"
#include "import/draft.h"
#include "import/end_tokens.h"
#include "import/read_config.h"
#include "text/bpe.h"
#include "text/tokenizer_json.h"
#include "util/error.h"
#include "util/mapped_file.h"

namespace riffle {

namespace {

// Rows of the embedding beyond the last piece are padding; pieces beyond the last row would have no
// embedding.
void check_vocab(const Draft& draft, const std::string& where) {
  const int n_pieces = draft.parts.tokenizer->vocab_size();
  if (n_pieces > draft.config.vocab_size) {
    bad_model(where, "vocab_size", std::to_string(draft.config.vocab_size),
              "at least " + std::to_string(n_pieces) + ", the number of pieces of the tokenizer");
  }
}

std::string file_stem(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
}

Draft read_gguf(const std::string& path, const LoadProgress& progress) {
  GgufParts file = open_gguf(path);
  GgufVocab vocab;
  Draft draft = draft_from_gguf(file.gguf, progress, &vocab);
  draft.parts.files = std::move(file.files);
  if (draft.config.name.empty()) draft.config.name = file_stem(path);
  draft.parts.tokenizer = tokenizer_from_gguf(file.gguf, std::move(vocab));
  check_vocab(draft, path);
  return draft;
}

constexpr uint64_t kMaxTokenizerBytes = 256 << 20;

std::shared_ptr<MappedFile> open_tokenizer(const std::string& path) {
  auto file = MappedFile::open(path);
  if (file->view().size > kMaxTokenizerBytes) {
    bad_model(path, "file size", std::to_string(file->view().size) + " bytes", "at most 256 MiB");
  }
  return file;
}

// Returns a token added after training, which has no piece in tokenizer.model; nullptr if there is
// none except the padding token.
const TokenizerConfig::AddedToken* token_beyond(const TokenizerConfig& config,
                                                const Tokenizer& tokenizer) {
  for (const auto& token : config.added_tokens) {
    if (token.id >= static_cast<uint64_t>(tokenizer.vocab_size()) && token.text != config.pad_token)
      return &token;
  }
  return nullptr;
}

TokenizerConfig tokenizer_settings(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  return file_exists(path) ? parse_tokenizer_config(MappedFile::open(path)->view())
                           : TokenizerConfig();
}

// tokenizer: set if the vocabulary is that of tokenizer.model alone, since it was made to find that
// out.
FolderVocab read_vocab(const std::string& folder, const TokenizerConfig& config,
                       const Config& model, std::unique_ptr<Tokenizer>* tokenizer) {
  const std::string sentencepiece = folder + "/tokenizer.model", json = folder + "/tokenizer.json";
  FolderVocab vocab;
  vocab.add_bos = config.add_bos.value_or(true);
  if (!file_exists(sentencepiece) && !file_exists(json))
    throw Error(RIFFLE_IO,
                folder + ": found neither tokenizer.json nor tokenizer.model, expected one");
  if (file_exists(sentencepiece)) {
    vocab.sentencepiece = open_tokenizer(sentencepiece);
    *tokenizer =
        tokenizer_from_model(vocab.sentencepiece->view().text(), sentencepiece, vocab.add_bos);
    const auto* beyond = token_beyond(config, **tokenizer);
    if (!beyond) return vocab;
    // sentencepiece would never produce its id.
    if (!file_exists(json)) {
      unsupported(
          folder + "/tokenizer_config.json", "added_tokens_decoder",
          "token \"" + beyond->text + "\" with id " + std::to_string(beyond->id),
          "only the " + std::to_string((*tokenizer)->vocab_size()) + " pieces of tokenizer.model");
    }
    tokenizer->reset();
  }
  TokenizerJsonOptions options;
  options.bos_token = config.bos_token;
  options.eos_token = config.eos_token;
  options.pad_token = config.pad_token;
  options.add_bos = config.add_bos;
  options.bos_id = model.bos_id;
  options.eos_id = model.eos_id;
  options.max_vocab = model.vocab_size;
  vocab.bpe = parse_tokenizer_json(open_tokenizer(json)->view(), options);
  return vocab;
}

std::unique_ptr<Tokenizer> tokenizer_of_folder(const std::string& folder,
                                               const TokenizerConfig& config, const Config& model) {
  std::unique_ptr<Tokenizer> tokenizer;
  FolderVocab vocab = read_vocab(folder, config, model, &tokenizer);
  return tokenizer ? std::move(tokenizer) : tokenizer_from_bpe(std::move(*vocab.bpe));
}

// transformers asks the tokenizer of a text model, which reads chat_template.jinja before
// tokenizer_config.json. For a model that takes images it asks the processor, which reads
// chat_template.json before chat_template.jinja. Files that transformers would not read come last.
std::string template_of_folder(const std::string& folder, const TokenizerConfig& settings,
                               bool takes_images) {
  const std::string json = folder + "/chat_template.json", jinja = folder + "/chat_template.jinja";
  const auto of_json = [&] { return parse_chat_template_json(MappedFile::open(json)->view()); };
  if (takes_images && file_exists(json)) return of_json();
  if (file_exists(jinja)) return std::string(MappedFile::open(jinja)->view().text());
  if (!settings.chat_template.empty() || !file_exists(json)) return settings.chat_template;
  return of_json();
}

Draft read_folder(const std::string& folder, const LoadProgress& progress) {
  Draft draft = draft_from_folder(folder, progress);
  Config& c = draft.config;
  const TokenizerConfig settings = tokenizer_settings(folder);
  draft.parts.tokenizer = tokenizer_of_folder(folder, settings, c);
  check_vocab(draft, folder);
  const Tokenizer& tokenizer = *draft.parts.tokenizer;
  if (c.bos_id < 0) c.bos_id = tokenizer.bos_id();
  if (c.eos_id < 0) c.eos_id = tokenizer.eos_id();
  add_end_token(tokenizer.eos_id(), &c);
  const std::string generation = folder + "/generation_config.json";
  if (file_exists(generation)) add_generation_config(MappedFile::open(generation)->view(), &c);
  draft.parts.chat_template = template_of_folder(folder, settings, c.text_part);
  return draft;
}

Draft read_files(const std::string& path, const LoadProgress& progress) {
  if (path.find('\0') != std::string::npos)
    throw Error(RIFFLE_IO, "model path: found a NUL, expected a file name");
  const std::string found = gguf_of_folder(path);
  return is_folder(found) ? read_folder(found, progress) : read_gguf(found, progress);
}

std::unique_ptr<Model> finished(Draft draft) {
  return std::make_unique<Model>(std::move(draft.config), std::move(draft.parts));
}

}  // namespace

FolderVocab vocab_of_folder(const std::string& folder, const Config& config) {
  std::unique_ptr<Tokenizer> ignored;
  return read_vocab(folder, tokenizer_settings(folder), config, &ignored);
}

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& gguf, GgufVocab vocab) {
  if (vocab.options.byte_level || vocab.options.merged)
    return tokenizer_from_bpe(bpe_from_gguf(gguf, std::move(vocab)));
  return tokenizer_from_pieces(vocab.pieces, vocab.options, gguf.file.name);
}

namespace {

// Uses the model's own template if it can be evaluated: it is tried on one message. A template that
// refuses so short a conversation may accept others.
void take_own_template(ModelParts* model) {
  if (model->chat_template.empty()) return;
  try {
    auto chat = std::make_unique<const ChatTemplate>(model->chat_template);
    const ChatOptions any_day{Thinking::DEFAULT, TemplateDate{2026, 1, 1}};
    try {
      chat->text(*model->tokenizer, {{"user", "x", ""}}, any_day);
    } catch (const Error& e) {
      if (e.status() != RIFFLE_BAD_ARGUMENT) throw;
    }
    model->chat = std::move(chat);
  } catch (const Error& e) {
    model->chat_error = e.what();
  }
}

// Multiplies the final norm's weights by logit_scale.
void fold_logit_scale(Draft* draft) {
  const float scale = std::exchange(draft->config.logit_scale, 1.0f);
  if (scale == 1) return;
  Tensor& norm = draft->parts.weights.final_norm;
  const auto* weights = static_cast<const float*>(norm.data);
  auto scaled = std::make_unique<std::vector<float>>(weights, weights + norm.cols);
  for (float& w : *scaled) w *= scale;
  draft->parts.owned.push_back(std::move(scaled));
  norm.data = draft->parts.owned.back()->data();
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress,
                                  std::unique_ptr<const ChatTemplate> chat) {
  Draft draft = read_files(path, progress);
  fold_logit_scale(&draft);
  ModelParts& parts = draft.parts;
  parts.chat = std::move(chat);
  if (parts.chat && parts.tokenizer) parts.chat->check_vocabulary(*parts.tokenizer);
  if (!parts.chat) take_own_template(&parts);
  if (parts.chat) {
    for (const int32_t id : parts.chat->end_ids(*parts.tokenizer)) add_end_token(id, &draft.config);
    // Files of gpt-oss may say that <|end|> ends a turn. Here it ends the reasoning.
    std::erase(draft.config.eos_ids, parts.chat->reasoning_end_id(*parts.tokenizer));
  }
  return finished(std::move(draft));
}

std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress) {
  return load_model(path, progress, nullptr);
}

std::unique_ptr<Model> read_model(const std::string& path, const LoadProgress& progress) {
  return finished(read_files(path, progress));
}

}  // namespace riffle
