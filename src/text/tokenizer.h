// Converts text to token ids and back, for vocabularies of every file format: sentencepiece models
// by sentencepiece_bpe.h and sentencepiece_unigram.h, byte pair encoding from tokenizer.json or
// GGUF by bpe.h.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riffle {

// One piece as model files store it. type: sentencepiece's and GGUF's common numbering.
struct VocabPiece {
  enum Type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
  std::string text;
  float score = 0;
  int type = NORMAL;
  // Tells whether text may consist of such pieces; other kinds stand for something other than their
  // spelling.
  bool of_text() const { return type == NORMAL || type == USER_DEFINED || type == UNUSED; }
};

// Settings besides the pieces, from tokenizer.ggml.* (GGUF) or tokenizer_config.json.
struct VocabOptions {
  bool add_dummy_prefix = true;  // tokenizer.ggml.add_space_prefix
  bool bpe = true;               // sentencepiece BPE ("llama" in GGUF); false: unigram
  int bos_id = -1, eos_id = -1, unk_id = -1;
  bool add_bos = true;       // tokenizer.ggml.add_bos_token: texts begin with bos_id
  std::vector<int> eos_ids;  // every token that ends an answer, eos_id first
  bool byte_level = false;   // byte-level BPE, not sentencepiece's
  // Sentencepiece-like pieces that a list of merges joins, as in tokenizer.json (Gemma 4).
  bool merged = false;
};

// Bytes of a text, from begin to before end.
struct TextSpan {
  size_t begin, end;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int vocab_size() const = 0;
  // Returns the size without the pieces of type UNUSED at the vocabulary's end; all count if there
  // are no others.
  virtual int used_size() const = 0;
  virtual int bos_id() const = 0;  // -1: none
  virtual int eos_id() const = 0;
  // Returns a notice for the user about the source of ids; usually empty.
  virtual std::string note() const { return {}; }
  // Returns the ids of text, as the reference gives them (the sentencepiece library; Hugging Face's
  // tokenizers). add_bos puts bos_id first if the model's texts begin with it; parse_special reads
  // control pieces written out in the text as those pieces (the text between two of them is encoded
  // by itself). Throws RIFFLE_BAD_TEXT, naming the byte offset, if text is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_bos, bool parse_special) const {
    const TextSpan whole{0, text.size()};
    return encode(text, add_bos, std::span(&whole, parse_special ? 1 : 0));
  }
  // Does the same, but reads control pieces only where they lie in one of the spans of the text,
  // which are in order and do not overlap.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_bos,
                                      std::span<const TextSpan> special) const = 0;
  // Returns the text of ids; control pieces give nothing; bytes that form no UTF-8 character become
  // U+FFFD.
  virtual std::string decode(const int32_t* ids, size_t n) const = 0;
  virtual const char* piece(int32_t id) const = 0;  // as the vocabulary spells it; nullptr: none
  // Returns the raw bytes that this id adds to running text ("▁" or "Ġ" is a space, <0x0A> one
  // byte, control pieces nothing).
  virtual std::string bytes(int32_t id) const = 0;
  // Hashes everything that ids depend on besides the spelling of the pieces: their kinds, scores or
  // merges, normalisation, and the split into words.
  virtual uint64_t rules_hash() const = 0;
  // Returns the id of the control piece with this spelling ("<s>"), or -1.
  virtual int32_t control_id(std::string_view piece) const = 0;
};

// serialized: the content of a tokenizer.model. where: file name for error texts. add_bos: as in
// VocabOptions.
std::unique_ptr<Tokenizer> tokenizer_from_model(std::string_view serialized,
                                                const std::string& where, bool add_bos = true);
// Builds a sentencepiece model from stored pieces (GGUF).
std::unique_ptr<Tokenizer> tokenizer_from_pieces(const std::vector<VocabPiece>& pieces,
                                                 const VocabOptions& options,
                                                 const std::string& where);

// Joins the texts of ids as they come and never hands out half a UTF-8 character.
// The text begins as decode() would begin it if at_start (the dummy prefix space is dropped).
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool at_start)
      : tokenizer_(&tokenizer), at_start_(at_start) {}
  std::string put(int32_t id);  // text that became complete; invalid bytes come out as U+FFFD
  std::string finish();         // bytes held back, as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
  std::string pending_;  // at most 3 bytes: the beginning of a character
};

// Appends text to *out, with U+FFFD for each maximal subpart that is no character (Unicode 15,
// 3.9). Returns the number of bytes used: all or, with keep_cut, all except the beginning of a
// character at the end.
size_t append_valid_utf8(std::string_view text, bool keep_cut, std::string* out);

// Computes the result of Tokenizer::used_size().
int used_size(const std::vector<VocabPiece>& pieces);

// Returns the byte of a byte piece ("<0x0A>": 10), or -1 if text is no byte piece. Hex digits are
// upper case.
int byte_of_piece(std::string_view text);

// Throws RIFFLE_BAD_ARGUMENT for a text that is too long to tokenise, and RIFFLE_BAD_TEXT for one
// that is not UTF-8.
void check_text(std::string_view text);

// Returns the byte offset of the first invalid UTF-8 sequence, or -1. (No surrogates, no overlong
// forms, at most U+10FFFF.)
int64_t utf8_error(std::string_view text);

}  // namespace riffle
