#include "text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "util/checked.h"
#include "util/error.h"

namespace riffle {
namespace {

constexpr size_t kMaxPieces = 1 << 20;   // 4 times the largest vocabulary known
constexpr size_t kMaxPieceBytes = 1024;  // the work of a merge grows with it
constexpr size_t kMaxSurfaceBytes = 64;
// The sentencepiece library reads past an array of 64 results if more user-defined pieces begin at
// one place, so no model that works elsewhere has more.
constexpr size_t kMaxNestedUserDefined = 64;

enum WireType { VARINT = 0, I64 = 1, LEN = 2, I32 = 5 };

// One protobuf field. value holds numbers, bytes holds fields of type LEN.
struct Field {
  uint32_t number = 0;
  int type = VARINT;
  uint64_t value = 0;
  std::string_view bytes;
};

// Walks over the fields of one message.
class MessageReader {
 public:
  MessageReader(std::string_view data, const char* message, const std::string& where)
      : data_(data), message_(message), where_(where) {}

  bool next(Field* field) {
    if (pos_ == data_.size()) return false;
    const uint64_t tag = varint();
    if (tag >> 3 == 0 || tag >> 32 != 0) bad("a field number out of range");
    field->number = static_cast<uint32_t>(tag >> 3);
    field->type = static_cast<int>(tag & 7);
    switch (field->type) {
      case VARINT: field->value = varint(); break;
      case I64: field->value = fixed(8); break;
      case I32: field->value = fixed(4); break;
      case LEN: {
        const uint64_t size = varint();
        if (size > data_.size() - pos_) bad("a length that exceeds the data");
        field->bytes = data_.substr(pos_, size);
        pos_ += size;
        break;
      }
      default: bad("an unknown wire type");
    }
    return true;
  }

  // Return the field's content. Throw unless it has the wire type that the .proto gives it.
  std::string_view bytes(const Field& field) const {
    expect(field, LEN);
    return field.bytes;
  }
  uint64_t number(const Field& field) const {
    expect(field, VARINT);
    return field.value;
  }
  float real(const Field& field) const {
    expect(field, I32);
    return std::bit_cast<float>(static_cast<uint32_t>(field.value));
  }

