#include "text/tokenizer.h"

#include <algorithm>
#include <bitset>
#include <utility>
#include <variant>

#include "text/added_tokens.h"
#include "text/part_memory.h"
#include "text/sentencepiece_bpe.h"
#include "text/sentencepiece_model.h"
#include "text/sentencepiece_unigram.h"
#include "util/checksum.h"
#include "util/error.h"

namespace riffle {
namespace {

// The tables of merges outgrow the caches on long text (measured with the library: 2.5 MB/s for 8
// KB, 1.4 MB/s for 100 KB, 0.5 MB/s for 3 MB), and take about 100 bytes for each byte of text. So
// text is encoded in parts of about kPartBytes.
constexpr size_t kPartBytes = 8 << 10;

// Bytes of the texts and ids that are kept: about 500 parts.
constexpr size_t kRememberedBytes = 8 << 20;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // bos_id, eos_id: -2 takes the model's bos_piece and eos_piece.
  SentencePieceTokenizer(SentencePieceModel model, int bos_id, int eos_id, bool add_bos,
                         const std::string& where)
      : model_(std::move(model)), add_bos_(add_bos) {
    check_sentencepiece_model(model_, where);
    if (model_.bpe) encoder_.emplace<SentencePieceBpe>(model_);
    else encoder_.emplace<SentencePieceUnigram>(model_);
    for (int id = 0; id < vocab_size(); id++) {
      if (model_.pieces[id].type == VocabPiece::CONTROL) controls_.add(model_.pieces[id].text, id);
    }
    used_size_ = riffle::used_size(model_.pieces);
    controls_.sort();
    bos_id_ = bos_id == -2 ? controls_.id_of(model_.bos_piece) : bos_id;
    eos_id_ = eos_id == -2 ? controls_.id_of(model_.eos_piece) : eos_id;
    find_cuts();
  }

  int vocab_size() const override { return static_cast<int>(model_.pieces.size()); }
  int used_size() const override { return used_size_; }
  int bos_id() const override { return bos_id_; }
  int eos_id() const override { return eos_id_; }

  using Tokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, bool add_bos,
                              std::span<const TextSpan> special) const override {
    check_text(text);
    std::vector<int32_t> ids;
    if (add_bos && add_bos_) {
      if (bos_id_ < 0) fail(RIFFLE_UNSUPPORTED, "the model has no beginning-of-sequence token");
      ids.push_back(bos_id_);
    }
    size_t start = 0;
    for (const TextSpan& span : special) {
      for (size_t pos = span.begin; pos < span.end;) {
        const auto* control = controls_.longest_at(text.substr(pos, span.end - pos));
        if (control == nullptr) {
          pos++;
          continue;
        }
        encode_plain(text.substr(start, pos - start), &ids);
        ids.push_back(control->second);
        start = pos += control->first.size();
      }
    }
    encode_plain(text.substr(start), &ids);
    return ids;
  }

  std::string decode(const int32_t* ids, size_t n) const override {
    std::string out, run;  // run: bytes since the last control piece, which ends a character that
                           // is not complete
    bool at_start = model_.add_dummy_prefix || model_.remove_extra_whitespaces;
    for (size_t i = 0; i < n; i++) {
      std::string more = bytes(ids[i]);
      if (more.empty()) {
        append_valid_utf8(run, false, &out);
        run.clear();
        continue;
      }
      // The first piece with any text loses one leading space symbol, as in the library. If extra
      // spaces are removed, pieces that are then empty do not count as text.
      if (at_start) {
        const VocabPiece& piece = model_.pieces[ids[i]];
        const bool drop = piece.type != VocabPiece::BYTE && piece.type != VocabPiece::UNKNOWN &&
                          piece.text.starts_with(kSpaceSymbol);
        if (drop) more.erase(0, 1);
        at_start = drop && more.empty() && model_.remove_extra_whitespaces;
      }
      run += more;
    }
    append_valid_utf8(run, false, &out);
    return out;
  }

  const char* piece(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? model_.pieces[id].text.c_str() : nullptr;
  }

