#include <algorithm>
#include <bitset>
#include <cstring>
#include <functional>
#include <utility>

#include "text/bpe.h"
#include "text/nfc.h"
#include "text/sentencepiece_model.h"
#include "util/checked.h"
#include "util/checksum.h"
#include "util/error.h"
#include "util/utf8.h"

namespace riffle {

namespace {

// The most bytes of normalised text. Normalisation may lengthen text many times; a longer text is
// refused.
constexpr size_t kMaxNormalizedBytes = size_t{1} << 30;

std::string replaced(std::string_view text, const std::string& from, const std::string& to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out.append(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    out += to;
    if (out.size() > kMaxNormalizedBytes)
      fail(RIFFLE_UNSUPPORTED, "the text grows beyond 1 GiB when it is normalised");
    text.remove_prefix(at + from.size());
  }
}

// Hashes everything that ids depend on besides the pieces' spelling.
uint64_t hash_of_rules(const BpeSpec& spec) {
  Checksum sum;
  const auto text = [&](const std::string& t) {
    sum.add_value(t.size());
    sum.add(t.data(), t.size());
  };
  sum.add(spec.merges.data(), spec.merges.size() * sizeof(BpeMerge));
  for (const VocabPiece& piece : spec.pieces) sum.add_value(piece.type);
  for (const AddedToken& token : spec.added) {
    sum.add_value(token.id);
    for (const bool set :
         {token.special, token.single_word, token.lstrip, token.rstrip, token.normalized})
      sum.add_value(set);
  }
  for (const NormalizerStep& step : spec.normalizer) {
    sum.add_value(step.kind);
    text(step.from), text(step.to);
  }
  for (const SplitStep& step : spec.splits) {
    for (const int value : {int{step.kind}, int{step.behavior}, int{step.prepend}})
      sum.add_value(value);
    for (const bool set :
         {step.pattern.has_value(), step.invert, step.add_prefix_space, step.split})
      sum.add_value(set);
    if (step.pattern) text(step.pattern->text());
    text(step.symbol);
  }
  for (const bool set : {spec.byte_level, spec.ignore_merges, spec.byte_fallback, spec.fuse_unk})
    sum.add_value(set);
  sum.add_value(spec.unk_id);
  return sum.value();
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeSpec spec)
      : spec_(std::move(spec)), merges_(spec_.merges), rules_hash_(hash_of_rules(spec_)) {
    spec_.merges = {};  // the table has them
    index_pieces();
    for (const AddedToken& token : spec_.added) {
      if (token.special) controls_.add(token.text, token.id);
      if (token.normalized) normalized_added_.add(token, normalized(token.text));
      else raw_added_.add(token, token.text);
    }
    used_size_ = riffle::used_size(spec_.pieces);
    controls_.sort();
    raw_added_.sort();
    normalized_added_.sort();
  }

  int vocab_size() const override { return static_cast<int>(spec_.pieces.size()); }
  int used_size() const override { return used_size_; }
  int bos_id() const override { return spec_.bos_id; }
  int eos_id() const override { return spec_.eos_id; }
  std::string note() const override { return spec_.note; }

  using Tokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, bool add_bos,
                              std::span<const TextSpan> special) const override {
    check_text(text);
    Encoding e(*this, text.size());
    if (add_bos && spec_.add_bos) e.ids.push_back(spec_.bos_id);
    const auto plain = [&](size_t from, size_t to) {
      const std::string_view part = text.substr(from, to - from);
      const bool at_start = from == 0;
      const std::string changed = spec_.normalizer.empty() ? std::string() : normalized(part);
      const std::string_view normal = spec_.normalizer.empty() ? part : changed;
      if (normalized_added_.empty()) return split(e, 0, normal, at_start);
      std::vector<AddedTokens::Part> inner;
      normalized_added_.cut(normal, spans_in(special, text, from, to), &inner);
      for (const auto& [id, begin, end] : inner) {
        if (id >= 0) e.ids.push_back(id);
        else split(e, 0, normal.substr(begin, end - begin), at_start && begin == 0);
      }
    };
    std::vector<AddedTokens::Part> parts;
    raw_added_.cut(text, special, &parts);
    for (const auto& [id, begin, end] : parts) {
      if (id >= 0) e.ids.push_back(id);
      else plain(begin, end);
    }
    return std::move(e.ids);
  }

