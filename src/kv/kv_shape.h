// The blocks of a sequence that are kept. A layer without a sliding window keeps all. A layer with
// one keeps the blocks that the next token may see, and the blocks that the next token would see if
// the sequence were cut back to one of its marks.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kv/block_layout.h"
#include "kv/checkpoints.h"

namespace riffle {

// Lengths to which a sequence may be cut back later, although its windows have moved on: the ends
// of prompts, and the places where other prompts diverge from it. Each costs a window of KV.
class Marks {
 public:
  static constexpr int kMost = 2;
  // The sequence can also be cut at up to this many tokens before a mark or before its end, since a
  // chat template may print an answer with a few tokens more or fewer than the model drew.
  static constexpr int64_t kTakeBack = 64;

  const int64_t* begin() const { return at_.data(); }
  const int64_t* end() const { return at_.data() + n_; }  // ascending
  // Adds a mark. It replaces marks up to kTakeBack tokens before it, which can be reached from it.
  // If there are kMost others, the lowest one is removed.
  void add(int64_t n_tokens) {
    const auto near = [&](int64_t m) { return m <= n_tokens && m >= n_tokens - kTakeBack; };
    n_ = static_cast<int>(std::remove_if(at_.begin(), at_.begin() + n_, near) - at_.begin());
    int i = n_;
    for (; i > 0 && at_[i - 1] > n_tokens; --i) at_[i] = at_[i - 1];
    at_[i] = n_tokens;
    if (++n_ > kMost) std::copy(at_.begin() + 1, at_.begin() + n_--, at_.begin());
  }
  // Call when the sequence is cut to its first n_tokens. Marks beyond are removed. If n_tokens
  // could be reached from one of them, there is a mark at n_tokens now.
  void cut(int64_t n_tokens) {
    int64_t lowest = INT64_MAX;  // the lowest mark that is removed
    while (n_ > 0 && at_[n_ - 1] > n_tokens) lowest = at_[--n_];
    const bool is_there = n_ > 0 && at_[n_ - 1] == n_tokens;
    if (n_tokens > 0 && !is_there && lowest <= n_tokens + kTakeBack) at_[n_++] = n_tokens;
  }
  // Returns the marks of a fork of the first n_tokens.
  Marks of_fork(int64_t n_tokens) const {
    Marks marks = *this;
    marks.cut(n_tokens);
    if (n_tokens > 0) marks.add(n_tokens);
    return marks;
  }

 private:
  std::array<int64_t, kMost + 1> at_{};
  int n_ = 0;
};

// Data that a layer keeps of a sequence.
enum class LayerKeeps : uint8_t {
  KV,          // keys and values of all tokens
  WINDOW_KV,   // keys and values of the tokens that its sliding window sees
  EARLIER_KV,  // nothing: it attends to an earlier layer's keys and values
  STATE,       // a recurrent state in place of keys and values
  KEYS,        // keys of all tokens, which are their values too
};

struct LayerShape {
  LayerKeeps keeps = LayerKeeps::KV;
  int n_kv_heads = 0, head_dim = 0;  // shape of the keys and values that it attends to; STATE: 0
  // WINDOW_KV, and EARLIER_KV of such a layer: tokens that a query sees.
  int32_t window = 0;
  int source = -1;          // EARLIER_KV: the layer that keeps them
  int64_t state_bytes = 0;  // STATE: a multiple of 64; 0: it keeps nothing
  bool operator==(const LayerShape&) const = default;
  bool has_blocks() const { return keeps_all() || keeps == LayerKeeps::WINDOW_KV; }
  bool keeps_all() const { return keeps == LayerKeeps::KV || keeps == LayerKeeps::KEYS; }
};

// The shape of the data that sequences keep, layer by layer. It numbers three things, each from the
// first layer to the last:
// - Heads: the KV heads of the layers that keep KV. Each head has blocks.
// - Rows: the KV heads to which a step's queries attend. A layer that attends to the KV of an
//   earlier layer has rows of its own, but reads the heads of the earlier layer.
// - Index rows: the heads of the layers whose blocks have an index, that is, digests or codes by
//   which blocks are chosen.
// The store, page tables and tails are numbered by heads, results of steps by rows, and a GPU's
// digests and codes by index rows.
// If all layers keep KV without a window, the three numberings are the same.
class KvShape {
 public:
  // Attention of prompts begins to read at a multiple of this. Keys before the window get weight 0.
  static constexpr int64_t kKeyTile = 64;

