#include "import/gguf_vocab.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "import/end_tokens.h"
#include "text/added_tokens.h"
#include "text/sentencepiece_model.h"
#include "util/error.h"

namespace riffle {

namespace {

// Returns the id under key; without the key, that of the first piece of this type and spelling ("":
// any); -1 if there is none.
int special_id(const GgufFile& gguf, const char* key, const std::vector<VocabPiece>& pieces,
               int type, std::string_view spelled) {
  const auto id = gguf.integer(key);
  if (id && *id == UINT32_MAX) return -1;  // "none", as some writers spell it
  if (id) {
    if (*id >= pieces.size()) {
      bad_model(gguf.file.name, key, std::to_string(*id),
                "an id below " + std::to_string(pieces.size()));
    }
    return static_cast<int>(*id);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type == type && (spelled.empty() || pieces[i].text == spelled))
      return static_cast<int>(i);
  }
  return -1;
}

// Tells whether text is a chat token that some converters mark as ordinary text: it is a control
// token nevertheless.
bool is_chat_control(std::string_view text) {
  return is_end_token_name(text) || text == "<|im_start|>" || text == "<|begin_of_text|>" ||
         text == "<|start_header_id|>" || text == "<|end_header_id|>";
}

// Returns every token that ends an answer: those that the file names, and control pieces with which
// instruct models end their turns but which files do not always name.
std::vector<int> end_ids(const GgufFile& gguf, const std::vector<VocabPiece>& pieces, int eos_id) {
  std::vector<int> ids;
  const std::string at_most = "at most " + std::to_string(kMaxTokenIds);
  const auto add = [&](int id, const char* key) {
    if (id < 0 || std::find(ids.begin(), ids.end(), id) != ids.end()) return;
    if (ids.size() == kMaxTokenIds) bad_model(gguf.file.name, key, "too many end tokens", at_most);
    ids.push_back(id);
  };
  add(eos_id, "tokenizer.ggml.eos_token_id");
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (gguf.has(key)) add(special_id(gguf, key, pieces, VocabPiece::CONTROL, ""), key);
  }
  const char* list = "tokenizer.ggml.eos_token_ids";  // Ollama's converter
  const std::vector<int64_t> listed = gguf.integers(list).value_or(std::vector<int64_t>());
  if (listed.size() > kMaxTokenIds)
    bad_model(gguf.file.name, list, std::to_string(listed.size()) + " ids", at_most);
  for (const int64_t id : listed) {
    if (id == -1 || id == UINT32_MAX) continue;  // "none", as in special_id
    if (id < 0 || static_cast<uint64_t>(id) >= pieces.size())
      bad_model(gguf.file.name, list, std::to_string(id),
                "ids below " + std::to_string(pieces.size()));
    add(static_cast<int>(id), list);
  }
  for (const std::string_view spelled : kEndTokenNames) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].type == VocabPiece::CONTROL && pieces[i].text == spelled)
        add(static_cast<int>(i), "tokenizer.ggml.tokens");
    }
  }
  return ids;
}

// Tells whether text is like "[PAD32000]", with which converters fill a vocabulary up to the rows
// of the embedding.
bool is_padding(std::string_view text) {
  return text.size() >= 6 && text.starts_with("[PAD") && text.ends_with("]") &&
         std::all_of(text.begin() + 4, text.end() - 1, [](char c) { return c >= '0' && c <= '9'; });
}

// Ollama's converter and those of 2023 mark padding as user-defined: it would be drawn, and matched
// in text.
void mark_padding(std::vector<VocabPiece>& pieces) {
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->type == VocabPiece::USER_DEFINED && is_padding(piece->text))
      piece->type = VocabPiece::UNUSED;
    if (piece->type != VocabPiece::UNUSED) return;
  }
}

// Spells user-defined pieces as text is spelled when it is searched for them (with_space_symbols).
// If another piece has that spelling, it gets the bare one instead: text never becomes that piece,
// since user-defined pieces are matched first, and it decodes to the same bytes.
void mark_spaces(std::vector<VocabPiece>& pieces) {
  std::unordered_map<std::string, size_t> spelled;  // ids of user-defined pieces, with symbols
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type == VocabPiece::USER_DEFINED && pieces[i].text.find(' ') != std::string::npos)
      spelled.emplace(with_space_symbols(pieces[i].text), i);
  }
  if (spelled.empty()) return;
  for (VocabPiece& piece : pieces) {
    const auto at = spelled.find(piece.text);
    if (at == spelled.end()) continue;
    std::swap(piece.text, pieces[at->second].text);
    spelled.erase(at);
  }
  for (const auto& [text, i] : spelled) pieces[i].text = text;
}

}  // namespace

