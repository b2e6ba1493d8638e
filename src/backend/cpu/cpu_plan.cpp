#include "backend/cpu/cpu_plan.h"

#include <algorithm>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/cpu_products.h"
#include "backend/cpu/fastest_kernels.h"
#include "backend/forward_buffers.h"
#include "select/selector.h"

namespace riffle {

// Adds the buffers of prompts and steps.
static void add_activations(const Config& c, const BackendOptions& options, MemoryList& list) {
  const ContextOptions& o = options.options;
  const uint64_t chunk = std::min(o.prefill_chunk, o.n_ctx), n_ctx = o.n_ctx, dim = c.dim;
  const uint64_t step_rows = uint64_t(o.n_sessions) + options.rows_ahead;
  const auto add = [&](const char* name, std::initializer_list<uint64_t> floats) {
    add_to(list, MemoryUse::ACTIVATIONS, name, product({product(floats), sizeof(float)}));
  };
  add("residual stream of a prompt", {n_ctx, dim});
  for (const Rope& rope : c.ropes) add("RoPE tables", {n_ctx, uint64_t(c.rope_head(rope))});
  // A prompt's and a step's buffers exist at once, since steps run while a prompt is being read.
  // Scores of a prompt are left out: only measuring asks for them.
  for (const uint64_t rows : {chunk, step_rows})
    for (const ForwardBuffer& b : forward_buffers(c, static_cast<int64_t>(rows), 0))
      add_to(list, MemoryUse::ACTIVATIONS, b.what, b.bytes);
  add("residual stream of a step", {step_rows, dim});
  add("FFN", {2, chunk, uint64_t(c.ffn_values())});
  add("normalised rows and products", {2, chunk, dim});
  if (c.experts.shared_dim > 0) add("FFN", {2, chunk, uint64_t(c.experts.shared_dim)});
  if (c.experts.n > 0) add("results of experts", {2, chunk, uint64_t(c.experts.n_used), dim});
  if (c.experts.next_to_ffn) add("results of FFNs and experts", {2, chunk, dim});
  if (const uint64_t width = c.layer_embedding_dim; width > 0)
    add("per-layer embeddings", {chunk, 2 * width + std::max(width, dim)});
  // Logits of the current step and of the last one.
  add("logits", {2, step_rows, uint64_t(c.vocab_size)});
}

// Adds the scratch memory that products and attention of prompts take. If riffle chooses the
// kernels by a measurement, all that it may choose count: a plan must not depend on timing.
static void add_scratch(const Model& model, const BackendOptions& options, MemoryList& list) {
  const Config& c = model.config;
  const ContextOptions& o = options.options;
  const bool f32_kv = options.layout.type == cpu::KvType::F32;
  const int64_t chunk = std::min(o.prefill_chunk, o.n_ctx);
  const std::vector<const cpu::Kernels*> choices =
      o.isa == IsaChoice::AUTO ? kernel_choices() : std::vector{options.kernels};
  uint64_t packed = 0, products = 0, attention = 0, heads = 0;
  const auto see = [&](const Tensor& w) {
    if (w.rows == 0) return;
    for (const cpu::Kernels* kernels : choices) {
      packed = std::max(packed, CpuProducts::packed_bytes(*kernels, f32_kv, w, chunk));
      products = std::max(products, CpuProducts::scratch_bytes(*kernels, f32_kv, w));
    }
  };
  for (const LayerWeights& l : model.weights.layers) {
    for (const Tensor* w : {&l.wq, &l.wk, &l.wv, &l.wgate, &l.wo, &l.w1, &l.w2, &l.w3, &l.router})
      see(*w);
    for (const Tensor& w : l.mix) see(w);
    for (const Tensor* w : {&l.layer_projection, &l.embedding_gate, &l.embedding_out}) see(*w);
    if (!l.experts.empty())
      for (const Tensor* w : {&l.experts[0].w1, &l.experts[0].w2, &l.experts[0].w3}) see(*w);
    for (const Tensor* w : {&l.shared.w1, &l.shared.w2, &l.shared.w3}) see(*w);
    see(l.wq_a);
    for (const std::vector<Tensor>* w : {&l.k_b, &l.v_b})
      for (const cpu::Kernels* kernels :
           w->empty() ? std::vector<const cpu::Kernels*>() : choices) {
        const int64_t rows = std::min(chunk, CpuProducts::kHeadRows);
        heads = std::max(heads, CpuProducts::packed_bytes(*kernels, f32_kv, w->front(), rows));
        products = std::max(products, CpuProducts::scratch_bytes(*kernels, f32_kv, w->front()));
      }
  }
  see(model.weights.output);
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (!c.attends(layer)) continue;
    const int g = c.heads(layer) / c.kv_heads(layer), d = c.head_size(layer);
    for (const cpu::Kernels* kernels : choices) {
      const cpu::AttentionKernels& a = kernels->attention;
      attention = std::max<uint64_t>(attention, a.prefill_scratch_bytes(a.prefill_tile(g, d), g, d,
                                                                        options.layout.block_size));
      if (options.chooses_tiles())
        attention = std::max<uint64_t>(
            attention, CpuDevice::tile_scratch(*kernels, d, options.layout.block_size, o.n_ctx));
    }
  }
  if (options.chooses_tiles())
    add_to(list, MemoryUse::ACTIVATIONS, "means of key tiles",
           product({uint64_t(c.widest_kv()), uint64_t(o.n_ctx / kKeyTile), sizeof(float)}));
  add_to(list, MemoryUse::ACTIVATIONS, "rows packed for products", packed);
  add_to(list, MemoryUse::ACTIVATIONS, "scratch of threads",
         product({uint64_t(o.n_threads), sum({products, attention, heads})}));
}

