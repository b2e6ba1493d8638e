// Byte pair encoding as in Hugging Face's tokenizers: its description, for every file format. Two
// kinds: byte-level (GPT-2, Llama-3, Qwen2: pieces are spelled with one printable character for
// each byte) and sentencepiece-like (pieces of characters, "▁" for a space, bytes as a last
// resort).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/split_pattern.h"
#include "text/tokenizer.h"

namespace riffle {

// A step of normalisation, which is applied to the text between added tokens.
struct NormalizerStep {
  enum Kind { NFC, PREPEND, REPLACE } kind = NFC;
  std::string from, to;  // PREPEND: to; REPLACE: every from becomes to
};

// A step of splitting text into words; merges never cross a word's ends.
struct SplitStep {
  enum Kind { PATTERN, BYTE_LEVEL, METASPACE } kind = PATTERN;
  // PATTERN: cut at matches. BYTE_LEVEL: optionally a space is put before the text, which is then
  // cut if there is a pattern. METASPACE: spaces become symbol, which may also be put before the
  // text; then text is cut before each symbol (split).
  std::optional<SplitPattern> pattern;
  enum Behavior {
    ISOLATED,
    REMOVED,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT,
    CONTIGUOUS
  } behavior = ISOLATED;
  bool invert = false;  // the text between matches counts as match
  bool add_prefix_space = false;
  enum Prepend { NEVER, FIRST, ALWAYS } prepend = NEVER;  // FIRST: only where the whole text begins
  bool split = false;
  std::string symbol;
};

struct BpeMerge {
  int32_t left, right, result;  // ids; merges are made in the order of the list
};

struct BpeSpec {
  std::string where;               // file name for error texts
  std::vector<VocabPiece> pieces;  // by id, spelled as in the file; NORMAL, BYTE, UNUSED, and of
                                   // added tokens CONTROL, USER_DEFINED
  std::vector<bool> in_model;      // by id: a piece of the BPE model (added tokens need not be)
  std::vector<BpeMerge> merges;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;
  bool byte_level = false;
  bool ignore_merges = false;  // a word that is a piece becomes that piece, whatever the merges
  bool byte_fallback =
      false;              // a character without piece becomes its bytes' pieces, <0x00> to <0xFF>
  bool fuse_unk = false;  // neighbouring unknown characters become one unknown piece
  int unk_id = -1;        // -1: a character without piece gives nothing
  bool strip_first_space = false;  // decoding drops the text's first space
  int bos_id = -1, eos_id = -1;
  bool add_bos = false;  // texts begin with bos_id
  std::string note;      // Tokenizer::note()
};

std::unique_ptr<Tokenizer> tokenizer_from_bpe(BpeSpec spec);

// Returns the merge of the pieces spelled left and right. Throws RIFFLE_BAD_MODEL if one of the
// three pieces is missing. index: place of the merge in the list, for the error text.
class PieceIds;
BpeMerge make_merge(const PieceIds& ids, std::string_view left, std::string_view right,
                    size_t index, const std::string& where, const char* field);

// Maps spellings to ids. Holds views into the pieces. Requires: these stay where they are.
class PieceIds {
 public:
  PieceIds() = default;
  explicit PieceIds(const std::vector<VocabPiece>& pieces, const std::vector<bool>& in_model);
  void reserve(size_t n);
  // Returns false if the text has an id already, which stays.
  bool add(std::string_view text, int32_t id);
  int32_t find(std::string_view text) const;  // -1: none

 private:
  struct Slot {
    std::string_view text;
    int32_t id = -1;
  };
  size_t slot_of(std::string_view text) const;
  void grow();
  std::vector<Slot> slots_;  // open addressing; a power of two of them
  size_t n_ = 0;
};

// Returns the bytes that a byte-level piece stands for; nothing if it holds a character that stands
// for no byte.
std::optional<std::string> byte_level_bytes(std::string_view piece);
// Returns the spelling of a byte in byte-level vocabularies.
std::string byte_level_spelling(uint8_t byte);

// Merges of one vocabulary, applied to words.
class BpeMerges {
 public:
  explicit BpeMerges(const std::vector<BpeMerge>& merges);

  // Scratch memory, used for one word after another.
  struct Work {
    struct Symbol {
      int32_t id;
      uint32_t previous, next;  // kNone at the ends
    };
    struct Candidate {
      uint64_t order;  // rank, then position
      int32_t left, right, result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };
  // Replaces ids, the word's symbols, by its pieces. Takes n log n time.
  void apply(std::vector<int32_t>* ids, Work* work) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t result = -1;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr uint32_t kNone = ~uint32_t{0};
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Slot* find(int32_t left, int32_t right) const;
  void apply_short(std::vector<int32_t>* ids) const;
  void apply_long(std::vector<int32_t>* ids, Work* work) const;

  std::vector<Slot> slots_;  // open addressing; a power of two of them
};

}  // namespace riffle
