// Sentencepiece's BPE, without the library: the ids are the library's, which the tests compare
// with.
#pragma once
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/sentencepiece_pieces.h"

namespace riffle {

class SentencePieceBpe {
 public:
  // model: checked (check_sentencepiece_model); outlives this.
  explicit SentencePieceBpe(const SentencePieceModel& model);

  // text: valid UTF-8. Appends the ids.
  void encode(std::string_view text, std::vector<int>* ids) const;

 private:
  struct Symbol;
  class Merging;

  const VocabPiece& piece(int id) const { return model_.pieces[static_cast<size_t>(id)]; }
  void append(std::string_view symbol, const Merging& merging, SentencePieceIds* ids) const;

  const SentencePieceModel& model_;
  SentencePieceNormalizer normalizer_;
  SentencePieceIds::Unknown unknown_;
  std::unordered_map<std::string_view, int> ids_;  // ids of the pieces that text may consist of
};

}  // namespace riffle
