#include "backend/cuda/running_memory.h"

#include "backend/cuda/cublas.h"
#include "backend/cuda/cuda_kv.h"
#include "backend/cuda/host_driven.h"
#include "backend/cuda/prompt_buffers.h"
#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/step_buffers.h"
#include "backend/cuda/step_logits.h"
#include "backend/cuda/step_sampling.h"
#include "backend/cuda/step_selection.h"
#include "backend/cuda/weights.h"
#include "backend/forward_buffers.h"
#include "kernels/cuda/attend/attend.h"
#include "model/recurrence.h"

namespace riffle::cuda {

// Counters, and buffers of a few bytes.
static constexpr uint64_t kSlack = uint64_t(1) << 20;

uint64_t unpacked_bytes(const Model& model, cpu::KvType kv) {
  uint64_t most = 0;
  const auto see_as = [&](const Tensor& t, WType type, int64_t stacked = 1) {
    if (t.rows > 0 && t.type != type)
      most = std::max<uint64_t>(
          most, unpacked_rows(stacked * t.rows, t.cols, type) * t.cols * size_of(type));
  };
  const auto see = [&](const Tensor& t, int64_t stacked = 1) {
    see_as(t, operand_type(kv, t.type), stacked);
  };
  const auto see_down = [&](const Tensor& t, int64_t stacked = 1) {
    see_as(t, down_type(kv, model.config, t.type), stacked);
  };
  const std::vector<MixTensor> mix = recurrent_tensors(model.config);
  for (const LayerWeights& l : model.weights.layers) {
    for (const Tensor* t : {&l.wq, &l.wk, &l.wv, &l.wgate, &l.wo, &l.w1, &l.w3, &l.shared.w1,
                            &l.shared.w3, &l.layer_projection})
      see(*t);
    for (size_t i = 0; i < l.mix.size(); ++i)
      if (mix[i].role == MixTensor::PRODUCT) see(l.mix[i]);
    see_down(l.w2);
    see_down(l.shared.w2);
    see(l.wq_a);
    for (const auto* heads : {&l.k_b, &l.v_b})
      if (!heads->empty()) see((*heads)[0]);
    see_down(l.embedding_gate);
    see_down(l.embedding_out);
    if (l.experts.empty()) continue;
    const int n = model.config.experts.n;
    for (const Tensor* t : {&l.experts[0].w1, &l.experts[0].w3}) see(*t, n);
    see_down(l.experts[0].w2, n);
    see_as(l.router, WType::F32);
  }
  see(model.weights.output);
  return most;
}

uint64_t expert_staging_bytes(const Model& model, cpu::KvType kv) {
  uint64_t most = 0;
  for (const LayerWeights& l : model.weights.layers) {
    if (l.experts.empty()) continue;
    for (const Tensor* t : {&l.experts[0].w1, &l.experts[0].w3, &l.experts[0].w2}) {
      if (t->rows == 0) continue;
      Tensor some = *t;
      some.rows *=
          experts_at_once(static_cast<int64_t>(l.experts.size()), *t, operand_type(kv, t->type));
      most = std::max(most, device_bytes(some));
    }
  }
  return most;
}

uint64_t unpacked_kv_bytes(const KvShape& shape, int64_t n_tokens) {
  if (shape.type() != cpu::KvType::Q8) return 0;
  uint64_t most = 0;
  for (int layer = 0; layer < shape.n_layers(); ++layer) {
    BlockLayout half = shape.layout(layer);
    half.type = cpu::KvType::F16;
    most = std::max<uint64_t>(most, shape.in_blocks(n_tokens) * shape.heads(layer) * half.bytes());
  }
  return most;
}

MemoryList prompt_list(const Model& model, const BackendOptions& options, bool rows_on_host) {
  const ContextOptions& o = options.options;
  PromptSizes sizes;
  sizes.n = sizes.n_total = o.n_ctx;
  sizes.chunk = std::min<int64_t>(o.prefill_chunk, o.n_ctx);
  sizes.scored = std::min<int64_t>(kScoreRows, o.n_ctx);
  sizes.rows_on_host = rows_on_host;
  MemoryList list;
  for (const PromptBuffer& b : prompt_buffers(model, options, sizes))
    add_to(list, MemoryUse::PROMPT, b.what, DeviceArena::rounded(b.bytes));
  return list;
}

MemoryList running_list(const Model& model, const BackendOptions& options) {
  const Config& c = model.config;
  const KvShape shape = kv_shape(c, options);
  const ContextOptions& o = options.options;
  const int64_t n = int64_t(o.n_sessions) + options.rows_ahead;  // tokens of a step
  const int64_t n_ctx = o.n_ctx, blocks = shape.in_blocks(n_ctx);
  MemoryList list;
  const auto add = [&](const char* name, uint64_t bytes) {
    add_to(list, MemoryUse::ACTIVATIONS, name, DeviceHeap::rounded(bytes));
  };
  add("cuBLAS's workspace", Cublas::kWorkspaceBytes);
  add("small buffers", kSlack);
  for (const Rope& rope : c.ropes) add("RoPE tables", 4 * n_ctx * rope_row(c, rope));
  if (c.qkv_bias && shape.type() == cpu::KvType::Q8) {
    uint64_t centres = 0;
    for (int layer = 0; layer < c.n_layers; ++layer) centres += 4 * c.kv_width(layer);
    add("centres of keys", centres);
  }
  for (const uint64_t bytes : CudaKv::copy_bytes(shape, blocks)) add("block descriptors", bytes);
  add("the pool's tables", CudaKv::table_bytes());

  add("residual stream of a step", 4 * n * c.dim);
  for (const ForwardBuffer& b : forward_buffers(c, n, 0)) add(b.what, b.bytes);
  for (const StepBuffer& b : row_buffers(c, n)) add(b.what, b.bytes);
  // Counts a step of all sessions that the device drives, with row reports, and a step of one
  // session that the host drives.
  DecodeStep step;
  step.max_blocks = blocks;
  const auto as_layer = [&](int layer) {
    step.n_heads = c.heads(layer);
    step.n_kv_heads = shape.rows(layer);
    step.layout = device_layout(shape.layout(layer));
  };
  StepSizes sizes{n, blocks};
  const auto selector = make_selector(options.selection());
  step.n = static_cast<int>(n);
  for (const int layer : layer_kinds(c, shape)) {
    as_layer(layer);
    sizes.scratch =
        std::max<uint64_t>(sizes.scratch, step_selections().scratch_bytes(step, selector->rule()));
  }
  sizes.orders = sizes.coverage = true;
  for (const StepBuffer& b : step_buffers(c, shape, sizes)) add(b.what, b.bytes);
  step.n = 1;
  // The host decides residency only if the KV of layers is alike.
  as_layer(shape.first_with_blocks());
  step.n_heads = c.most_heads();
  for (const uint64_t bytes : host_driven_buffers(step)) add("attention's scratch", bytes);
  for (const uint64_t bytes : StepLogits::buffers(n, c.vocab_size)) add("logits", bytes);
  for (const uint64_t bytes : StepSampling::most_buffers(n, c.vocab_size, drawable_ids(model)))
    add("draws of tokens", bytes);
  return list;
}

}  // namespace riffle::cuda
