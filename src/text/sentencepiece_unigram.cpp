// Source: Kudo, "Subword Regularization: Improving Neural Network Translation Models with Multiple
// Subword Candidates" (ACL 2018), and how the library computes it: unigram::Model::EncodeOptimized
// of sentencepiece 0.1.97. Its types are kept, since they decide between sums that are nearly
// equal.
#include "text/sentencepiece_unigram.h"

#include <algorithm>
#include <cfloat>
#include <string>

#include "util/utf8.h"

namespace riffle {
namespace {

constexpr float kUnknownPenalty = 10;

}  // namespace

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceModel& model)
    : model_(model), normalizer_(model), unknown_(model) {
  // Start values for "no score yet", as in the library. FLT_MIN is the least positive float.
  float worst = FLT_MAX;
  best_score_ = FLT_MIN;
  for (const VocabPiece& piece : model.pieces) {
    if (piece.type != VocabPiece::NORMAL) continue;
    worst = std::min(worst, piece.score);
    best_score_ = std::max(best_score_, piece.score);
  }
  unknown_score_ = worst - kUnknownPenalty;
  build();
}

void SentencePieceUnigram::build() {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < model_.pieces.size(); ++i)
    if (model_.pieces[i].of_text()) ids.push_back(static_cast<int32_t>(i));
  const auto text = [&](int32_t id) -> std::string_view {
    return model_.pieces[static_cast<size_t>(id)].text;
  };
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return text(a) < text(b); });
  // Breadth first. A node is a range of ids whose texts begin with the same bytes.
  struct Range {
    size_t begin, end;
  };
  std::vector<Range> level{{0, ids.size()}}, below;
  nodes_.emplace_back();
  size_t node = 0;
  for (size_t depth = 0; !level.empty(); ++depth, level.swap(below), below.clear()) {
    for (Range r : level) {
      Node& parent = nodes_[node];
      // The piece that ends here sorts first.
      if (r.begin < r.end && text(ids[r.begin]).size() == depth) parent.id = ids[r.begin++];
      parent.first_child = static_cast<uint32_t>(nodes_.size());
      uint16_t n = 0;
      while (r.begin < r.end) {
        const char byte = text(ids[r.begin])[depth];
        size_t end = r.begin + 1;
        while (end < r.end && text(ids[end])[depth] == byte) ++end;
        below.push_back({r.begin, end});
        nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
        r.begin = end;
        ++n;
      }
      nodes_[node++].n_children = n;
    }
  }
}

const SentencePieceUnigram::Node* SentencePieceUnigram::child(const Node& node, char byte) const {
  const Node *first = nodes_.data() + node.first_child, *last = first + node.n_children;
  const auto want = static_cast<uint8_t>(byte);
  const Node* const at = std::lower_bound(
      first, last, want, [](const Node& child, uint8_t value) { return child.byte < value; });
  return at != last && at->byte == want ? at : nullptr;
}

// The best segmentation of the text before a place.
struct SentencePieceUnigram::Arrival {
  float score = 0;
  int32_t begin = -1;  // beginning of its last piece; -1: there is no segmentation yet
  int32_t id = -1;     // id of its last piece
  void offer(double sum, int32_t from, int32_t piece) {
    if (begin >= 0 && !(sum > score)) return;
    *this = {static_cast<float>(sum), from, piece};
  }
};

void SentencePieceUnigram::encode(std::string_view text, std::vector<int>* ids) const {
  const std::string spaced = normalizer_.normalize(text);
  const size_t n = spaced.size();
  std::vector<Arrival> best(n + 1);
  for (size_t at = 0; at < n;) {
    const size_t one = char_bytes(spaced, at);
    const auto from = static_cast<int32_t>(at);
    const float before = best[at].score;
    bool known = false;  // there is a piece of this one character
    const Node* node = &nodes_[0];
    for (size_t end = at; end < n && (node = child(*node, spaced[end]));) {
      ++end;
      if (node->id < 0) continue;
      const VocabPiece& piece = model_.pieces[static_cast<size_t>(node->id)];
      if (piece.type == VocabPiece::UNUSED) continue;
      // A user-defined piece must win over others, whatever its score.
      const double score = piece.type == VocabPiece::USER_DEFINED
                               ? static_cast<float>(end - at) * best_score_ - 0.1
                               : piece.score;
      best[end].offer(score + before, from, node->id);
      known = known || end - at == one;
    }
    if (!known) best[at + one].offer(unknown_score_ + before, from, unknown_.id);
    at += one;
  }
  std::vector<size_t> ends;
  for (size_t end = n; end > 0; end = static_cast<size_t>(best[end].begin)) ends.push_back(end);
  SentencePieceIds out(unknown_, ids);
  for (size_t i = ends.size(); i-- > 0;) {
    const Arrival& a = best[ends[i]];
    const auto begin = static_cast<size_t>(a.begin);
    if (a.id != unknown_.id) out.add(a.id);
    else out.add_unknown(std::string_view(spaced).substr(begin, ends[i] - begin));
  }
}

}  // namespace riffle