  std::string decode(const int32_t* ids, size_t n) const override {
    std::string out, run;  // run: bytes since the last control piece, which ends a character that
                           // is not complete
    bool at_start = spec_.strip_first_space;
    for (size_t i = 0; i < n; i++) {
      check_id(ids[i]);
      std::string_view more = bytes_[ids[i]];
      if (more.empty()) {
        append_valid_utf8(run, false, &out);
        run.clear();
        continue;
      }
      if (at_start && more[0] == ' ') more.remove_prefix(1);
      at_start = false;
      run += more;
    }
    append_valid_utf8(run, false, &out);
    return out;
  }

  const char* piece(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? spec_.pieces[id].text.c_str() : nullptr;
  }

  std::string bytes(int32_t id) const override {
    check_id(id);
    return bytes_[id];
  }

  uint64_t rules_hash() const override { return rules_hash_; }

  int32_t control_id(std::string_view piece) const override { return controls_.id_of(piece); }

 private:
  // Words are short and recur: if a word has been encoded before, its ids are copied from there.
  struct Remembered {
    static constexpr size_t kMaxBytes = 40;
    uint64_t hash = 0;
    size_t ids_at = 0;
    uint32_t n_ids = 0;
    uint8_t n_bytes = 0;  // 0: empty
    char text[kMaxBytes];
  };

  // State of one call of encode().
  struct Encoding {
    Encoding(const BpeTokenizer& tokenizer, size_t n_bytes) {
      for (const SplitStep& step : tokenizer.spec_.splits) {
        scratch.push_back(step.pattern ? std::make_unique<SplitPattern::Scratch>(*step.pattern)
                                       : nullptr);
      }
      ids.reserve(n_bytes / 4 + 1);
      // A power of two; small texts need no large table.
      size_t n = 64;
      while (n < 16384 && n < n_bytes / 16) n *= 2;
      words.resize(n);
    }
    std::vector<int32_t> ids;
    std::vector<std::unique_ptr<SplitPattern::Scratch>> scratch;  // by split step
    std::vector<Remembered> words;
    std::vector<int32_t> word;
    BpeMerges::Work work;
  };

  // Maps spans of the text to places in its normalised part [from, to).
  std::vector<TextSpan> spans_in(std::span<const TextSpan> special, std::string_view text,
                                 size_t from, size_t to) const {
    std::vector<TextSpan> out;
    const auto place = [&](size_t pos) {
      return spec_.normalizer.empty() ? pos - from
                                      : normalized(text.substr(from, pos - from)).size();
    };
    for (const TextSpan& span : special) {
      const size_t begin = std::max(span.begin, from), end = std::min(span.end, to);
      // A prefix that the normalizer puts before a part belongs to the part's first span.
      if (begin < end) out.push_back({begin == from ? 0 : place(begin), place(end)});
    }
    return out;
  }

  void check_id(int32_t id) const {
    if (id < 0 || id >= vocab_size()) {
      fail(RIFFLE_BAD_ARGUMENT, "token %d is not in the vocabulary of %d", id, vocab_size());
    }
  }

  // Indexes the text of every piece, and the piece of each byte, character and word.
  void index_pieces() {
    bytes_.resize(spec_.pieces.size());
    for (size_t id = 0; id < bytes_.size(); id++) bytes_[id] = bytes_of(spec_.pieces[id]);
    std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
    if (spec_.byte_level) {
      const PieceIds spelled(spec_.pieces, spec_.in_model);
      for (int byte = 0; byte < 256; byte++) {
        byte_ids_[byte] = spelled.find(byte_level_spelling(static_cast<uint8_t>(byte)));
      }
      if (!spec_.ignore_merges) return;
      word_ids_.reserve(bytes_.size());
      for (size_t id = 0; id < bytes_.size(); id++) {
        if (spec_.in_model[id] && byte_level_bytes(spec_.pieces[id].text)) {
          word_ids_.add(bytes_[id], static_cast<int32_t>(id));
        }
      }
      return;
    }
    word_ids_ = PieceIds(spec_.pieces, spec_.in_model);
    if (spec_.byte_fallback) {
      bool all = true;
      for (int byte = 0; byte < 256; byte++) {
        byte_ids_[byte] = word_ids_.find(format("<0x%02X>", byte));
        all = all && byte_ids_[byte] >= 0;
      }
      if (!all)
        bad_model(spec_.where, "byte_fallback", "no pieces for some bytes", "<0x00> to <0xFF>");
    }
    // Text may be cut before a space symbol if no piece has the symbol after that left neighbour:
    // no merge can reach across.
    may_cut_ = !spec_.ignore_merges && word_ids_.find(kSpaceSymbol) >= 0;
    for (const VocabPiece& piece : spec_.pieces) {
      for (size_t at = piece.text.find(kSpaceSymbol, 1); at != std::string::npos;
           at = piece.text.find(kSpaceSymbol, at + 1)) {
        before_space_.set(static_cast<uint8_t>(piece.text[at - 1]));
      }
    }
  }

