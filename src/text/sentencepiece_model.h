// A sentencepiece ModelProto, read by hand. Format: sentencepiece_model.proto of sentencepiece
// 0.1.97; https://protobuf.dev/programming-guides/encoding/
//
// Every sentencepiece vocabulary, from a tokenizer.model as from a GGUF file, becomes this struct
// and is checked. riffle has its own encoders (sentencepiece_bpe.h, sentencepiece_unigram.h),
// because a failed allocation inside the library ends the process. Tests compare with the library.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace riffle {

inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581, a space in a piece

// The defaults are those of the .proto, which apply where a file leaves a field out.
struct SentencePieceModel {
  std::vector<VocabPiece> pieces;
  bool bpe = false;  // trainer_spec.model_type: BPE, else unigram
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string bos_piece = "<s>", eos_piece = "</s>";
  std::string unk_surface = " \xE2\x81\x87 ";  // text of the unknown piece
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Turn every bare space of text into a space symbol, or every space symbol into a bare space. GGUF
// files spell user-defined pieces with bare spaces, because llama.cpp looks for these pieces in
// text whose spaces are not symbols yet. All other pieces, and those of a tokenizer.model, have
// symbols.
std::string with_space_symbols(std::string_view text);
std::string with_bare_spaces(std::string_view text);

// serialized: the content of a tokenizer.model. where: file name for error texts. Throws
// RIFFLE_BAD_MODEL, or RIFFLE_UNSUPPORTED for features that Llama-family models do not use (a
// character map, word or character models).
SentencePieceModel parse_sentencepiece_model(std::string_view serialized, const std::string& where);

// Throws RIFFLE_BAD_MODEL unless the model can be used: counts and lengths capped, pieces
// valid UTF-8 and unique, scores finite, exactly one unknown piece, byte pieces well-formed and
// either all 256 or none.
void check_sentencepiece_model(const SentencePieceModel& model, const std::string& where);

}  // namespace riffle
