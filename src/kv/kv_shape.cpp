#include "kv/kv_shape.h"

#include "kernels/common/agreed.h"
#include "util/error.h"

namespace riffle {

static_assert(KvShape::kKeyTile == kKeyTile);  // the kernels' tile

KvShape::KvShape(int block_size, KvType type, std::vector<LayerShape> layers)
    : block_size_(block_size), type_(type), layers_(std::move(layers)) {
  for (int layer = 0; layer < n_layers(); ++layer) {
    first_head_.push_back(heads());
    layer_of_.insert(layer_of_.end(), heads(layer), layer);
    first_row_.push_back(rows() + rows(layer));
    index_row_.push_back(index_rows() + (indexed(layer) ? heads(layer) : 0));
    choice_.push_back(choices() + selects(layer));
    state_at_.push_back(state_bytes() + layers_[layer].state_bytes);
    for (int h = 0; h < heads(layer); ++h) tail_at_.push_back(tails_bytes() + block_bytes(layer));
    if (chosen_ < 0 && selects(layer)) chosen_ = layer;
  }
}

static std::vector<LayerShape> alike(int head_dim, int n_layers, int n_kv_heads,
                                     const std::vector<int32_t>& windows) {
  std::vector<LayerShape> layers(n_layers, {LayerKeeps::KV, n_kv_heads, head_dim});
  for (int i = 0; i < n_layers && !windows.empty(); ++i)
    if (windows[i] > 0) layers[i].keeps = LayerKeeps::WINDOW_KV, layers[i].window = windows[i];
  return layers;
}

KvShape::KvShape(const BlockLayout& layout, int n_layers, int n_kv_heads,
                 const std::vector<int32_t>& windows)
    : KvShape(layout.block_size, layout.type,
              alike(layout.head_dim, n_layers, n_kv_heads, windows)) {}

size_t KvShape::largest_block() const {
  size_t most = 0;
  for (int layer = 0; layer < n_layers(); ++layer)
    if (heads(layer) > 0) most = std::max(most, block_bytes(layer));
  return most;
}

uint64_t KvShape::largest_layer(int64_t tokens) const {
  uint64_t most = 0;
  for (int layer = 0; layer < n_layers(); ++layer)
    most = std::max(most, layer_bytes(layer, tokens));
  return most;
}

std::vector<KvShape::HeadRun> KvShape::runs(bool indexed) const {
  std::vector<HeadRun> runs;
  for (int i = 0; i < n_layers(); ++i) {
    if (heads(i) == 0 || (indexed && !this->indexed(i))) continue;
    if (!runs.empty()) {
      HeadRun& last = runs.back();
      if (last.first_head + last.n_heads == first_head(i) &&
          layers_[last.layer].head_dim == layers_[i].head_dim) {
        last.n_heads += heads(i);
        continue;
      }
    }
    runs.push_back({i, first_head(i), heads(i)});
  }
  return runs;
}

// Names the data that a layer uses in place of its own keys and values; empty: it uses its own.
static std::string other_data_of(int i, const LayerShape& l) {
  if (l.keeps == LayerKeeps::EARLIER_KV)
    return format("layer %d attends to the KV of layer %d", i, l.source);
  return "";
}

// Names two layers if they differ in heads or head size; empty: they are alike.
static std::string difference(int i, const LayerShape& l, int first_layer,
                              const LayerShape& first) {
  if (l.n_kv_heads == first.n_kv_heads && l.head_dim == first.head_dim) return "";
  return format("layer %d has %d KV heads of size %d, layer %d has %d of size %d", i, l.n_kv_heads,
                l.head_dim, first_layer, first.n_kv_heads, first.head_dim);
}

std::string KvShape::uneven_choice() const {
  for (int i = 0; i < n_layers(); ++i) {
    if (!selects(i)) continue;
    const std::string found = difference(i, layers_[i], chosen(), layers_[chosen()]);
    if (!found.empty()) return found;
  }
  return "";
}

std::string KvShape::uneven() const {
  const int first = first_with_blocks();
  for (int i = 0; i < n_layers(); ++i) {
    if (layers_[i].keeps == LayerKeeps::STATE) continue;
    std::string found = other_data_of(i, layers_[i]);
    if (found.empty()) found = difference(i, layers_[i], first, layers_[first]);
    if (!found.empty()) return found;
  }
  return "";
}

bool KvShape::keeps(int layer, int64_t block, int64_t n_tokens, const Marks& marks) const {
  const auto at = [&](int64_t n) { return block >= first_kept(layer, n) && block < in_blocks(n); };
  return at(n_tokens) || std::any_of(marks.begin(), marks.end(), at);
}

int64_t KvShape::reach(int64_t n_tokens, const std::function<bool(int layer, int64_t block)>& holds,
                       std::span<const int64_t> states) const {
  int64_t n = n_tokens;
  const auto with_state = [&](int64_t most) {
    int64_t best = 0;
    for (const int64_t length : states)
      if (length <= most) best = std::max(best, length);
    return best;
  };
  const auto lacking = [&](int layer) {  // the last block that is needed and not there; -1: none
    int64_t b = in_blocks(n) - 1;
    while (b >= first_needed(layer, n) && holds(layer, b)) --b;
    return b >= first_needed(layer, n) ? b : -1;
  };
  for (bool again = true; again;) {
    again = false;
    for (int layer = 0; layer < n_layers(); ++layer) {
      if (window(layer) == 0 || heads(layer) == 0) continue;
      for (int64_t b; (b = lacking(layer)) >= 0; again = true) n = b * block_size_;
    }
    if (state_bytes() > 0 && with_state(n) < n) n = with_state(n), again = true;
  }
  return n;
}

uint64_t KvShape::bytes(int64_t n_tokens, const Marks& marks, int64_t from) const {
  uint64_t sum = 0;
  for (int layer = 0; layer < n_layers(); ++layer) {
    int64_t end = from;  // blocks below it are counted; marks and the end are ascending
    int64_t blocks = 0;
    const auto add = [&](int64_t n) {
      const int64_t first = std::max(end, first_kept(layer, n)), last = in_blocks(n);
      blocks += std::max<int64_t>(0, last - first);
      end = std::max(end, last);
    };
    for (const int64_t mark : marks) add(mark);
    add(n_tokens);
    sum += static_cast<uint64_t>(blocks) * heads(layer) * block_bytes(layer);
  }
  return sum;
}

// A window may begin anywhere in a tile of keys, and its last block may just have begun. Each mark,
// the sequence's end and the end of a prompt that is being read have one window each.
int64_t KvShape::most_of(int layer, int64_t n_tokens) const {
  const int64_t all = in_blocks(n_tokens),
                each = (window(layer) + Marks::kTakeBack + kKeyTile) / block_size_ + 2;
  return window(layer) == 0 ? all : std::min(all, (Marks::kMost + 2) * each);
}

int64_t KvShape::most_blocks(int64_t n_tokens) const {
  int64_t sum = 0;
  for (int layer = 0; layer < n_layers(); ++layer) sum += heads(layer) * most_of(layer, n_tokens);
  return sum;
}

uint64_t KvShape::most_bytes(int64_t n_tokens) const {
  uint64_t sum = 0;
  for (int layer = 0; layer < n_layers(); ++layer)
    sum += uint64_t(heads(layer)) * most_of(layer, n_tokens) * block_bytes(layer);
  if (n_tokens > 0) sum += most_state_bytes();
  return sum;
}

int64_t KvShape::longest(uint64_t most) const {
  int64_t fits = 0, too_many = kMaxBlocks + 1;  // blocks of a head
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (most_bytes(middle * block_size_) <= most ? fits : too_many) = middle;
  }
  return fits * block_size_;
}

int64_t KvShape::readable_blocks(int64_t n_tokens) const {
  const int64_t all = in_blocks(n_tokens);
  int64_t sum = 0;
  for (int layer = 0; layer < n_layers(); ++layer) {
    const int64_t seen = window(layer) == 0 ? all : (window(layer) - 1) / block_size_ + 2;
    sum += heads(layer) * std::min(all, seen);
  }
  return sum;
}

}  // namespace riffle
