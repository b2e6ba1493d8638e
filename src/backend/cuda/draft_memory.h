// The device memory of the MTP layer: where the keys and values of its last pairs lie, and lists
// for the plan.
#pragma once
#include <cstdint>

#include "backend/device_options.h"
#include "backend/draft_store.h"
#include "backend/memory_list.h"
#include "kernels/cuda/types.h"
#include "model/model.h"

namespace riffle::cuda {

// The most pairs of one append. They go through the products of steps, not of prompts: a prompt
// leaves at most 1,024 pairs, and steps' products need no memory of prompts.
inline constexpr int64_t kDraftAppendRows = 128;

// A ring of blocks on the device. All KV heads of a block lie one after the other, so that the
// newest block is in its place from the beginning, and a pair is dropped by moving the end.
struct DraftRing {
  // head: the layer's configuration (draft_config).
  DraftRing(const Config& head, const BackendOptions& options);

  // Returns the byte at which a block begins.
  int64_t at(int64_t block) const { return block % blocks * heads * layout.block_bytes; }
  uint64_t bytes() const { return uint64_t(blocks) * heads * layout.block_bytes; }
  uint64_t table_bytes() const { return uint64_t(heads) * max_blocks * sizeof(std::byte*); }
  // Tells whether a query at this place sees only what the ring holds. written: the end of the
  // places that were ever written.
  bool holds(int64_t place, int64_t written) const {
    const int64_t first = place < window ? 0 : (place + 1 - window) / layout.block_size;
    return written <= (first + blocks) * layout.block_size;
  }

  KvLayout layout;
  int heads = 0, window = 0;
  int64_t blocks = 0;      // number of the ring's blocks, for each head
  int64_t max_blocks = 0;  // the most blocks of a sequence
};

// Lists the layer's buffers of all sessions, without its weights.
MemoryList draft_list(const Model& model, const BackendOptions& options);

// Number of a pass's counters before those of arrivals, which are aligned like all device memory.
inline constexpr int64_t kFaultCounters = 4;

// Sizes of the buffers of a pass of n sequences. counters: DecodeStep::fault, then
// DecodeStep::arrivals.
struct DraftPassBytes {
  uint64_t sequences = 0, scratch = 0, counters = 0;
};
DraftPassBytes draft_pass_bytes(const Config& head, const DraftRing& ring, int64_t n);

}  // namespace riffle::cuda
