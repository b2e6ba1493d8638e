// Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (ACL
// 2016), with scores in place of ranks, as in sentencepiece (Kudo & Richardson, EMNLP 2018, and the
// library's behaviour, which tests compare with).
#include "text/sentencepiece_bpe.h"

#include <algorithm>
#include <queue>
#include <string>

#include "util/utf8.h"

namespace riffle {

SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model)
    : model_(model), normalizer_(model), unknown_(model) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const VocabPiece& p = model.pieces[i];
    if (p.of_text()) ids_.emplace(p.text, static_cast<int>(i));
  }
}

// A piece of the text that may be joined with its neighbours.
struct SentencePieceBpe::Symbol {
  std::string_view text;  // empty: it was joined to its left neighbour
  int left, right;        // neighbours; -1: none
  bool whole;             // a user-defined piece, which is never joined
};

// Joins the neighbours that form the piece with the best score (of equal ones the leftmost), until
// no neighbours form a piece.
class SentencePieceBpe::Merging {
 public:
  Merging(const SentencePieceBpe& bpe, std::string_view text) : bpe_(bpe) {
    for (size_t at = 0; at < text.size();) {
      const auto* const own = bpe.normalizer_.user_defined().longest_at(text.substr(at));
      const size_t n = own ? own->first.size() : char_bytes(text, at);
      const int i = static_cast<int>(symbols.size());
      symbols.push_back({text.substr(at, n), i - 1, i + 1, own != nullptr});
      at += n;
    }
    if (symbols.empty()) return;
    symbols.back().right = -1;
    for (size_t i = 1; i < symbols.size(); ++i)
      propose(static_cast<int>(i) - 1, static_cast<int>(i));
    run();
  }

  // Returns the two halves from which an unused piece was joined; null: none.
  const std::pair<std::string_view, std::string_view>* halves(std::string_view piece) const {
    const auto at = unused_.find(piece);
    return at == unused_.end() ? nullptr : &at->second;
  }

  std::vector<Symbol> symbols;

 private:
  struct Pair {
    float score;
    int left, right;
    size_t bytes;
    bool operator<(const Pair& other) const {  // the top of the queue is the largest
      return score < other.score || (score == other.score && left > other.left);
    }
  };

  void propose(int left, int right) {
    if (left < 0 || right < 0) return;
    const Symbol &a = symbols[static_cast<size_t>(left)], &b = symbols[static_cast<size_t>(right)];
    if (a.whole || b.whole) return;
    const std::string_view both(a.text.data(), a.text.size() + b.text.size());
    const auto at = bpe_.ids_.find(both);
    if (at == bpe_.ids_.end()) return;
    queue_.push({bpe_.piece(at->second).score, left, right, both.size()});
    if (bpe_.piece(at->second).type == VocabPiece::UNUSED) unused_[both] = {a.text, b.text};
  }

  void run() {
    while (!queue_.empty()) {
      const Pair top = queue_.top();
      queue_.pop();
      Symbol &a = symbols[static_cast<size_t>(top.left)],
             &b = symbols[static_cast<size_t>(top.right)];
      // One of the two has been joined with another symbol since.
      if (a.text.empty() || b.text.empty() || a.text.size() + b.text.size() != top.bytes) continue;
      a.text = {a.text.data(), top.bytes};
      a.right = b.right;
      if (b.right >= 0) symbols[static_cast<size_t>(b.right)].left = top.left;
      b.text = {};
      propose(a.left, top.left);
      propose(top.left, a.right);
    }
  }

  const SentencePieceBpe& bpe_;
  std::priority_queue<Pair> queue_;
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> unused_;
};

void SentencePieceBpe::append(std::string_view symbol, const Merging& merging,
                              SentencePieceIds* ids) const {
  const auto own = ids_.find(symbol);
  if (own == ids_.end()) return ids->add_unknown(symbol);
  const auto* const halves =
      piece(own->second).type == VocabPiece::UNUSED ? merging.halves(symbol) : nullptr;
  if (!halves) return ids->add(own->second);
  append(halves->first, merging, ids);
  append(halves->second, merging, ids);
}

void SentencePieceBpe::encode(std::string_view text, std::vector<int>* ids) const {
  const std::string spaced = normalizer_.normalize(text);
  const Merging merging(*this, spaced);
  SentencePieceIds out(unknown_, ids);
  for (const Symbol& s : merging.symbols)
    if (!s.text.empty()) append(s.text, merging, &out);
}

}  // namespace riffle