  std::string bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      fail(RIFFLE_BAD_ARGUMENT, "token %d is not in the vocabulary of %d", id, vocab_size());
    }
    const VocabPiece& piece = model_.pieces[id];
    switch (piece.type) {
      case VocabPiece::CONTROL: return {};
      case VocabPiece::UNKNOWN: return model_.unk_surface;
      case VocabPiece::BYTE: return std::string(1, static_cast<char>(byte_of_piece(piece.text)));
    }
    return with_bare_spaces(piece.text);
  }

  uint64_t rules_hash() const override {
    Checksum sum;
    for (const VocabPiece& piece : model_.pieces) {
      sum.add_value(piece.score);
      sum.add_value(piece.type);
    }
    for (const bool set :
         {model_.bpe, model_.byte_fallback, model_.treat_whitespace_as_suffix,
          model_.add_dummy_prefix, model_.remove_extra_whitespaces, model_.escape_whitespaces})
      sum.add_value(set);
    return sum.value();
  }

  int32_t control_id(std::string_view piece) const override { return controls_.id_of(piece); }

 private:
  void encode_part(std::string_view text, std::vector<int>* ids) const {
    if (const auto* const bpe = std::get_if<SentencePieceBpe>(&encoder_)) bpe->encode(text, ids);
    else std::get<SentencePieceUnigram>(encoder_).encode(text, ids);
  }

  void encode_plain(std::string_view text, std::vector<int32_t>* ids) const {
    std::vector<int> part;
    while (!text.empty()) {
      const size_t cut = cut_after(text, kPartBytes);
      if (cut < text.size() && remembered_.append(text.substr(0, cut), ids)) {
        text.remove_prefix(cut + 1);
        continue;
      }
      part.clear();
      encode_part(text.substr(0, cut), &part);
      ids->insert(ids->end(), part.begin(), part.end());
      if (cut == text.size()) return;
      remembered_.keep(text.substr(0, cut), part);
      text.remove_prefix(cut + 1);  // the space, which the next part gets back as its dummy prefix
    }
  }

  // Text may be cut at a space if no piece has a space after that left neighbour. The parts then
  // give the same ids as the whole: no merge and no user-defined piece can reach across, and BPE's
  // merges on one side do not see the other. The settings required make the dummy prefix of a part
  // the same as the space that was cut away; without byte fallback the library would join
  // neighbouring unknown pieces across the cut.
  void find_cuts() {
    may_cut_ = model_.bpe && model_.byte_fallback && model_.add_dummy_prefix &&
               model_.escape_whitespaces && !model_.remove_extra_whitespaces &&
               !model_.treat_whitespace_as_suffix;
    for (const VocabPiece& piece : model_.pieces) {
      for (const std::string_view space : {kSpaceSymbol, std::string_view(" ")}) {
        for (size_t pos = piece.text.find(space, 1); pos != std::string::npos;
             pos = piece.text.find(space, pos + 1)) {
          before_space_.set(static_cast<uint8_t>(piece.text[pos - 1]));
        }
      }
    }
  }

  // Position of the first space at or after pos where text may be cut; text.size() if there is
  // none.
  size_t cut_after(std::string_view text, size_t pos) const {
    if (!may_cut_) return text.size();
    for (; pos + 1 < text.size(); pos++) {
      if (text[pos] != ' ') continue;
      const char left = text[pos - 1] == ' ' ? kSpaceSymbol.back() : text[pos - 1];
      if (!before_space_[static_cast<uint8_t>(left)]) return pos;
    }
    return text.size();
  }

  SentencePieceModel model_;
  std::variant<std::monostate, SentencePieceBpe, SentencePieceUnigram> encoder_;
  Spellings controls_;
  bool add_bos_;
  int bos_id_ = -1, eos_id_ = -1, used_size_ = 0;
  bool may_cut_ = false;
  std::bitset<256> before_space_;  // bytes that precede a space inside some piece
  mutable PartMemory remembered_{kRememberedBytes};
};

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_model(std::string_view serialized,
                                                const std::string& where, bool add_bos) {
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece_model(serialized, where), -2,
                                                  -2, add_bos, where);
}

std::unique_ptr<Tokenizer> tokenizer_from_pieces(const std::vector<VocabPiece>& pieces,
                                                 const VocabOptions& options,
                                                 const std::string& where) {
  SentencePieceModel model;
  model.pieces = pieces;
  model.bpe = options.bpe;
  model.add_dummy_prefix = options.add_dummy_prefix;
  model.remove_extra_whitespaces = false;
  model.byte_fallback = std::any_of(pieces.begin(), pieces.end(), [](const VocabPiece& piece) {
    return piece.type == VocabPiece::BYTE;
  });
  const std::pair<const char*, int> ids[] = {
      {"bos", options.bos_id}, {"eos", options.eos_id}, {"unknown", options.unk_id}};
  for (const auto& [name, id] : ids) {
    if (id < -1 || (id >= 0 && static_cast<size_t>(id) >= pieces.size())) {
      fail(RIFFLE_BAD_MODEL, "%s: the %s token is %d, outside of the vocabulary of %zu",
           where.c_str(), name, id, pieces.size());
    }
  }
  // Some converters write the unknown piece as a control piece.
  const auto of_type = [](int type) {
    return [type](const VocabPiece& piece) { return piece.type == type; };
  };
  if (std::none_of(pieces.begin(), pieces.end(), of_type(VocabPiece::UNKNOWN))) {
    for (size_t i = 0; i < pieces.size(); i++) {
      const bool named = options.unk_id >= 0 ? static_cast<size_t>(options.unk_id) == i
                                             : pieces[i].text == "<unk>";
      if (named &&
          (pieces[i].type == VocabPiece::CONTROL || pieces[i].type == VocabPiece::NORMAL)) {
        model.pieces[i].type = VocabPiece::UNKNOWN;
      }
    }
  }
  if (options.unk_id >= 0 && model.pieces[options.unk_id].type != VocabPiece::UNKNOWN) {
    fail(RIFFLE_BAD_MODEL, "%s: the unknown token is %d, whose type is %d, expected %d",
         where.c_str(), options.unk_id, model.pieces[options.unk_id].type, VocabPiece::UNKNOWN);
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model), options.bos_id, options.eos_id,
                                                  options.add_bos, where);
}

}  // namespace riffle
