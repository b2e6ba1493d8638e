#include "backend/cuda/step_buffers.h"

#include <algorithm>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {

std::vector<int> layer_kinds(const Config& c, const KvShape& shape) {
  std::vector<int> kinds;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const auto alike = [&](int kind) {
      return shape.rows(kind) == shape.rows(layer) && c.heads(kind) == c.heads(layer) &&
             c.head_size(kind) == c.head_size(layer);
    };
    if (shape.rows(layer) > 0 && std::none_of(kinds.begin(), kinds.end(), alike))
      kinds.push_back(layer);
  }
  return kinds;
}

std::vector<StepBuffer> row_buffers(const Config& c, int64_t n) {
  const uint64_t rows = std::max(n, kFewRows), dim = c.dim;
  std::vector<StepBuffer> list;
  const auto add = [&](const char* what, uint64_t bytes, Buffer& (*of)(StepBuffers&)) {
    list.push_back({what, bytes, of});
  };
  add("a step's FFN", (c.mlp_bias ? 8 : 4) * rows * c.ffn_values(),
      [](StepBuffers& b) -> Buffer& { return b.hidden; });
  if (c.layer_norm)
    add("a step's norms", 4 * rows * dim, [](StepBuffers& b) -> Buffer& { return b.normed; });
  if (products_wait(c))
    add("a step's products", 4 * rows * dim, [](StepBuffers& b) -> Buffer& { return b.products; });
  if (const uint64_t width = c.layer_embedding_dim; width > 0) {
    const uint64_t all = 4 * rows * c.n_layers * width;
    constexpr const char* kRows = "a step's per-layer embeddings";
    add(kRows, sizeof(int32_t) * rows,
        [](StepBuffers& b) -> Buffer& { return b.layer_embedding.tokens; });
    add(kRows, 4 * rows * dim,
        [](StepBuffers& b) -> Buffer& { return b.layer_embedding.embedded; });
    add(kRows, all, [](StepBuffers& b) -> Buffer& { return b.layer_embedding.own; });
    add(kRows, all, [](StepBuffers& b) -> Buffer& { return b.layer_embedding.projected; });
    add(kRows, all, [](StepBuffers& b) -> Buffer& { return b.layer_embedding.values; });
    add(kRows, 4 * rows * width, [](StepBuffers& b) -> Buffer& { return b.layer_embedding.gate; });
  }
  if (c.experts.n == 0) return list;
  const uint64_t entries = rows * c.experts.n_used,
                 scores = 4 * rows * (c.experts.n + c.experts.shared_gate);
  constexpr const char* kExperts = "a step's experts";
  add(kExperts, 4 * rows * dim, [](StepBuffers& b) -> Buffer& { return b.experts.in; });
  add(kExperts, scores, [](StepBuffers& b) -> Buffer& { return b.experts.scores; });
  add(kExperts, sizeof(Routed) * entries,
      [](StepBuffers& b) -> Buffer& { return b.experts.routed; });
  add(kExperts, sizeof(Place) * entries,
      [](StepBuffers& b) -> Buffer& { return b.experts.places; });
  add(kExperts, 4 * entries * dim, [](StepBuffers& b) -> Buffer& { return b.experts.out; });
  return list;
}

std::vector<StepBuffer> step_buffers(const Config& c, const KvShape& shape, const StepSizes& s) {
  const uint64_t n = s.n, rows = n * shape.rows(), layers = c.n_layers, heads = c.most_heads();
  std::vector<StepBuffer> list;
  const auto add = [&](const char* what, uint64_t bytes, Buffer& (*of)(StepBuffers&),
                       bool cleared = false) {
    list.push_back({what, bytes, of, cleared});
  };
  add("a step's inputs", sizeof(StepSequence) * n,
      [](StepBuffers& b) -> Buffer& { return b.sequences; });
  add(
      "a step's counts", sizeof(RowResult) * (1 + rows),
      [](StepBuffers& b) -> Buffer& { return b.results; }, true);
  add("attention's scratch", s.scratch, [](StepBuffers& b) -> Buffer& { return b.scratch; });
  add(
      "attention's scratch", sizeof(uint32_t) * kRowArrivals * n * c.most_kv_heads(),
      [](StepBuffers& b) -> Buffer& { return b.arrivals; }, true);
  if (s.orders)
    add("row reports", sizeof(int32_t) * rows * s.max_blocks,
        [](StepBuffers& b) -> Buffer& { return b.orders; });
  if (!s.coverage) return list;
  add("row reports", 4 * 2 * layers * n * heads, [](StepBuffers& b) -> Buffer& { return b.lse; });
  add("row reports", 4 * n * c.widest_q(), [](StepBuffers& b) -> Buffer& { return b.dense_out; });
  return list;
}

}  // namespace riffle::cuda