  KvShape() = default;
  KvShape(int block_size, KvType type, std::vector<LayerShape> layers);
  // Makes a shape whose layers are alike except for their windows. windows: for each layer the
  // tokens that a query sees; 0: all. Empty: all 0.
  KvShape(const BlockLayout& layout, int n_layers, int n_kv_heads,
          const std::vector<int32_t>& windows = {});

  int n_layers() const { return static_cast<int>(layers_.size()); }
  const LayerShape& layer(int i) const { return layers_[i]; }
  int block_size() const { return block_size_; }
  KvType type() const { return type_; }
  // Returns the number of blocks of one head that hold this number of tokens.
  int64_t in_blocks(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  BlockLayout layout(int layer) const {
    const bool values_in_keys = layers_[source(layer)].keeps == LayerKeeps::KEYS;
    return {block_size_, layers_[layer].head_dim, type_, values_in_keys};
  }
  size_t block_bytes(int layer) const { return layout(layer).bytes(); }
  size_t largest_block() const;  // in bytes
  // Returns the number of KV heads whose blocks the layer keeps.
  int heads(int layer) const { return layers_[layer].has_blocks() ? layers_[layer].n_kv_heads : 0; }
  // Returns the layer whose keys and values a layer attends to.
  int source(int layer) const {
    return layers_[layer].keeps == LayerKeeps::EARLIER_KV ? layers_[layer].source : layer;
  }
  // Tells whether a later layer attends to a layer's keys and values.
  bool is_source(int layer) const {
    return std::any_of(layers_.begin() + layer + 1, layers_.end(), [layer](const LayerShape& l) {
      return l.keeps == LayerKeeps::EARLIER_KV && l.source == layer;
    });
  }
  // Returns the number of the first head that a layer attends to.
  int64_t first_head(int layer) const { return first_head_[source(layer)]; }
  int64_t heads() const { return static_cast<int64_t>(layer_of_.size()); }
  // Returns the layer that keeps the blocks of a head.
  int layer_of(int64_t head) const { return layer_of_[head]; }
  int rows(int layer) const { return layers_[layer].n_kv_heads; }
  int64_t first_row(int layer) const { return first_row_[layer]; }
  int64_t rows() const { return first_row_.back(); }

  int32_t window(int layer) const { return layers_[layer].window; }
  int windowed_layers() const {
    return static_cast<int>(std::count_if(layers_.begin(), layers_.end(), [](const LayerShape& l) {
      return l.keeps == LayerKeeps::WINDOW_KV;
    }));
  }
  // Tells whether the blocks that a layer reads are chosen by digests, codes or a selector's state.
  bool selects(int layer) const { return layers_[source(layer)].keeps_all(); }
  // Tells whether a layer's own blocks have an index: digests or codes.
  bool indexed(int layer) const { return layers_[layer].keeps_all(); }
  // Returns the first index row of a layer that selects.
  int64_t index_row(int layer) const { return index_row_[source(layer)]; }
  int64_t index_rows() const { return index_row_.back(); }
  // Return the number of layers that select: those before this layer, and all of them.
  int choice(int layer) const { return choice_[layer]; }
  int choices() const { return choice_.back(); }
  // Returns the first layer that selects; -1: there is none. The other layers that select have the
  // same heads and head size, unless uneven_choice names two that differ.
  int chosen() const { return chosen_; }
  // Returns the layer whose shape an index and a selector's state have: chosen(), or layer 0 if no
  // layer selects.
  int index_layer() const { return std::max(0, chosen_); }
  // The states of all layers after some tokens lie in one block of memory. Return its bytes, which
  // are 0 if no layer keeps a state, and the byte at which a layer's state begins.
  size_t state_bytes() const { return state_at_.back(); }
  size_t state_at(int layer) const { return state_at_[layer]; }
  // Sets the most states that a sequence keeps, and the most that it writes besides these at once.
  void set_states(int most, int written) { most_states_ = most, written_states_ = written; }
  int most_states() const { return most_states_; }
  uint64_t most_state_bytes() const {
    return uint64_t(most_states_ + written_states_) * state_bytes();
  }
  // Returns the first layer that keeps keys and values, or 0 if no layer does.
  int first_with_blocks() const { return heads() > 0 ? layer_of(0) : 0; }
  // The newest blocks (tails) of all heads may lie one after the other in memory. Return the byte
  // at which a head's tail begins, and the bytes of all tails.
  uint64_t tail_at(int64_t head) const { return tail_at_[head]; }
  uint64_t tails_bytes() const { return tail_at_.back(); }

  // A run of consecutive heads whose blocks have the same layout.
  struct HeadRun {
    int layer;  // layer of the first head
    int64_t first_head, n_heads;
    bool operator==(const HeadRun&) const = default;
  };
  // Returns the fewest runs that hold all heads or, if indexed is true, the heads of all layers
  // with an index.
  std::vector<HeadRun> runs(bool indexed) const;

  // Names two layers with keys and values that differ in heads or head size, or the first one that
  // attends to those of another; empty: there is none. Layers that keep a state do not count.
  std::string uneven() const;
  // Names the first layer that selects and differs from layer chosen() in heads or head size;
  // empty: there is none. Selectors and their indices are written for one shape.
  std::string uneven_choice() const;

  // Returns the first block that a layer needs to continue with the token at position n_tokens.
  int64_t first_needed(int layer, int64_t n_tokens) const {
    if (window(layer) == 0) return 0;
    return std::max<int64_t>(0, n_tokens + 1 - window(layer)) / kKeyTile * kKeyTile / block_size_;
  }
  // Returns the first block that is kept: the one that is needed after kTakeBack tokens are taken
  // back.
  int64_t first_kept(int layer, int64_t n_tokens) const {
    return first_needed(layer, std::max<int64_t>(0, n_tokens - Marks::kTakeBack));
  }
  // Returns the longest beginning, of at most n_tokens, after which a sequence with these blocks
  // can continue: layers with a window have all blocks that the next token sees, and if layers keep
  // a state, one of `states` is this length. It may be 0. states: the lengths after which there are
  // states.
  int64_t reach(int64_t n_tokens, const std::function<bool(int layer, int64_t block)>& holds,
                std::span<const int64_t> states) const;
  // Tells whether a layer keeps a block when the sequence holds n_tokens.
  bool keeps(int layer, int64_t block, int64_t n_tokens, const Marks& marks) const;

  // Returns the bytes of the blocks of all layers and heads that a sequence of n_tokens with these
  // marks keeps, of those from block `from` on, without states.
  uint64_t bytes(int64_t n_tokens, const Marks& marks, int64_t from = 0) const;
  // Return the most blocks that a sequence of n_tokens holds, even while a prompt is read into it,
  // and their bytes. The bytes include its states. The prompt may set a mark at its end; in a new
  // sequence or a fork it may set others.
  int64_t most_blocks(int64_t n_tokens) const;
  uint64_t most_bytes(int64_t n_tokens) const;
  // Returns the longest sequence, in tokens, for which most_bytes is at most `most`. It is a whole
  // number of blocks, and at most kMaxBlocks of them.
  int64_t longest(uint64_t most) const;
  // Returns the number of blocks of a sequence of n_tokens that steps can read.
  int64_t readable_blocks(int64_t n_tokens) const;
  // Returns the number of blocks of a layer that attention of a prompt may read or write during
  // `rows` rows.
  int64_t prompt_blocks(int layer, int64_t rows) const {
    return (rows + window(layer) + kKeyTile) / block_size_ + 2;
  }
  // Returns the bytes of a layer's KV of this number of tokens.
  uint64_t layer_bytes(int layer, int64_t tokens) const {
    return uint64_t(in_blocks(tokens)) * heads(layer) * block_bytes(layer);
  }
  // Returns the bytes of the layer that takes the most.
  uint64_t largest_layer(int64_t tokens) const;

 private:
  // Returns the most blocks of a head of a layer that a sequence holds.
  int64_t most_of(int layer, int64_t n_tokens) const;

  int block_size_ = 32;
  KvType type_ = KvType::F16;
  std::vector<LayerShape> layers_;
  // Each layer's first head, first row and first index row, and the number of earlier layers that
  // select. All lists except the first have one more entry: the number of all.
  std::vector<int64_t> first_head_, first_row_{0}, index_row_{0};
  std::vector<int32_t> choice_{0};
  // Each head's layer, and the byte at which its tail begins. The second list also has the bytes of
  // all tails.
  std::vector<int32_t> layer_of_;
  std::vector<uint64_t> tail_at_{0};
  std::vector<size_t> state_at_{0};  // [layers], and the bytes of all states
  int most_states_ = Checkpoints::kMost, written_states_ = 1;
  int chosen_ = -1;
};

}  // namespace riffle
