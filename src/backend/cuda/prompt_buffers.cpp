#include "backend/cuda/prompt_buffers.h"

#include <algorithm>

#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/running_memory.h"
#include "backend/cuda/step_buffers.h"
#include "backend/forward_buffers.h"
#include "backend/recurrent_shape.h"
#include "kernels/common/agreed.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/recurrent/recurrent.h"

namespace riffle::cuda {

ExpandedShape expanded_shape(const Config& c, int block_size, int64_t n_total) {
  // 1 GiB holds 8 heads of 131,072 tokens. Eight heads have 128 query tiles of a chunk of 2,048,
  // which is what a large GPU computes at once. If all heads fit, a token's keys and values are
  // computed once: with 20 heads, for prompts of up to 52,000 tokens.
  constexpr int64_t kBytes = int64_t{1} << 30;
  const LatentConfig& l = c.latent;
  ExpandedShape shape;
  if (l.kv_rank != kLatentValueDim || l.rope_dim != kLatentRopeDim || l.nope_dim % 2 != 0 ||
      l.value_dim % 2 != 0)
    return shape;
  shape.head_dim = expanded_head_dim(l.query_dim(), l.value_dim);
  if (shape.head_dim == 0) return shape;
  shape.n_blocks = (n_total + block_size - 1) / block_size;
  const int64_t head = shape.n_blocks * block_size * 2 * kv_row_bytes(KvType::F16, shape.head_dim);
  const int64_t most = std::clamp<int64_t>(kBytes / head, 1, c.n_heads),
                parts = (c.n_heads + most - 1) / most;
  shape.heads = static_cast<int>((c.n_heads + parts - 1) / parts);
  // The plan counts the longest prompt only, so this must not be less than for a shorter one.
  shape.bytes = std::min(c.n_heads * head, std::max(kBytes, head));
  return shape;
}

std::vector<PromptBuffer> prompt_buffers(const Model& model, const BackendOptions& options,
                                         const PromptSizes& s) {
  const Config& c = model.config;
  const cpu::KvType kv_type = options.layout.type;
  const int64_t operand = kv_type == cpu::KvType::F32 ? 4 : 2, ffn = c.ffn_values();
  const auto stream = PromptRows::buffer_bytes(s.n, c.dim, s.chunk,
                                               s.rows_on_host);  // bytes of each of its buffers
  std::vector<PromptBuffer> list;
  const auto add = [&](const char* what, uint64_t bytes, Buffer& (*of)(PromptBuffers&)) {
    list.push_back({what, bytes, of});
  };
  for (const uint64_t bytes : stream) add("residual stream of a prompt", bytes, nullptr);
  for (const ForwardBuffer& b : forward_buffers(c, s.chunk, s.scored))
    add(b.what, b.bytes, nullptr);
  add("operands of products",
      operand * std::max(s.chunk, s.scored) *
          std::max(
              {int64_t(c.dim), c.widest_q(), recurrent_out(c), int64_t(c.layer_embedding_dim)}),
      [](PromptBuffers& b) -> Buffer& { return b.operand; });
  add("FFN", operand * s.chunk * ffn, [](PromptBuffers& b) -> Buffer& { return b.gate; });
  if (c.gated_ffn())
    add("FFN", operand * s.chunk * ffn, [](PromptBuffers& b) -> Buffer& { return b.up; });
  if (c.experts.n > 0) {
    const int64_t rows = s.chunk * c.experts.n_used;
    constexpr const char* kExperts = "rows of experts";
    add(kExperts, 4 * s.chunk * c.dim, [](PromptBuffers& b) -> Buffer& { return b.experts.in; });
    add(kExperts, 4 * s.chunk * (c.experts.n + c.experts.shared_gate),
        [](PromptBuffers& b) -> Buffer& { return b.experts.scores; });
    add(kExperts, sizeof(Routed) * rows,
        [](PromptBuffers& b) -> Buffer& { return b.experts.routed; });
    add(kExperts, operand * rows * c.dim,
        [](PromptBuffers& b) -> Buffer& { return b.experts.sorted; });
    add(kExperts, 4 * rows * c.dim, [](PromptBuffers& b) -> Buffer& { return b.experts.out; });
    add(kExperts, expert_orders_bytes(rows, c.experts.n),
        [](PromptBuffers& b) -> Buffer& { return b.experts.orders; });
  }
  const ExpandedShape expanded = expanded_shape(c, options.layout.block_size, s.n_total);
  if (expanded.heads > 0 && kv_type == cpu::KvType::F16 && s.chunk >= kExpandedRows) {
    constexpr const char* kExpanded = "per-head keys and values (latent attention)";
    add(kExpanded, expanded.bytes, [](PromptBuffers& b) -> Buffer& { return b.expanded; });
    add(kExpanded,
        2 * int64_t{c.n_heads} * (c.latent.nope_dim + c.latent.value_dim) * c.latent.kv_rank,
        [](PromptBuffers& b) -> Buffer& { return b.latent_matrices; });
    add(kExpanded, 4 * s.chunk * c.n_heads * expanded.head_dim,
        [](PromptBuffers& b) -> Buffer& { return b.latent_queries; });
  }
  if (products_wait(c))
    add("products that wait for their norm", 4 * s.chunk * c.dim,
        [](PromptBuffers& b) -> Buffer& { return b.products; });
  if (const int64_t width = c.layer_embedding_dim; width > 0) {
    const int64_t values = 4 * s.chunk * width;
    constexpr const char* kRows = "per-layer embeddings";
    add(kRows, sizeof(int32_t) * s.chunk,
        [](PromptBuffers& b) -> Buffer& { return b.layer_embedding.tokens; });
    add(kRows, values, [](PromptBuffers& b) -> Buffer& { return b.layer_embedding.own; });
    add(kRows, values, [](PromptBuffers& b) -> Buffer& { return b.layer_embedding.projected; });
    add(kRows, values, [](PromptBuffers& b) -> Buffer& { return b.layer_embedding.gate; });
  }
  if (options.chooses_tiles()) {
    constexpr const char* kTiles = "choice of key tiles";
    const int64_t tiles = s.n_total / kKeyTile + 1,
                  query_tiles = (s.chunk + kQueryTile - 1) / kQueryTile + 1;
    add(kTiles, 2 * c.widest_kv() * tiles, [](PromptBuffers& b) -> Buffer& { return b.means; });
    add(kTiles, sizeof(uint64_t) * c.most_heads() * query_tiles * tile_words(s.n_total),
        [](PromptBuffers& b) -> Buffer& { return b.tiles; });
    add(kTiles, 2 * sizeof(uint64_t), [](PromptBuffers& b) -> Buffer& { return b.tile_counts; });
  }
  add("dequantised weights", unpacked_bytes(model, kv_type),
      [](PromptBuffers& b) -> Buffer& { return b.unpacked; });
  if (s.experts_on_host)
    add("experts from host memory", expert_staging_bytes(model, kv_type),
        [](PromptBuffers& b) -> Buffer& { return b.expert_staging; });
  if (c.recurrence.kind != Recurrence::NONE) {
    constexpr const char* kRows = "rows of recurrent layers";
    add(kRows,
        std::visit([&](const auto& of) { return recurrent_scratch(of, s.chunk); },
                   recurrent_shape(c)),
        [](PromptBuffers& b) -> Buffer& { return b.recurrent; });
    add(kRows, sizeof(float) * kMostRecurKeeps * recurrent_state(c),
        [](PromptBuffers& b) -> Buffer& { return b.kept; });
  }
  add("a layer's KV in f16", unpacked_kv_bytes(kv_shape(c, options), s.n_total),
      [](PromptBuffers& b) -> Buffer& { return b.kv_f16; });
  return list;
}

}  // namespace riffle::cuda
