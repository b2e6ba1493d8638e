#include "backend/cuda/draft_memory.h"

#include <algorithm>

#include "backend/cuda/cuda_kv.h"
#include "backend/cuda/step_logits.h"
#include "backend/cuda/step_sampling.h"
#include "backend/cuda/weights.h"
#include "backend/draft_buffers.h"
#include "kernels/cuda/attend/attend.h"

namespace riffle::cuda {

DraftRing::DraftRing(const Config& head, const BackendOptions& options)
    : heads(head.kv_heads(0)), window(head.layers[0].window) {
  BlockLayout of_layer = options.layout;
  of_layer.head_dim = head.head_size(0);
  layout = device_layout(of_layer);
  const auto in_blocks = [&](int64_t tokens) {
    return (tokens + layout.block_size - 1) / layout.block_size;
  };
  max_blocks = in_blocks(options.options.n_ctx);
  // The window, guesses that are dropped again, and as much as a sequence is usually cut by.
  blocks = std::min(max_blocks, in_blocks(window + kMostGuesses + Marks::kTakeBack) + 1);
}

DraftPassBytes draft_pass_bytes(const Config& head, const DraftRing& ring, int64_t n) {
  DecodeStep step;
  step.n = static_cast<int>(n);
  step.n_heads = head.heads(0);
  step.n_kv_heads = ring.heads;
  step.max_blocks = 1;  // nothing is ranked
  step.layout = ring.layout;
  DraftPassBytes b;
  b.sequences = std::max(n, kDraftAppendRows) * sizeof(StepSequence);
  b.scratch = decode_scratch_bytes(step);
  b.counters = (kFaultCounters + n * ring.heads * kRowArrivals) * sizeof(uint32_t);
  return b;
}

MemoryList draft_list(const Model& model, const BackendOptions& options) {
  const Config c = draft_config(model.config);
  const DraftRing ring(c, options);
  const int64_t n = options.options.n_sessions, rows = std::max(n, kDraftAppendRows);
  MemoryList list;
  const auto add = [&](MemoryUse use, const char* name, uint64_t bytes, int64_t times = 1) {
    add_to(list, use, name, product({DeviceHeap::rounded(bytes), uint64_t(times)}));
  };
  add(MemoryUse::DIGESTS, "KV of the MTP layer", ring.bytes(), n);
  add(MemoryUse::DIGESTS, "KV of the MTP layer", ring.table_bytes(), n);
  constexpr const char* kRows = "rows of the MTP layer";
  add(MemoryUse::DIGESTS, kRows, waiting_bytes(c), n);
  const auto activations = [&](uint64_t bytes) { add(MemoryUse::ACTIVATIONS, kRows, bytes); };
  for (const DraftBuffer& b : draft_buffers(c, rows)) activations(b.bytes);
  for (const ForwardBuffer& b : forward_buffers(c, rows, 0)) activations(b.bytes);
  activations(StepLogits::buffers(n, c.vocab_size)[0]);
  for (const uint64_t bytes : StepSampling::most_buffers(n, c.vocab_size, drawable_ids(model)))
    activations(bytes);
  const DraftPassBytes pass = draft_pass_bytes(c, ring, n);
  for (const uint64_t bytes : {pass.sequences, pass.scratch, pass.counters}) activations(bytes);
  return list;
}

}  // namespace riffle::cuda
