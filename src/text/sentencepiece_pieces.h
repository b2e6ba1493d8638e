// Parts that sentencepiece's encoders share: normalisation, and the ids of text that no piece
// spells.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/sentencepiece_model.h"

namespace riffle {

// Normalises the spaces of valid UTF-8 text as the model's settings require.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);
  std::string normalize(std::string_view text) const;
  // Returns pieces that are never cut and keep the spaces inside them.
  const Spellings& user_defined() const { return user_defined_; }

 private:
  size_t unit_bytes(std::string_view text) const;  // bytes of the unit at the beginning of text

  bool remove_extra_, add_space_, space_as_suffix_;
  std::string_view space_;
  Spellings user_defined_;
};

// Takes the pieces of a text one after another and appends their ids.
class SentencePieceIds {
 public:
  // Ids that do not depend on the text.
  struct Unknown {
    explicit Unknown(const SentencePieceModel& model);
    int id = -1;
    bool byte_fallback;
    int byte_ids[256];
  };

  SentencePieceIds(const Unknown& unknown, std::vector<int>* ids) : unknown_(unknown), ids_(ids) {}
  void add(int id) {
    ids_->push_back(id);
    after_unknown_ = false;
  }
  // Appends the ids of the text's bytes. Without byte fallback it appends the unknown id, or
  // nothing if the text before was unknown too.
  void add_unknown(std::string_view text);

 private:
  const Unknown& unknown_;
  std::vector<int>* ids_;
  bool after_unknown_ = false;
};

}  // namespace riffle
