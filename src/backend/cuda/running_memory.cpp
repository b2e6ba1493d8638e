#include "backend/cuda/running_memory.h"

#include "backend/cuda/cublas.h"
#include "backend/cuda/host_driven.h"
#include "backend/cuda/prompt_buffers.h"
#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/step_selection.h"
#include "backend/cuda/weights.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/sample/sample.h"

namespace riffle::cuda {

static constexpr uint64_t kSlack =
    uint64_t(1) << 20;  // words and counters, and the roundings of single buffers

uint64_t unpacked_bytes(const Model& model, cpu::KvType kv) {
  uint64_t most = 0;
  const auto see_as = [&](const Tensor& t, WType type, int64_t stacked) {
    if (t.type != type)
      most = std::max<uint64_t>(
          most, unpacked_rows(stacked * t.rows, t.cols, type) * t.cols * size_of(type));
  };
  const auto see = [&](const Tensor& t, int64_t stacked = 1) {
    see_as(t, operand_type(kv, t.type), stacked);
  };
  for (const LayerWeights& l : model.weights.layers) {
    for (const Tensor* t : {&l.wq, &l.wk, &l.wv, &l.wgate, &l.wo, &l.w1, &l.w3})
      if (t->rows > 0) see(*t);
    if (l.w2.rows > 0) see_as(l.w2, down_type(kv, model.config, l.w2.type), 1);
  }
  for (const LayerWeights& l : model.weights.layers)
    if (!l.experts.empty()) {
      for (const Tensor* t : {&l.experts[0].w1, &l.experts[0].w3, &l.experts[0].w2})
        see(*t, model.config.experts.n);
      if (l.router.type != WType::F32)
        most = std::max<uint64_t>(
            most, unpacked_rows(l.router.rows, l.router.cols, WType::F32) * l.router.cols * 4);
    }
  see(model.weights.output);
  return most;
}

uint64_t expert_staging_bytes(const Model& model, cpu::KvType kv) {
  uint64_t most = 0;
  for (const LayerWeights& l : model.weights.layers) {
    if (l.experts.empty()) continue;
    for (const Tensor* t : {&l.experts[0].w1, &l.experts[0].w3, &l.experts[0].w2}) {
      Tensor some = *t;
      some.rows *=
          experts_at_once(static_cast<int64_t>(l.experts.size()), *t, operand_type(kv, t->type));
      most = std::max(most, device_bytes(some));
    }
  }
  return most;
}

uint64_t unpacked_kv_bytes(const Config& c, const BlockLayout& layout, int64_t n_tokens) {
  if (layout.type != cpu::KvType::Q8) return 0;
  BlockLayout half = layout;
  half.type = cpu::KvType::F16;
  return layout.blocks(n_tokens) * c.n_kv_heads * half.bytes();
}

uint64_t prompt_bytes(const Model& model, const BackendOptions& options, bool rows_on_host) {
  const ContextOptions& o = options.options;
  PromptSizes sizes;
  sizes.n = sizes.n_total = o.n_ctx;
  sizes.chunk = std::min<int64_t>(o.prefill_chunk, o.n_ctx);
  sizes.scored = std::min<int64_t>(kScoreRows, o.n_ctx);
  sizes.rows_on_host = rows_on_host;
  uint64_t bytes = 0;
  for (const PromptBuffer& b : prompt_buffers(model, options, sizes))
    bytes += DeviceArena::rounded(b.bytes);
  return bytes;
}

uint64_t running_bytes(const Model& model, const BackendOptions& options) {
  const Config& c = model.config;
  const BlockLayout& layout = options.layout;
  const ContextOptions& o = options.options;
  const int64_t n = int64_t(o.n_sessions) + o.lookup;  // tokens of a step
  const int64_t n_ctx = o.n_ctx, blocks = layout.blocks(n_ctx);
  const int64_t q = int64_t(c.n_heads) * c.head_dim, kv = int64_t(c.n_kv_heads) * c.head_dim;
  const int64_t step_rows = n * c.n_kv_heads, layer_heads = int64_t(c.n_layers) * c.n_kv_heads;
  uint64_t bytes = Cublas::kWorkspaceBytes + kSlack;
  const auto add = [&](uint64_t one) { bytes += DeviceHeap::rounded(one); };

  // engine/activations.h
  add(4 * n * c.dim);
  add(4 * n * q), add(4 * n * q);
  add(4 * n * kv), add(4 * n * kv);

  add(4 * n * c.vocab_size), add(4 * n * c.vocab_size);  // logits, and those of the last step
  for (size_t i = 0; i < c.ropes.size(); ++i) add(4 * n_ctx * c.head_dim);  // the RoPE tables
  for (int stream = 0; stream < 2; ++stream)
    add(sizeof(Copy) * std::max<int64_t>(blocks * c.n_kv_heads, layer_heads));

  // a step
  DecodeStep step;
  step.n = static_cast<int>(n);
  step.n_layers = c.n_layers;
  step.n_heads = c.n_heads;
  step.n_kv_heads = c.n_kv_heads;
  step.max_blocks = blocks;
  step.layout.type = static_cast<KvType>(layout.type);
  step.layout.head_dim = c.head_dim;
  step.layout.block_size = layout.block_size;
  step.layout.block_bytes = static_cast<int64_t>(layout.bytes());
  add((c.mlp_bias ? 8 : 4) * std::max(n, kFewRows) * c.ffn_values());
  if (c.experts.n > 0) {
    const int64_t rows = std::max(n, kFewRows);
    const int64_t entries = rows * c.experts.n_used;
    add(4 * rows * c.dim), add(4 * rows * c.experts.n);
    add(sizeof(Routed) * entries), add(sizeof(Place) * entries), add(4 * entries * c.dim);
  }
  if (c.post_norm) add(4 * std::max(n, kFewRows) * c.dim);
  add(n * sizeof(StepSequence));
  add((1 + c.n_layers * step_rows) * sizeof(RowResult));
  const auto selector = make_selector(options.selection());
  add(step_selections().scratch_bytes(step, selector->rule()));
  add(4 * step_rows);  // arrivals
  add(n * (sizeof(SampleParams) + sizeof(int32_t)));
  add(4 * n * ((c.vocab_size + 31) / 32));  // masks of the tokens that may be drawn
  add(n * kMostChanges * (sizeof(LogitChange) + sizeof(float)));
  add(sample_scratch_bytes(n, c.vocab_size));
  add(4 * c.n_layers * step_rows * blocks);                 // row reports: orders
  add(4 * 2 * c.n_layers * n * c.n_heads), add(4 * n * q);  // ... and coverage
  // ... driven by the host: one sequence at a time
  step.n = 1;
  add(host_driven_scratch_bytes(step));
  add(4 * c.n_kv_heads * blocks), add(4 * 2 * c.n_kv_heads), add(4 * (c.n_kv_heads + 1));
  add(victims_scratch_bytes());
  add(kMaxTables * sizeof(int32_t*));
  return bytes;
}

}  // namespace riffle::cuda