 private:
  [[noreturn]] void bad(const char* found) const {
    fail(RIFFLE_BAD_MODEL, "%s: not a sentencepiece model: %s has %s at byte %zu", where_.c_str(),
         message_, found, pos_);
  }
  void expect(const Field& field, int type) const {
    if (field.type != type) {
      fail(RIFFLE_BAD_MODEL,
           "%s: not a sentencepiece model: field %u of %s has wire type %d, expected %d",
           where_.c_str(), field.number, message_, field.type, type);
    }
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (pos_ == data_.size()) bad("a number cut short");
      const uint8_t byte = static_cast<uint8_t>(data_[pos_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    bad("a number of more than 10 bytes");
  }
  uint64_t fixed(size_t size) {
    if (size > data_.size() - pos_) bad("a number cut short");
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
      value |= static_cast<uint64_t>(static_cast<uint8_t>(data_[pos_ + i])) << (8 * i);
    pos_ += size;
    return value;
  }

  std::string_view data_;
  const char* message_;
  const std::string& where_;
  size_t pos_ = 0;
};

VocabPiece parse_piece(std::string_view data, const std::string& where) {
  MessageReader reader(data, "SentencePiece", where);
  VocabPiece piece;
  for (Field field; reader.next(&field);) {
    switch (field.number) {
      case 1: piece.text = reader.bytes(field); break;
      case 2: piece.score = reader.real(field); break;
      case 3: piece.type = static_cast<int>(std::min<uint64_t>(reader.number(field), 255)); break;
    }
  }
  return piece;
}

void parse_trainer_spec(std::string_view data, const std::string& where,
                        SentencePieceModel* model) {
  MessageReader reader(data, "TrainerSpec", where);
  for (Field field; reader.next(&field);) {
    switch (field.number) {
      case 3: {
        const uint64_t type = reader.number(field);
        if (type != 1 && type != 2) {
          fail(RIFFLE_UNSUPPORTED,
               "%s: sentencepiece model_type %llu, supported: 1 (unigram) and 2 (BPE)",
               where.c_str(), static_cast<unsigned long long>(type));
        }
        model->bpe = type == 2;
        break;
      }
      case 24: model->treat_whitespace_as_suffix = reader.number(field) != 0; break;
      case 35: model->byte_fallback = reader.number(field) != 0; break;
      case 44: model->unk_surface = reader.bytes(field); break;
      case 46: model->bos_piece = reader.bytes(field); break;
      case 47: model->eos_piece = reader.bytes(field); break;
    }
  }
}

void parse_normalizer_spec(std::string_view data, const std::string& where,
                           SentencePieceModel* model) {
  MessageReader reader(data, "NormalizerSpec", where);
  for (Field field; reader.next(&field);) {
    switch (field.number) {
      case 2:
        if (!reader.bytes(field).empty()) {
          fail(RIFFLE_UNSUPPORTED,
               "%s: the tokenizer's precompiled_charsmap has %zu bytes, supported: none"
               " (normalizer 'identity')",
               where.c_str(), field.bytes.size());
        }
        break;
      case 3: model->add_dummy_prefix = reader.number(field) != 0; break;
      case 4: model->remove_extra_whitespaces = reader.number(field) != 0; break;
      case 5: model->escape_whitespaces = reader.number(field) != 0; break;
    }
  }
}

// An error text must not carry control characters or megabytes from a hostile file.
std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 40)) {
    if (static_cast<uint8_t>(c) < 0x20 || static_cast<uint8_t>(c) >= 0x7F) {
      out += format("\\x%02X", static_cast<uint8_t>(c));
    } else {
      out += c;
    }
  }
  return out + (text.size() > 40 ? "...'" : "'");
}

void check_pieces(const SentencePieceModel& model, const std::string& where) {
  const std::vector<VocabPiece>& pieces = model.pieces;
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(pieces.size());
  int64_t unknown = -1;
  size_t n_words = 0;
  std::bitset<256> bytes;
  for (size_t i = 0; i < pieces.size(); i++) {
    const VocabPiece& piece = pieces[i];
    const auto bad = [&](const char* what) {
      fail(RIFFLE_BAD_MODEL, "%s: vocabulary piece %zu %s %s", where.c_str(), i,
           in_quotes(piece.text).c_str(), what);
    };
    if (piece.text.empty()) bad("is empty");
    if (piece.text.size() > kMaxPieceBytes)
      bad(format("has more than %zu bytes", kMaxPieceBytes).c_str());
    if (utf8_error(piece.text) >= 0) bad("is not UTF-8");
    if (piece.text.find('\0') != std::string::npos) bad("contains a NUL");
    if (!std::isfinite(piece.score)) bad("has a score that is not finite");
    const auto [it, fresh] = seen.emplace(piece.text, i);
    if (!fresh) bad(format("is also piece %zu", it->second).c_str());
    switch (piece.type) {
      case VocabPiece::NORMAL:
      case VocabPiece::USER_DEFINED:
      case VocabPiece::UNUSED: n_words++; break;
      case VocabPiece::CONTROL: break;
      case VocabPiece::UNKNOWN:
        if (unknown >= 0)
          bad(format("is a second unknown piece (first: %lld)", (long long)unknown).c_str());
        unknown = static_cast<int64_t>(i);
        break;
      case VocabPiece::BYTE:
        if (byte_of_piece(piece.text) < 0) bad("has type byte, expected <0x00> to <0xFF>");
        if (!model.byte_fallback) bad("has type byte, but the model says it has no byte fallback");
        bytes.set(byte_of_piece(piece.text));
        break;
      default: bad(format("has type %d, expected 1 to 6", piece.type).c_str());
    }
  }
  if (unknown < 0)
    fail(RIFFLE_BAD_MODEL, "%s: the vocabulary has no unknown piece (type 2)", where.c_str());
  if (n_words == 0)
    fail(RIFFLE_BAD_MODEL, "%s: the vocabulary has no normal piece (type 1)", where.c_str());
  if (model.byte_fallback && !bytes.all()) {
    size_t missing = 0;
    while (bytes[missing]) missing++;
    fail(RIFFLE_BAD_MODEL,
         "%s: the vocabulary has %zu byte pieces, expected 256: <0x%02zX> is missing",
         where.c_str(), bytes.count(), missing);
  }
}

void check_nesting(const SentencePieceModel& model, const std::string& where) {
  std::vector<std::string_view> sorted,
      open;  // open: the pieces that each begin with the one before
  for (const VocabPiece& piece : model.pieces) {
    if (piece.type == VocabPiece::USER_DEFINED) sorted.push_back(piece.text);
  }
  std::sort(sorted.begin(), sorted.end());
  for (const std::string_view text : sorted) {
    while (!open.empty() && !text.starts_with(open.back())) open.pop_back();
    open.push_back(text);
    if (open.size() > kMaxNestedUserDefined) {
      fail(
          RIFFLE_BAD_MODEL,
          "%s: more than %zu user-defined pieces are prefixes of one another, the longest being %s",
          where.c_str(), kMaxNestedUserDefined, in_quotes(text).c_str());
    }
  }
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at; (at = text.find(from)) != text.npos; text.remove_prefix(at + from.size()))
    out.append(text.substr(0, at)).append(to);
  return out.append(text);
}

}  // namespace

