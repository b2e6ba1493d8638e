// Options of a device, and the memory that it would take.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backend/memory_list.h"
#include "kv/kv_shape.h"
#include "kv/selector_state.h"
#include "kv/slot_pool.h"
#include "model/model.h"
#include "riffle.h"
#include "util/options.h"

namespace riffle {

// The options of a context as devices read them.
struct BackendOptions {
  // AUTO and 0 are replaced by their values, except in `slots`, `isa` and the selection.
  ContextOptions options{};
  const cpu::Kernels* kernels = cpu::kernels(cpu::Isa::Scalar);  // the host's kernels
  BlockLayout layout;
  // KV is read from slots of a pool: emu, and cuda except where it reads blocks in place.
  bool has_pool = false;
  bool device_memory = false;  // memory is taken from the device (cuda)
  // cuda: the GPU is integrated. The memory that is taken from it is then the host's memory.
  bool integrated = false;
  int64_t slots = 0;    // slots of the pool; 0: there is none
  bool drafts = false;  // the model's MTP layer may guess
  int rows_ahead = 0;   // the most tokens that all sequences of a step compute ahead
  // cuda: number of slots, at the end of the pool, whose memory prompts borrow; 0: prompts have
  // memory of their own.
  int64_t lent_slots = 0;
  // Selector AUTO reads a session whole in steps where it has fewer tokens than this, the current
  // one included. The memory plan sets it.
  int64_t everything_below = 0;
  // Factor that selector AUTO applies to the share. The memory plan sets it.
  float auto_share = 1;
  // cuda: the number of last layers whose experts are in host memory, where the CPU computes with
  // them in steps. The memory plan sets it.
  int host_expert_layers = 0;
  bool rows_on_host = false;  // cuda: residual streams of long prompts are in host memory
  uint64_t prompt_bytes = 0;  // cuda: device bytes of a prompt besides its KV
  // Returns these settings with AUTO replaced: by dense if no session of the context gets long
  // enough for share. Else by share, which reads shorter sessions whole. Scales the share of AUTO.
  Selection without_auto(Selection s) const {
    if (s.selector != SelectorKind::AUTO) return s;
    s.selector = options.n_ctx <= everything_below ? SelectorKind::DENSE : SelectorKind::SHARE;
    s.share *= auto_share;
    return s;
  }
  Selection selection() const { return without_auto(options.selection); }
  // Returns whether prompts choose the tiles that they read.
  bool chooses_tiles() const { return options.prefill_selector == PrefillSelector::TILES; }
  // Names the choices that decide the bits of the host's results.
  std::string host_arithmetic() const {
    if (options.isa != IsaChoice::AUTO) return kernels->name;
    return std::string("auto up to ") + cpu::kernels(kernels->isa)->name;
  }
  EvictPolicy evict() const {
    return options.evict == EvictRule::LRU ? EvictPolicy::Lru : EvictPolicy::Fifo;
  }
};

// Returns the shape of the KV that sequences keep. If a layer's window holds the whole context, the
// layer counts as one without a window, and the selector chooses its blocks. This holds only for
// layers with the heads and the head size of the layers without a window, since layers that select
// must be alike.
KvShape kv_shape(const Config& config, const BackendOptions& o);

// Returns the shape that a selector's state is made for. Heads and layout are those of the layers
// that select; n_layers is the number of all layers.
StateShape state_shape(const Config& config, const BackendOptions& o);

// Returns true if the owner of an emulated pool grants its slots, as the papers' residency does:
// for settings that a GPU's own protocol cannot run.
inline bool grants_slots(const ContextOptions& o) {
  return o.evict != EvictRule::LRU || o.pool_per_layer;
}

// Memory that a context of options.n_ctx tokens takes: GPU memory if device_memory, else host
// memory.
struct DeviceNeeds {
  uint64_t weights = 0;
  // Buffers of all sessions, except weights, slots and prompts. On the CPU they include a prompt's
  // activations.
  MemoryList buffers{};
  // cuda: memory for a prompt while it is read, with its residual stream on the device (prompt) or
  // in host memory (prompt_least). lends: slots may lend their memory for it.
  MemoryList prompt{}, prompt_least{};
  bool lends = false;
  // cuda: the part of `weights` that each layer's experts take, which may stay in host memory. If
  // any do, prompts take expert_staging more on the device and host_staging in host memory.
  std::vector<uint64_t> expert_bytes{};
  uint64_t expert_staging = 0, host_staging = 0;
  uint64_t selector_state = 0;  // state of one session, in host memory
  // Bytes of a slot and its bookkeeping, and the fewest slots that are accepted; 0: no pool.
  uint64_t per_slot = 0;
  int64_t min_slots = 0;
  uint64_t free = 0;  // with device_memory: bytes that the GPU has free now
};

}  // namespace riffle
