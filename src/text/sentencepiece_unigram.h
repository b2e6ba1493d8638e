// Sentencepiece's unigram language model, without the library: the ids are the library's, which the
// tests compare with.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/sentencepiece_pieces.h"

namespace riffle {

class SentencePieceUnigram {
 public:
  // model: checked (check_sentencepiece_model); outlives this.
  explicit SentencePieceUnigram(const SentencePieceModel& model);

  // text: valid UTF-8. Appends the ids of the segmentation with the highest sum of scores. It takes
  // 12 bytes of memory for each byte of the text.
  void encode(std::string_view text, std::vector<int>* ids) const;

 private:
  // All pieces that text may consist of, as a trie of bytes. The children of a node lie side by
  // side, in the order of their bytes.
  struct Node {
    uint32_t first_child = 0;
    uint16_t n_children = 0;
    uint8_t byte = 0;
    int32_t id = -1;  // id of the piece that ends here; -1: none
  };
  struct Arrival;

  void build();
  const Node* child(const Node& node, char byte) const;

  const SentencePieceModel& model_;
  SentencePieceNormalizer normalizer_;
  SentencePieceIds::Unknown unknown_;
  float unknown_score_, best_score_;
  std::vector<Node> nodes_;
};

}  // namespace riffle