  std::string bytes_of(const VocabPiece& piece) const {
    switch (piece.type) {
      case VocabPiece::CONTROL:
      case VocabPiece::UNUSED: return {};
      case VocabPiece::USER_DEFINED:
        if (spec_.byte_level) return piece.text;
        break;  // Hugging Face's decoders replace ▁ in added tokens too
      case VocabPiece::BYTE: return std::string(1, static_cast<char>(byte_of_piece(piece.text)));
      default: break;
    }
    // A byte-level piece with a character that stands for no byte is plain text.
    if (spec_.byte_level) return byte_level_bytes(piece.text).value_or(piece.text);
    return replaced(piece.text, std::string(kSpaceSymbol), " ");
  }

  std::string normalized(std::string_view part) const {
    std::string text(part);
    for (const NormalizerStep& step : spec_.normalizer) {
      switch (step.kind) {
        case NormalizerStep::NFC: text = to_nfc(text); break;
        case NormalizerStep::PREPEND:
          if (!text.empty()) text.insert(0, step.to);
          break;
        case NormalizerStep::REPLACE: text = replaced(text, step.from, step.to); break;
      }
    }
    return text;
  }

  // Hands part to split step k, and its results to the next step; words at the end are encoded.
  void split(Encoding& e, size_t k, std::string_view part, bool at_start) const {
    if (part.empty()) return;
    if (k == spec_.splits.size())
      return spec_.byte_level ? encode_word(e, part) : encode_words(e, part);
    const SplitStep& step = spec_.splits[k];
    switch (step.kind) {
      case SplitStep::PATTERN: return split_at_matches(e, k, part, at_start);
      case SplitStep::BYTE_LEVEL:
        if (step.add_prefix_space && part[0] != ' ') {
          const std::string spaced = " " + std::string(part);
          return step.pattern ? split_at_matches(e, k, spaced, at_start)
                              : split(e, k + 1, spaced, at_start);
        }
        return step.pattern ? split_at_matches(e, k, part, at_start)
                            : split(e, k + 1, part, at_start);
      case SplitStep::METASPACE: return split_at_symbols(e, k, part, at_start);
    }
  }

  void split_at_matches(Encoding& e, size_t k, std::string_view part, bool at_start) const {
    const SplitStep& step = spec_.splits[k];
    size_t held_begin = 0, held_end = 0;  // a part that may yet grow
    bool held = false, held_match = false;
    const auto hand_on = [&](size_t begin, size_t end) {
      if (begin < end) split(e, k + 1, part.substr(begin, end - begin), at_start && begin == 0);
    };
    const auto flush = [&] {
      if (held) hand_on(held_begin, held_end);
      held = false;
    };
    const auto hold = [&](size_t begin, size_t end, bool match) {
      flush();
      held = true;
      held_begin = begin;
      held_end = end;
      held_match = match;
    };
    const auto take = [&](size_t begin, size_t end, bool match) {
      match = match != step.invert;
      switch (step.behavior) {
        case SplitStep::ISOLATED: hand_on(begin, end); break;
        case SplitStep::REMOVED:
          if (!match) hand_on(begin, end);
          break;
        case SplitStep::MERGED_WITH_PREVIOUS:
          if (held && match && !held_match) held_end = end, held_match = true;
          else hold(begin, end, match);
          break;
        case SplitStep::MERGED_WITH_NEXT:
          if (held && held_match && !match) held_end = end, held_match = false;
          else hold(begin, end, match);
          break;
        case SplitStep::CONTIGUOUS:
          if (held && held_match == match) held_end = end;
          else hold(begin, end, match);
          break;
      }
    };
    SplitPattern::Matches matches(*e.scratch[k], part);
    size_t done = 0, begin, end;
    while (matches.next(&begin, &end)) {
      if (done < begin) take(done, begin, false);
      take(begin, end, true);
      done = end;
    }
    if (done < part.size()) take(done, part.size(), false);
    flush();
  }

  void split_at_symbols(Encoding& e, size_t k, std::string_view part, bool at_start) const {
    const SplitStep& step = spec_.splits[k];
    std::string text = replaced(part, " ", step.symbol);
    const bool prepend =
        step.prepend == SplitStep::ALWAYS || (step.prepend == SplitStep::FIRST && at_start);
    if (prepend && !text.starts_with(step.symbol)) text.insert(0, step.symbol);
    const std::string_view whole = text;
    if (!step.split) return split(e, k + 1, whole, at_start);
    for (size_t begin = 0; begin < whole.size();) {
      const size_t end = std::min(whole.find(step.symbol, begin + 1), whole.size());
      split(e, k + 1, whole.substr(begin, end - begin), at_start && begin == 0);
      begin = end;
    }
  }

