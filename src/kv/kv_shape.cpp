#include "kv/kv_shape.h"

#include "kernels/common/agreed.h"

namespace riffle {

static_assert(KvShape::kKeyTile == kKeyTile);  // of the kernels

bool KvShape::keeps(int layer, int64_t block, int64_t n_tokens, const Marks& marks) const {
  const auto at = [&](int64_t n) {
    return block >= first_kept(layer, n) && block < layout.blocks(n);
  };
  return at(n_tokens) || std::any_of(marks.begin(), marks.end(), at);
}

int64_t KvShape::reach(int64_t n_tokens,
                       const std::function<bool(int layer, int64_t block)>& holds) const {
  int64_t n = n_tokens;
  const auto lacking = [&](int layer) {  // the last block that is needed and not there; -1: none
    int64_t b = layout.blocks(n) - 1;
    while (b >= first_needed(layer, n) && holds(layer, b)) --b;
    return b >= first_needed(layer, n) ? b : -1;
  };
  for (bool again = true; again;) {
    again = false;
    for (int layer = 0; layer < n_layers; ++layer) {
      if (window(layer) == 0) continue;
      for (int64_t b; (b = lacking(layer)) >= 0; again = true) n = b * layout.block_size;
    }
  }
  return n;
}

int64_t KvShape::blocks(int64_t n_tokens, const Marks& marks, int64_t from) const {
  int64_t sum = 0;
  for (int layer = 0; layer < n_layers; ++layer) {
    int64_t end = from;  // blocks below it are counted; marks and the end are ascending
    const auto add = [&](int64_t n) {
      const int64_t first = std::max(end, first_kept(layer, n)), last = layout.blocks(n);
      sum += std::max<int64_t>(0, last - first);
      end = std::max(end, last);
    };
    for (const int64_t mark : marks) add(mark);
    add(n_tokens);
  }
  return sum * n_kv_heads;
}

// A window may begin anywhere in a tile of keys, and its last block may just have begun. Each mark
// has one, the end of the sequence has one, and the end of a prompt that is being read.
int64_t KvShape::most_blocks(int64_t n_tokens) const {
  const int64_t all = layout.blocks(n_tokens);
  int64_t sum = 0;
  for (int layer = 0; layer < n_layers; ++layer) {
    const int64_t each = (window(layer) + Marks::kTakeBack + kKeyTile) / layout.block_size + 2;
    sum += window(layer) == 0 ? all : std::min(all, (Marks::kMost + 2) * each);
  }
  return sum * n_kv_heads;
}

int64_t KvShape::longest(int64_t most) const {
  int64_t fits = 0, too_many = kMaxBlocks + 1;  // blocks of a head
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (most_blocks(middle * layout.block_size) <= most ? fits : too_many) = middle;
  }
  return fits * layout.block_size;
}

int64_t KvShape::readable_blocks(int64_t n_tokens) const {
  const int64_t all = layout.blocks(n_tokens);
  int64_t sum = 0;
  for (int layer = 0; layer < n_layers; ++layer)
    sum += window(layer) == 0 ? all
                              : std::min<int64_t>(all, (window(layer) - 1) / layout.block_size + 2);
  return sum * n_kv_heads;
}

}  // namespace riffle
