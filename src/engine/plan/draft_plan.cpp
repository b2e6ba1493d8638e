#include "engine/plan/draft_plan.h"

#include <algorithm>

#include "backend/cpu/cpu_plan.h"
#include "backend/draft_buffers.h"
#include "util/saturating.h"

namespace riffle {

std::unique_ptr<Model> draft_model(const Model& whole) {
  ModelParts parts;
  const DraftWeights& draft = whole.weights.draft;
  parts.weights.embedding = draft.embedding;
  parts.weights.layers = {draft.layer};
  parts.weights.final_norm = draft.final_norm;
  parts.weights.output = draft.output;
  return std::make_unique<Model>(draft_config(whole.config), std::move(parts));
}

ResolvedOptions draft_options(const ResolvedOptions& whole) {
  ResolvedOptions r = whole;
  ContextOptions& o = r.options;
  o.device = DeviceKind::CPU;
  o.slots = o.gpu_mem = 0;
  o.host_mem = 0;
  o.selection = {};
  o.selection.selector = SelectorKind::DENSE;
  r.attention.reset();
  r.has_pool = r.device_memory = r.integrated = false;
  r.slots = r.lent_slots = 0;
  r.rows_ahead = kMostGuesses;
  return r;
}

uint64_t plan_drafts(const Model& whole, const ResolvedOptions& options, MemoryList* buffers) {
  if (options.device_memory) return 0;  // the device's own list has the layer
  const std::unique_ptr<Model> head = draft_model(whole);
  const ResolvedOptions r = draft_options(options);
  const Config& c = head->config;
  const int window = c.layers[0].window, n_ctx = r.options.n_ctx;
  ResolvedOptions fed = r;  // it sees at most this many rows of a prompt
  fed.options.n_ctx = std::min(n_ctx, 2 * window);
  const MemoryList list = plan_cpu(*head, fed).buffers;
  buffers->insert(buffers->end(), list.begin(), list.end());
  const auto add = [&](const char* name, uint64_t bytes) {
    add_to(*buffers, MemoryUse::ACTIVATIONS, name, bytes);
  };
  for (const DraftBuffer& b : draft_buffers(c, std::min(r.options.prefill_chunk, n_ctx)))
    add("rows of the MTP layer", b.bytes);
  for (const Rope& rope : c.ropes)
    add("RoPE tables",
        product({uint64_t(n_ctx - fed.options.n_ctx), uint64_t(c.rope_head(rope)), sizeof(float)}));
  return sum({kv_shape(c, r).most_bytes(n_ctx), waiting_bytes(c)});
}

}  // namespace riffle