  void encode_words(Encoding& e, std::string_view text) const {
    while (may_cut_ && !text.empty()) {
      size_t cut = text.find(kSpaceSymbol, 1);
      while (cut != std::string_view::npos && before_space_[static_cast<uint8_t>(text[cut - 1])]) {
        cut = text.find(kSpaceSymbol, cut + 1);
      }
      if (cut == std::string_view::npos) break;
      encode_word(e, text.substr(0, cut));
      text.remove_prefix(cut);
    }
    if (!text.empty()) encode_word(e, text);
  }

  void encode_word(Encoding& e, std::string_view word) const {
    if (word.size() > Remembered::kMaxBytes) return merge_word(e, word);
    const uint64_t hash = std::hash<std::string_view>()(word);
    Remembered& r = e.words[hash & (e.words.size() - 1)];
    if (r.hash == hash && r.n_bytes == word.size() &&
        std::memcmp(r.text, word.data(), word.size()) == 0) {
      const size_t n = e.ids.size();
      e.ids.resize(n + r.n_ids);
      std::copy_n(e.ids.begin() + static_cast<ptrdiff_t>(r.ids_at), r.n_ids,
                  e.ids.begin() + static_cast<ptrdiff_t>(n));
      return;
    }
    r.ids_at = e.ids.size();
    merge_word(e, word);
    r.hash = hash;
    r.n_ids = static_cast<uint32_t>(e.ids.size() - r.ids_at);
    r.n_bytes = static_cast<uint8_t>(word.size());
    std::memcpy(r.text, word.data(), word.size());
  }

  void merge_word(Encoding& e, std::string_view word) const {
    if (spec_.ignore_merges) {
      if (const int32_t id = word_ids_.find(word); id >= 0) {
        e.ids.push_back(id);
        return;
      }
    }
    e.word.clear();
    bool after_unknown = false;
    const auto unknown = [&] {
      if (spec_.unk_id >= 0 && !(after_unknown && spec_.fuse_unk)) e.word.push_back(spec_.unk_id);
      after_unknown = true;
    };
    for (size_t pos = 0; pos < word.size();) {
      const size_t n = spec_.byte_level ? 1 : char_bytes(word, pos);
      const int32_t id = spec_.byte_level ? byte_ids_[static_cast<uint8_t>(word[pos])]
                                          : word_ids_.find(word.substr(pos, n));
      if (id >= 0) {
        e.word.push_back(id);
        after_unknown = false;
      } else if (!spec_.byte_level && spec_.byte_fallback) {
        for (size_t i = 0; i < n; i++)
          e.word.push_back(byte_ids_[static_cast<uint8_t>(word[pos + i])]);
        after_unknown = false;
      } else {
        unknown();
      }
      pos += n;
    }
    merges_.apply(&e.word, &e.work);
    e.ids.insert(e.ids.end(), e.word.begin(), e.word.end());
  }

  BpeSpec spec_;
  BpeMerges merges_;
  uint64_t rules_hash_;
  std::vector<std::string> bytes_;  // by id
  PieceIds word_ids_;  // byte-level: bytes of a piece to its id, only for ignore_merges; else
                       // spelling to id
  int32_t byte_ids_[256];
  int used_size_ = 0;
  Spellings controls_;
  AddedTokens raw_added_, normalized_added_;
  bool may_cut_ = false;
  std::bitset<256> before_space_;  // bytes that precede a space symbol inside some piece
};

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_bpe(BpeSpec spec) {
  const int n = static_cast<int>(spec.pieces.size());
  const std::pair<const char*, int> ids[] = {
      {"bos", spec.bos_id}, {"eos", spec.eos_id}, {"unknown", spec.unk_id}};
  for (const auto& [name, id] : ids) {
    if (id < -1 || id >= n) {
      fail(RIFFLE_BAD_MODEL, "%s: the %s token is %d, outside of the vocabulary of %d",
           spec.where.c_str(), name, id, n);
    }
  }
  if (spec.add_bos && spec.bos_id < 0) {
    bad_model(spec.where, "tokenizer",
              "no beginning-of-sequence token, which texts must begin with", "one");
  }
  return std::make_unique<BpeTokenizer>(std::move(spec));
}

}  // namespace riffle