// Ollama's converter marks the bytes of Gemma 4's vocabulary as ordinary pieces, and all special
// tokens as control tokens.
static void correct_type(VocabPiece* piece) {
  if (piece->type == VocabPiece::NORMAL && byte_of_piece(piece->text) >= 0)
    piece->type = VocabPiece::BYTE;
  if (piece->type == VocabPiece::CONTROL && is_part_of_answers(piece->text))
    piece->type = VocabPiece::USER_DEFINED;
}

GgufVocab gguf_vocab(const GgufFile& gguf) {
  constexpr uint64_t kMaxPieces = 1 << 22;
  const std::string& name = gguf.file.name;
  const auto model = gguf.string("tokenizer.ggml.model");
  if (!model) bad_model(name, "tokenizer.ggml.model", "none", "\"llama\", \"gpt2\" or \"gemma4\"");
  GgufVocab vocab;
  VocabOptions& options = vocab.options;
  options.byte_level = *model == "gpt2";
  // Ollama's converter names Gemma 4's tokenizer only as a pre-tokenizer.
  options.merged =
      *model == "gemma4" || (*model == "llama" && gguf.string("tokenizer.ggml.pre") == "gemma4");
  if (*model != "llama" && !options.byte_level && !options.merged) {
    unsupported(name, "tokenizer.ggml.model", "\"" + std::string(*model) + "\"",
                "\"llama\" (sentencepiece), \"gpt2\" (byte-level BPE) or \"gemma4\"");
  }
  if (gguf.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false)) {
    unsupported(name, "tokenizer.ggml.remove_extra_whitespaces", "true", "false");
  }
  if (gguf.has("tokenizer.ggml.precompiled_charsmap")) {
    unsupported(name, "tokenizer.ggml.precompiled_charsmap", "text normalisation rules", "none");
  }
  const auto tokens = gguf.strings("tokenizer.ggml.tokens");
  const auto scores = gguf.floats("tokenizer.ggml.scores");
  const auto types = gguf.integers("tokenizer.ggml.token_type");
  if (!tokens) bad_model(name, "tokenizer.ggml.tokens", "none", "an array of STRING");
  const std::string n = std::to_string(tokens->size());
  if (tokens->empty() || tokens->size() > kMaxPieces)
    bad_model(name, "tokenizer.ggml.tokens", n, "1 to 2^22 pieces");
  const auto length = [](const auto& list) {
    return list ? std::to_string(list->size()) : std::string("none");
  };
  const bool scored = !options.byte_level && !options.merged;
  if ((scores || scored) && (!scores || scores->size() != tokens->size())) {
    bad_model(name, "tokenizer.ggml.scores", length(scores), n + ", as many as tokens");
  }
  if (!types || types->size() != tokens->size()) {
    bad_model(name, "tokenizer.ggml.token_type", length(types), n + ", as many as tokens");
  }
  std::vector<VocabPiece>& pieces = vocab.pieces;
  pieces.resize(tokens->size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto at = [&](const char* key) {
      return std::string(key) + "[" + std::to_string(i) + "]";
    };
    const float score = scores ? (*scores)[i] : 0;
    const int64_t type = (*types)[i];
    if (!std::isfinite(score))
      bad_model(name, at("tokenizer.ggml.scores"), format("%g", score), "a finite number");
    if (type < VocabPiece::NORMAL || type > VocabPiece::BYTE) {
      bad_model(name, at("tokenizer.ggml.token_type"), std::to_string(type), "1 to 6");
    }
    const bool text = type == VocabPiece::NORMAL || type == VocabPiece::USER_DEFINED;
    pieces[i] = {
        std::string((*tokens)[i]), score,
        text && is_chat_control((*tokens)[i]) ? VocabPiece::CONTROL : static_cast<int>(type)};
    if (options.merged) correct_type(&pieces[i]);
  }
  mark_padding(pieces);
  if (scored) mark_spaces(pieces);
  options.add_dummy_prefix = gguf.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  options.add_bos = gguf.boolean("tokenizer.ggml.add_bos_token").value_or(true);
  options.bpe = true;
  options.bos_id =
      special_id(gguf, "tokenizer.ggml.bos_token_id", pieces, VocabPiece::CONTROL, "<s>");
  options.eos_id =
      special_id(gguf, "tokenizer.ggml.eos_token_id", pieces, VocabPiece::CONTROL, "</s>");
  options.unk_id =
      special_id(gguf, "tokenizer.ggml.unknown_token_id", pieces, VocabPiece::UNKNOWN, "");
  options.eos_ids = end_ids(gguf, pieces, options.eos_id);
  return vocab;
}

}  // namespace riffle
