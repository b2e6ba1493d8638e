// Which blocks of a sequence are kept. A layer without a sliding window keeps all. A layer with one
// keeps the blocks that the next token may see, and those that the next token would see if the
// sequence were cut back to one of its marks.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kv/block_layout.h"

namespace riffle {

// Lengths to which a sequence may be cut back later, although its windows have moved on: the ends
// of prompts, and the places where other prompts part from it. Each costs a window of KV.
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
    int64_t lowest = INT64_MAX;  // of those that go
    while (n_ > 0 && at_[n_ - 1] > n_tokens) lowest = at_[--n_];
    const bool is_there = n_ > 0 && at_[n_ - 1] == n_tokens;
    if (n_tokens > 0 && !is_there && lowest <= n_tokens + kTakeBack) at_[n_++] = n_tokens;
  }
  // Those of a fork of the first n_tokens.
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

struct KvShape {
  // Attention of prompts begins to read at a multiple of this. Keys before the window get weight 0.
  static constexpr int64_t kKeyTile = 64;

  BlockLayout layout;
  int n_layers = 0, n_kv_heads = 0;
  std::vector<int32_t> windows{};  // for each layer the tokens a query sees; 0: all. Empty: all 0

  int32_t window(int layer) const { return windows.empty() ? 0 : windows[layer]; }
  int windowed_layers() const {
    return static_cast<int>(
        std::count_if(windows.begin(), windows.end(), [](int32_t w) { return w > 0; }));
  }
  int64_t heads() const { return int64_t(n_layers) * n_kv_heads; }

  // The first block that must be there when a layer goes on with the token at position n_tokens.
  int64_t first_needed(int layer, int64_t n_tokens) const {
    if (window(layer) == 0) return 0;
    return std::max<int64_t>(0, n_tokens + 1 - window(layer)) / kKeyTile * kKeyTile /
           layout.block_size;
  }
  // The first block that is kept: that of a sequence from which kTakeBack tokens were taken back.
  int64_t first_kept(int layer, int64_t n_tokens) const {
    return first_needed(layer, std::max<int64_t>(0, n_tokens - Marks::kTakeBack));
  }
  // The longest beginning, of at most n_tokens, after which a sequence with these blocks can go on:
  // layers with a window have all blocks that the next token sees. It may be 0.
  int64_t reach(int64_t n_tokens, const std::function<bool(int layer, int64_t block)>& holds) const;
  // Whether a layer keeps a block when the sequence holds n_tokens.
  bool keeps(int layer, int64_t block, int64_t n_tokens, const Marks& marks) const;

  // Blocks of all layers and heads that a sequence of n_tokens with these marks keeps, of those
  // from block `from` on.
  int64_t blocks(int64_t n_tokens, const Marks& marks, int64_t from = 0) const;
  // The most blocks that a sequence of n_tokens holds, also while a prompt is read into it. The
  // prompt may set a mark at its end; in a new sequence or a fork it may set others.
  int64_t most_blocks(int64_t n_tokens) const;
  // The longest sequence, in tokens, for which most_blocks is at most `most`. It is a whole number
  // of blocks, and at most kMaxBlocks of them.
  int64_t longest(int64_t most) const;
  // The blocks of a sequence of n_tokens that steps can read.
  int64_t readable_blocks(int64_t n_tokens) const;
  // Blocks of a layer that attention of a prompt may read or write while it goes through `rows`
  // rows.
  int64_t prompt_blocks(int layer, int64_t rows) const {
    return (rows + window(layer) + kKeyTile) / layout.block_size + 2;
  }
};

}  // namespace riffle
