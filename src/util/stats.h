// Counts and times that a context keeps, and those of one decode step.
#pragma once
#include <cstddef>
#include <cstdint>

namespace riffle {

struct Stats {
  // decode_steps: more tokens than steps where several sessions step together, or with lookup
  uint64_t prefill_tokens = 0, decode_tokens = 0, decode_steps = 0;
  // with lookup: tokens computed ahead; the number that answers took, which decode_tokens counts
  // too
  uint64_t lookup_proposed = 0, lookup_accepted = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  uint64_t prefill_tiles_seen = 0, prefill_tiles_read = 0;
  // summed over decode steps, layers and KV heads. total: the part that the query sees (all, or a
  // layer's sliding window). read: the part it attends to
  uint64_t kv_blocks_total = 0, kv_blocks_read = 0;
  uint64_t kv_tokens_total = 0,
           kv_tokens_read = 0;  // in tokens, since selectors may read parts of blocks
  uint64_t kv_bytes_read = 0;   // bytes of K and V attended to in decode steps
  // bytes read in decode steps to choose blocks: digests, key codes, keys that were only scored
  uint64_t index_bytes_read = 0;
  // tokenselect: pairs of step and layer that reused the last selection; all such pairs
  uint64_t cached_selections = 0, selections = 0;
  uint64_t index_bytes = 0;                  // memory of sessions for selection, digests included
  uint64_t pool_lookups = 0, pool_hits = 0;  // blocks looked up in the pool; found there
  uint64_t loaded_bytes = 0, flushed_bytes = 0;  // copied host -> slot, slot -> host
  uint64_t evictions = 0;       // 0 if the GPU decides residency: it does not count them
  uint64_t host_kv_bytes = 0;   // held by the block store now
  uint64_t peak_rss_bytes = 0;  // peak of the process
  int64_t pool_slots = 0;
  // Counts of a device with memory of its own; else 0.
  uint64_t host_syncs = 0;                           // times the host waited for the device
  uint64_t device_bytes = 0, peak_device_bytes = 0;  // device memory held now, and at most
  uint64_t pinned_bytes = 0;  // host memory that the device can read, held now
};

// Seconds that the parts of one decode step take on the device, for all layers. Their sum is more
// than a step takes otherwise, since parts do not overlap here.
struct StepTiming {
  double linear = 0;            // products with weights, and operations fused with them
  double attention_score = 0;   // digests against queries
  double attention_rank = 0;    // the order of the blocks
  double attention_attend = 0;  // blocks read, transfers waited for, tests, merging
  double other = 0;             // embedding, RoPE, appending, sealing of blocks, bookkeeping
  double total = 0;
  double copy_bandwidth = 0;  // bytes/s that a copy inside the device's memory reaches, read +
                              // write; 0: not known
  double link_bandwidth = 0;  // bytes/s from host memory to the device; 0: not known
};

// Logits after one token of a prompt.
struct TokenScore {
  float logsumexp = 0;     // natural log
  float next_logprob = 0;  // log-probability of the next token; 0 for the last token
  int32_t argmax = 0;
};

}  // namespace riffle
