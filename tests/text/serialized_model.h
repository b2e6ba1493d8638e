// A sentencepiece model as the content of a tokenizer.model, for the sentencepiece library.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/sentencepiece_model.h"

namespace riffle_test {

inline void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *out += static_cast<char>(value | 0x80);
  *out += static_cast<char>(value);
}
inline void put_number(std::string* out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3 | 0);
  put_varint(out, value);
}
inline void put_bytes(std::string* out, uint32_t field, std::string_view bytes) {
  put_varint(out, field << 3 | 2);
  put_varint(out, bytes.size());
  out->append(bytes);
}
inline void put_float(std::string* out, uint32_t field, float value) {
  put_varint(out, field << 3 | 5);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  for (int i = 0; i < 4; i++) *out += static_cast<char>(bits >> (8 * i));
}

inline std::string serialize_sentencepiece_model(const riffle::SentencePieceModel& model) {
  std::string out, message;
  for (const riffle::VocabPiece& piece : model.pieces) {
    message.clear();
    put_bytes(&message, 1, piece.text);
    put_float(&message, 2, piece.score);
    put_number(&message, 3, static_cast<uint64_t>(piece.type));
    put_bytes(&out, 1, message);
  }
  message.clear();
  put_number(&message, 3, model.bpe ? 2 : 1);
  put_number(&message, 24, model.treat_whitespace_as_suffix);
  put_number(&message, 35, model.byte_fallback);
  put_bytes(&message, 44, model.unk_surface);
  put_bytes(&message, 46, model.bos_piece);
  put_bytes(&message, 47, model.eos_piece);
  put_bytes(&out, 2, message);
  message.clear();
  put_bytes(&message, 1, "identity");
  put_number(&message, 3, model.add_dummy_prefix);
  put_number(&message, 4, model.remove_extra_whitespaces);
  put_number(&message, 5, model.escape_whitespaces);
  put_bytes(&out, 3, message);
  return out;
}

}  // namespace riffle_test
