// Counts and times that a context keeps, and those of one decode step.
#pragma once
#include <cstddef>
#include <cstdint>

namespace riffle {

struct Stats {
  size_t unused_size;
  // decode_steps: more tokens than steps where several sessions step together, or with lookup
  uint64_t prefill_tokens, decode_tokens, decode_steps;
  // with lookup: tokens computed ahead; of them, those that the answers took, which decode_tokens
  // counts as well
  uint64_t lookup_proposed, lookup_accepted;
  double prefill_seconds, decode_seconds;
  // summed over decode steps, layers and KV heads. total: what the query sees (all, or a layer's
  // sliding window). read: what it attends to
  uint64_t kv_blocks_total, kv_blocks_read;
  uint64_t kv_tokens_total,
      kv_tokens_read;      // in tokens, since selectors may read parts of blocks
  uint64_t kv_bytes_read;  // bytes of K and V attended to in decode steps
  // bytes read in decode steps to choose blocks: digests, INT4 keys, keys that were only scored
  uint64_t index_bytes_read;
  // tokenselect: pairs of step and layer that used the last selection again; all such pairs
  uint64_t cached_selections, selections;
  uint64_t index_bytes;                  // memory of sessions to select by, digests included
  uint64_t pool_lookups, pool_hits;      // blocks asked of the pool; found there
  uint64_t loaded_bytes, flushed_bytes;  // copied host -> slot, slot -> host
  uint64_t evictions;                    // 0 if the GPU decides residency: it does not count them
  uint64_t host_kv_bytes;                // held by the block store now
  uint64_t peak_rss_bytes;               // peak of the process
  int64_t pool_slots;
  // Counts of a device with memory of its own; else 0.
  uint64_t host_syncs;                       // times the host waited for the device
  uint64_t device_bytes, peak_device_bytes;  // device memory held now, and at most
  uint64_t pinned_bytes;                     // host memory that the device can read, held now
};

// Seconds that the parts of one decode step take on the device, for all layers. Their sum is more
// than a step takes otherwise, since parts do not overlap here.
struct StepTiming {
  size_t unused_size;
  double linear;            // products with weights, and what is fused with them
  double attention_score;   // digests against queries
  double attention_rank;    // the order of the blocks
  double attention_attend;  // blocks read, transfers waited for, tests, merging
  double other;             // embedding, RoPE, appending, sealing of blocks, bookkeeping
  double total;
  double copy_bandwidth;  // bytes/s that a copy inside the device's memory reaches, read + write;
                          // 0: not known
  double link_bandwidth;  // bytes/s from host memory to the device; 0: not known
};

// Logits after one token of a prompt.
struct TokenScore {
  float logsumexp;     // natural log
  float next_logprob;  // log-probability of the next token; 0 for the last token
  int32_t argmax;
};

}  // namespace riffle