// Adds the digests of all sessions, and an emulated GPU's page tables and newest blocks.
static void add_digests(const KvShape& shape, const BackendOptions& options, MemoryList& list) {
  const ContextOptions& o = options.options;
  const uint64_t blocks = shape.in_blocks(o.n_ctx), sessions = o.n_sessions;
  const DigestSpec spec = digest_spec(o.selection);
  for (int layer = 0; layer < shape.n_layers(); ++layer)
    if (shape.indexed(layer))
      add_to(list, MemoryUse::DIGESTS, "digests of blocks",
             product({sessions, uint64_t(shape.heads(layer)), blocks,
                      spec.bytes(shape.layer(layer).head_dim)}));
  if (!options.has_pool || grants_slots(o)) return;
  const uint64_t heads = shape.heads();
  // Each session may have two page tables, as on a GPU (cuda_kv.h).
  add_to(list, MemoryUse::DIGESTS, "page tables",
         product({sessions, heads, 2 * sizeof(int32_t), blocks}));
  add_to(list, MemoryUse::DIGESTS, "newest blocks", product({sessions, shape.tails_bytes()}));
}

DeviceNeeds plan_cpu(const Model& model, const BackendOptions& options) {
  const ContextOptions& o = options.options;
  const Config& c = model.config;
  const KvShape shape = kv_shape(c, options);
  DeviceNeeds needs;
  needs.weights = model.resident_bytes();
  add_activations(c, options, needs.buffers);
  add_scratch(model, options, needs.buffers);
  add_digests(shape, options, needs.buffers);
  StateShape state = state_shape(c, options);
  state.n_layers = shape.choices();
  needs.selector_state = make_selector(options.selection())->state_bytes(state, o.n_ctx);
  if (!options.has_pool) {
    const int64_t blocks = shape.in_blocks(o.n_ctx), chunk = std::min(o.prefill_chunk, o.n_ctx);
    uint64_t most = 0;
    for (int layer = 0; layer < c.n_layers; ++layer)
      if (shape.window(layer) > 0)
        most = std::max<uint64_t>(most, std::min(blocks, shape.prompt_blocks(layer, chunk)) *
                                            shape.heads(layer) * shape.block_bytes(layer));
    add_to(needs.buffers, MemoryUse::PREFILL_KV, "KV of a layer with a window", most);
    return needs;
  }
  uint64_t layers = shape.largest_layer(o.n_ctx);
  for (int layer = 0; layer < c.n_layers; ++layer)
    if (shape.is_source(layer)) layers += shape.layer_bytes(layer, o.n_ctx);
  add_to(needs.buffers, MemoryUse::PREFILL_KV, "KV of a layer", layers);
  needs.per_slot = shape.largest_block();
  needs.min_slots =
      row_slots(o.selection) * (o.pool_per_layer ? c.n_layers : 1) + int64_t(shape.heads());
  // A slot has a word and a place among the victims, as on a GPU.
  if (!grants_slots(o)) needs.per_slot += sizeof(uint64_t) + sizeof(int32_t);
  return needs;
}

}  // namespace riffle
