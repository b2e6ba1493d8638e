// Sentencepiece's BPE, without the library: the ids are the library's. The library's own encoder is
// not safe where memory runs out: an exception from an allocation ends the process inside of it.
#pragma once
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/text/added_tokens.h"
#include "model/text/sentencepiece_model.h"

namespace riffle {

class SentencePieceBpe {
 public:
  // Whether this encoder knows what the model asks for. Else the library has to encode.
  static bool fits(const SentencePieceModel& model);

  // model: checked (check_sentencepiece_model); outlives this.
  explicit SentencePieceBpe(const SentencePieceModel& model);

  // text: valid UTF-8. Appends the ids.
  void encode(std::string_view text, std::vector<int>* ids) const;

 private:
  struct Symbol;
  class Merging;

  const VocabPiece& piece(int id) const { return model_.pieces[static_cast<size_t>(id)]; }
  void append(std::string_view symbol, const Merging& merging, std::vector<int>* ids) const;

  const SentencePieceModel& model_;
  std::unordered_map<std::string_view, int> mergeable_, reserved_;
  Spellings user_defined_;
  int byte_ids_[256];
};

}  // namespace riffle
