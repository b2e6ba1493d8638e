// Which blocks of a sequence are kept. A layer without a sliding window keeps all. A layer with one
// keeps the blocks that the next token may see, and those that the next token would see if the
// sequence were cut back to one of its marks.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kv/block_layout.h"

namespace riffle {

// Lengths to which a sequence may be cut back later, though its windows have moved on: the ends of
// prompts, and where prompts begin alike. Each costs a window of KV.
class Marks {
 public:
  static constexpr int kMost = 2;
  // So many tokens before a mark, or before the end of the sequence, can be taken back as well.
  // Answers end a few tokens before or after what a chat template prints of them.
  static constexpr int64_t kTakeBack = 64;

  const int64_t* begin() const { return at_.data(); }
  const int64_t* end() const { return at_.data() + n_; }  // ascending
  // It stands for those that can be reached from it. If there are kMost others, the lowest one
  // goes.
  void add(int64_t n_tokens) {
    const auto near = [&](int64_t m) { return m <= n_tokens && m >= n_tokens - kTakeBack; };
    n_ = static_cast<int>(std::remove_if(at_.begin(), at_.begin() + n_, near) - at_.begin());
    int i = n_;
    for (; i > 0 && at_[i - 1] > n_tokens; --i) at_[i] = at_[i - 1];
    at_[i] = n_tokens;
    if (++n_ > kMost) std::copy(at_.begin() + 1, at_.begin() + n_--, at_.begin());
  }
  // The sequence keeps its first n_tokens. If a mark beyond served for that, there is one now. None
  // of the others goes.
  void cut(int64_t n_tokens) {
    int64_t lowest = INT64_MAX;  // of those that go
    while (n_ > 0 && at_[n_ - 1] > n_tokens) lowest = at_[--n_];
    const bool is_there = n_ > 0 && at_[n_ - 1] == n_tokens;
    if (n_tokens > 0 && !is_there && lowest <= n_tokens + kTakeBack) at_[n_++] = n_tokens;
  }

 private:
  std::array<int64_t, kMost + 1> at_{};
  int n_ = 0;
};

struct KvShape {
  // Attention of prompts reads keys from a multiple of this on, although it weights those before
  // the window with 0.
  static constexpr int64_t kKeyTile = 64;

  BlockLayout layout;
  int n_layers = 0, n_kv_heads = 0;
  std::vector<int32_t> windows{};  // of each layer: tokens that a query sees; 0: all. Empty: all 0

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
  // The first block that is kept: so that tokens can be taken back.
  int64_t first_kept(int layer, int64_t n_tokens) const {
    return first_needed(layer, std::max<int64_t>(0, n_tokens - Marks::kTakeBack));
  }
  // Whether a layer keeps a block when the sequence holds n_tokens.
  bool keeps(int layer, int64_t block, int64_t n_tokens, const Marks& marks) const;

  // Blocks of all layers and heads that a sequence of n_tokens with these marks keeps, of those
  // from block `from` on.
  int64_t blocks(int64_t n_tokens, const Marks& marks, int64_t from = 0) const;
  // The most that a sequence of n_tokens holds, also while a prompt is read into it. The prompt
  // sets its end as a mark, or marks in a new sequence or a fork.
  int64_t most_blocks(int64_t n_tokens) const;
  // The longest sequence for which most_blocks is no more than this, in whole blocks; at most
  // kMaxBlocks of these.
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
