#include "text/sentencepiece_pieces.h"

#include <algorithm>

#include "util/utf8.h"

namespace riffle {

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model)
    : remove_extra_(model.remove_extra_whitespaces),
      add_space_(model.add_dummy_prefix),
      space_as_suffix_(model.treat_whitespace_as_suffix),
      space_(model.escape_whitespaces ? kSpaceSymbol : " ") {
  for (size_t i = 0; i < model.pieces.size(); ++i)
    if (model.pieces[i].type == VocabPiece::USER_DEFINED)
      user_defined_.add(model.pieces[i].text, static_cast<int>(i));
  user_defined_.sort();
}

size_t SentencePieceNormalizer::unit_bytes(std::string_view text) const {
  const auto* const own = user_defined_.longest_at(text);
  return own ? own->first.size() : char_bytes(text, 0);
}

std::string SentencePieceNormalizer::normalize(std::string_view text) const {
  std::string out;
  if (remove_extra_)
    while (!text.empty() && text.substr(0, unit_bytes(text)) == " ") text.remove_prefix(1);
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2 + space_.size());
  if (add_space_ && !space_as_suffix_) out += space_;
  bool after_space = remove_extra_;
  while (!text.empty()) {
    // If no space is removed, text may be cut anywhere.
    std::string_view unit = remove_extra_ ? text.substr(0, unit_bytes(text)) : text;
    text.remove_prefix(unit.size());
    while (after_space && unit.starts_with(' ')) unit.remove_prefix(1);
    for (const char c : unit) {
      if (c == ' ') out += space_;
      else out += c;
    }
    if (!unit.empty()) after_space = remove_extra_ && unit.ends_with(' ');
  }
  // The library also removes space symbols that the text itself ends with.
  if (remove_extra_)
    while (out.ends_with(space_)) out.resize(out.size() - space_.size());
  if (add_space_ && space_as_suffix_) out += space_;
  return out;
}

SentencePieceIds::Unknown::Unknown(const SentencePieceModel& model)
    : byte_fallback(model.byte_fallback) {
  std::fill(byte_ids, byte_ids + 256, -1);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const VocabPiece& piece = model.pieces[i];
    if (piece.type == VocabPiece::UNKNOWN) id = static_cast<int>(i);
    if (piece.type == VocabPiece::BYTE) byte_ids[byte_of_piece(piece.text)] = static_cast<int>(i);
  }
}

void SentencePieceIds::add_unknown(std::string_view text) {
  if (unknown_.byte_fallback) {
    for (const char c : text) ids_->push_back(unknown_.byte_ids[static_cast<unsigned char>(c)]);
  } else if (!after_unknown_) {
    ids_->push_back(unknown_.id);
  }
  after_unknown_ = true;
}

}  // namespace riffle