std::string with_space_symbols(std::string_view text) { return replaced(text, " ", kSpaceSymbol); }
std::string with_bare_spaces(std::string_view text) { return replaced(text, kSpaceSymbol, " "); }

SentencePieceModel parse_sentencepiece_model(std::string_view serialized,
                                             const std::string& where) {
  refuse_lfs_pointer(where, serialized);
  SentencePieceModel model;
  MessageReader reader(serialized, "ModelProto", where);
  for (Field field; reader.next(&field);) {
    switch (field.number) {
      case 1:
        if (model.pieces.size() == kMaxPieces) {
          fail(RIFFLE_BAD_MODEL, "%s: the vocabulary has more than %zu pieces", where.c_str(),
               kMaxPieces);
        }
        model.pieces.push_back(parse_piece(reader.bytes(field), where));
        break;
      case 2: parse_trainer_spec(reader.bytes(field), where, &model); break;
      case 3: parse_normalizer_spec(reader.bytes(field), where, &model); break;
      case 5: {  // denormalizer_spec: only its character map does anything
        SentencePieceModel ignored;
        parse_normalizer_spec(reader.bytes(field), where, &ignored);
        break;
      }
    }
  }
  return model;
}

void check_sentencepiece_model(const SentencePieceModel& model, const std::string& where) {
  if (model.pieces.empty()) fail(RIFFLE_BAD_MODEL, "%s: the vocabulary is empty", where.c_str());
  if (model.pieces.size() > kMaxPieces) {
    fail(RIFFLE_BAD_MODEL, "%s: the vocabulary has %zu pieces, at most %zu are supported",
         where.c_str(), model.pieces.size(), kMaxPieces);
  }
  if (model.unk_surface.size() > kMaxSurfaceBytes || utf8_error(model.unk_surface) >= 0) {
    fail(RIFFLE_BAD_MODEL, "%s: unk_surface %s, expected UTF-8 of at most %zu bytes", where.c_str(),
         in_quotes(model.unk_surface).c_str(), kMaxSurfaceBytes);
  }
  check_pieces(model, where);
  check_nesting(model, where);
}

}  // namespace riffle
