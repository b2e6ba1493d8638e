// A warp's pass over the positions of a row. Its blocks stream through a ring of stages in
// shared memory. Each is looked up (order -> page table -> word), claimed (compare-and-swap of the
// slot's word), issued (cp.async from the slot, the tail, or pinned host memory) and consumed.
// Blocks that are known to be needed may be fetched from the host into slots beforehand, all
// together.
#pragma once
#include "kernels/cuda/attend/attend_mma_q8.cuh"
#include "kernels/cuda/attend/attend_stage.cuh"

namespace riffle::cuda {

// kFetched: a miss whose block is already in a slot; kBrought: the same by fetch_ahead, and not
// claimed yet.
enum Source : int {
  kNone = 0,
  kHit = 1,
  kMiss = 2,
  kFetched = 3,
  kTail = 4,
  kGiven = 5,
  kBrought = 6
};

// In an entry of a row's order: fetch_ahead has put this block into a slot.
inline constexpr int32_t kBroughtBit = 1 << 30;
__device__ inline int block_in(int32_t entry) { return entry & ~kBroughtBit; }

// Copies the blocks of the lanes in `lanes` from host memory at `from` into slots `to`. The whole
// warp takes part, with kEach loads of each lane in flight.
template <int kEach>
__device__ inline void bring(const Pool& pool, int64_t block_bytes, unsigned lanes,
                             const std::byte* from, int to) {
  const int lane = threadIdx.x % 32;
  const int64_t chunks = block_bytes / 16;
  while (lanes != 0) {
    const int holder = __ffs(static_cast<int>(lanes)) - 1;
    lanes &= lanes - 1;
    const auto* src = reinterpret_cast<const uint4*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(from), holder));
    const int64_t target = __shfl_sync(kAllLanes, to, holder);
    auto* dst = reinterpret_cast<uint4*>(slot_at(pool, target));
    for (int64_t at = lane; at < chunks; at += kEach * 32) {
      uint4 x[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (at + 32 * j < chunks) x[j] = load_once(src + at + 32 * j);
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (at + 32 * j < chunks) __stcg(dst + at + 32 * j, x[j]);
    }
  }
  __threadfence();  // other lanes, and rows of forks, are going to read this lane's writes
  __syncwarp();
}

template <class T, int D, int G>
struct BlockOf {
  using type = CoreBlock<T, D, G>;
};
#if __CUDA_ARCH__ >= 800
template <int D, int G>
struct BlockOf<__half, D, G> {
  using type = MmaBlock<D>;
};
template <int D, int G>
struct BlockOf<Q8Kv, D, G> {
  using type = MmaBlockQ8<D>;
};
#endif

// Shared memory besides the ring.
template <class T, int D, int G>
struct AttendMemory {
  typename BlockOf<T, D, G>::type::Shared block;
  float m[kCtaWarps][kMaxGroup], s[kCtaWarps][kMaxGroup];
  // Values that all lanes of a warp share and seldom need: not worth registers.
  StepSequence sequence[kCtaWarps];
  RowGeometry geometry[kCtaWarps];
  int2 place[kCtaWarps];      // numbers of the part and of the slice within the row
  int2 stages[kCtaWarps][4];  // block, Source
  int counts[kCtaWarps][2];
  int decision;
};

// Neighbouring positions go to different CTAs.
__device__ inline int row_warp(int warp, int cta) { return warp * kRowCtas + cta; }

// Sources of blocks: the pool and host memory, by the tables of the sequence. Another class in its
// place may give other sources for positions from `begin` on.
struct FromTables {
  static constexpr int begin = 0;
  __device__ static bool gives() { return false; }
  __device__ static const std::byte* given(int, int) { return nullptr; }
};

// Items: the parts of the first slices of all rows, row by row; then those of the second slices,
// and so on.
struct Item {
  int row, part, slice;
};
__device__ inline Item item_of(const AttendArgs& a, int number) {
  Item item = {number, 0, 0};
  if (a.slices > 1) {
    const int each = items_of_slice(a);
    item.slice = number / each;
    item.row -= item.slice * each;
  }
  if (a.parts > 1) {
    item.part = item.row % a.parts;
    item.row /= a.parts;
  }
  return item;
}
// Return the query heads of a part of a row, and the number of its first one among those of the
// step.
__device__ inline int heads_of_part(const AttendArgs& a, int part) {
  return min(a.group, a.heads - part * a.group);
}
__device__ inline int64_t first_of_part(const AttendArgs& a, int row, int part) {
  return int64_t(row) * a.heads + part * a.group;
}

template <class T, int D, int G, class From = FromTables,
          class Block = typename BlockOf<T, D, G>::type, class Memory = AttendMemory<T, D, G>>
struct RowWarp {
  using Shape = BlockShape<T, D>;
  using StageOf = Stage<T, D>;

  const AttendArgs& a;
  const StepSequence& sequence;
  const RowGeometry& r;
  Memory& memory;
  const From sources;
  uint4* ring;                         // this warp's stages
  const int32_t* order;                // this row's
  int row, warp, lane, number, first;  // number: in the row's warps; first: its first position
  int stride;                          // warps of the row: positions from one to the next
  int64_t entry0;                      // entry of block 0 in the tables
  int32_t* page_table;
  uint32_t now;
  Block block_;
  int lookups = 0, misses = 0;

  // Lane i has these of own position number looked + i, position first + stride * (looked + i):
  int looked = 0, block = -1, slot = -1, source = kNone;
  unsigned long long word = 0;
  const std::byte* from = nullptr;
  int issued = 0, used = 0;  // own positions that have been issued, consumed
  int2 last;                 // block and Source of the last result

  __device__ RowWarp(const AttendArgs& args, const StepSequence& s, const RowGeometry& geometry,
                     Memory& m, uint4* stages, const Item& item, const From& sources_ = {})
      : a(args), sequence(s), r(geometry), memory(m), sources(sources_), ring(stages) {
    row = item.row;
    block_.load_q(a.step.q + first_of_part(a, row, item.part) * a.step.layout.head_dim,
                  heads_of_part(a, item.part), a.step.layout.head_dim);
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    if (lane == 0) memory.place[warp] = make_int2(item.part, item.slice);
    __syncwarp();
    number = item.slice * kRowWarps + row_warp(warp, blockIdx.x % kRowCtas);
    stride = kRowWarps * r.slices;
    first = sources.begin + ((number - sources.begin) & (stride - 1));
    order = a.order + int64_t(row) * a.step.max_blocks;
    entry0 = head_index(a.step, row) * sequence.max_blocks;
    const bool pool = a.step.pool.n_slots > 0;
    page_table = pool ? a.step.pool.page_tables[sequence.table] : nullptr;
    now = pool ? *a.step.pool.now : 0;
  }

  __device__ int part() const { return memory.place[warp].x; }
  __device__ int slice() const { return memory.place[warp].y; }
  __device__ int own(int i) const { return first + stride * i; }
  __device__ unsigned long long key(int b) const {
    return pool_key(table_of(sequence, b), entry0 + b);
  }
  // Returns the place where the block's slot is entered. Blocks that forks share cost an access to
  // Pool::page_tables instead of registers.
  __device__ bool is_shared(int b) const { return b < sequence.prefix_blocks; }
  __device__ int32_t* place(int b) const {
    return (is_shared(b) ? a.step.pool.page_tables[sequence.prefix_table] : page_table) + entry0 +
           b;
  }
  // Enters the slot in the table. The warp has written the block to the slot before. Rows of forks,
  // or of tokens computed ahead, may read the entry in this step, so the bytes come first.
  __device__ void enter(int b, int slot_) const {
    __threadfence();
    __syncwarp();
    if (lane == 0) *place(b) = slot_;
  }
  // Only the first part of a row moves blocks into slots, since all parts read the same blocks.
  __device__ bool fills_slots() const { return page_table != nullptr && part() == 0; }
  __device__ const std::byte* tail() const { return tail_of(a.step, sequence, row); }
  static constexpr bool kMayHalve = StageOf::kMayHalve, kLatent = kValuesInKeys<D>;
  __device__ bool halves() const { return kMayHalve && a.halves; }
  __device__ int stage_chunks() const { return StageOf::chunks(a.step.layout.block_size); }
  // Returns the chunks of a warp's ring. At the end the ring also holds the warp's result, which
  // may be a little larger than a small block.
  __host__ __device__ static int64_t ring_chunks(int block_size, int n_stages, bool halved) {
    const int64_t whole = StageOf::chunks(block_size), result = kMaxGroup * (D + 8) / 4;
    const int64_t chunks = kMayHalve && halved ? whole / 2 : whole * n_stages;
    return chunks > result ? chunks : result;
  }
  __device__ static int ring_chunks(const AttendArgs& args) {
    return static_cast<int>(ring_chunks(args.step.layout.block_size, args.n_stages, args.halves));
  }
  __device__ int valid_tokens(int b) const {
    return min(r.n_tokens - b * a.step.layout.block_size, a.step.layout.block_size);
  }

  // Looks up the slots of positions below `known`, whose blocks are in the order.
  __device__ void look_up(int known) {
    const int p = own(looked + lane);
    if (block >= 0 || p >= known) return;
    const int32_t entry = r.everything ? r.first_block + p : __ldcg(order + p);
    block = block_in(entry);
    slot = -1;
    source = block == entry ? kNone : kBrought;
    if (block == r.n_blocks - 1) {
      source = kTail;
      from = tail();
    } else if (sources.gives()) {
      source = kGiven;
      from = sources.given(row, p);
    } else if (page_table != nullptr) {
      slot = __ldcg(place(block));
      if (slot >= 0) word = *static_cast<volatile unsigned long long*>(a.step.pool.words + slot);
    }
  }
  // Decides where positions below `limit` come from. Hits are claimed for this step.
  __device__ void claim(int limit) {
    if (block < 0 || (source != kNone && source != kBrought) || own(looked + lane) >= limit) return;
    if (slot >= 0 && claim_slot(a.step.pool, slot, key(block), now, word)) {
      source = source == kBrought ? kFetched : kHit;
      from = slot_at(a.step.pool, slot);
    } else {
      source = kMiss;
      from = sequence.host[entry0 + block];
    }
  }

  // Copies misses below `limit` from host memory into victims' slots, with many loads in flight.
  // They are claimed, and nothing has been issued yet. Blocks that get no slot stay misses.
  __device__ void fetch(int limit) {
    if (!fills_slots()) return;
    const bool missing = source == kMiss && own(looked + lane) < limit;
    if (!__any_sync(kAllLanes, missing)) return;
    int to = -1;
    if (missing) to = take_victim(a.step.pool, key(block), now);
    const unsigned left = __ballot_sync(kAllLanes, to >= 0);
    misses += __popc(left);
    bring<8>(a.step.pool, a.step.layout.block_bytes, left, from, to);
    if (to >= 0) {
      *place(block) = to;
      source = kFetched;
      from = slot_at(a.step.pool, to);
    }
    __syncwarp();
  }

  // Requests own position number `issued` into its stage.
  __device__ void issue() {
    const int holder = issued - looked, stage = issued % a.n_stages;
    const int b = __shfl_sync(kAllLanes, block, holder),
              kind = __shfl_sync(kAllLanes, source, holder);
    const auto base = reinterpret_cast<const std::byte*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(from), holder));
    if (lane == 0) memory.stages[warp][stage] = make_int2(b, kind);
    StageOf::request_block(ring + stage * stage_chunks(), base, valid_tokens(b), halves(),
                           a.step.layout, lane);
    commit_async();
    ++issued;
  }
  // Requests blocks that the ring has room for, up to position `limit` (they are claimed up to
  // there). Misses are requested only below `sure`.
  __device__ void fill(int known, int limit, int sure) {
    while (issued < used + a.n_stages && own(issued) < limit) {
      if (issued >= looked + 32) {
        looked = issued;
        block = -1;
        source = kNone;
        look_up(known);
        claim(limit);
      }
      if (own(issued) >= sure && __shfl_sync(kAllLanes, source, issued - looked) == kMiss) return;
      issue();
    }
  }

  // These consume the block at own position number `used`: first scores, then values, then one of
  // keep_result and drop_result.
  __device__ void scores() {
    wait_async(issued - used - 1);
    __syncwarp();
    const int stage = used % a.n_stages;
    const int b = memory.stages[warp][stage].x;
    uint64_t mask = ~uint64_t(0) >> (64 - valid_tokens(b));
    const int unseen = r.first_seen - b * a.step.layout.block_size;
    if (unseen > 0) mask = mask >> unseen << unseen;  // fewer than the block holds are visible
    if (a.step.masks != nullptr) {
      static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
      mask &= __ldcg(reinterpret_cast<const unsigned long long*>(a.step.masks) +
                     int64_t(row) * a.step.max_blocks + b);
    }
    block_.scores(ring + stage * stage_chunks(), a.step.layout.block_size, mask, memory.block);
    if (const int p = own(used); p >= r.first_sample)  // a sample counts 2^weight times
      block_.count_times(
          __ldcg(a.scratch.sample_weights + int64_t(row) * kMaxSamples + p - r.first_sample));
  }
  __device__ void values() {
    const int stage = used % a.n_stages;
    const int2 what = memory.stages[warp][stage];
    const uint4* block_at = ring + stage * stage_chunks();
    if constexpr (kMayHalve)
      if (halves()) return values_in_place_of_keys(what);
    block_.values(block_at + StageOf::values_at(a.step.layout.block_size), a.step.layout.block_size,
                  memory.block);
    release();
  }
  // Gives back the stage of the block at own position number `used`, whose values have been read.
  __device__ void release() {
    const int stage = used % a.n_stages;
    const int2 what = memory.stages[warp][stage];
    if (what.y == kMiss) {
      ++misses;
      if (fills_slots()) keep(what.x, ring + stage * stage_chunks());
    }
    last = what;
    __syncwarp();  // before the stage is written again
    ++used;
  }
  // Does the same where only half a block has room: the keys have been used.
  __device__ void values_in_place_of_keys(int2 what) {
    const auto base = reinterpret_cast<const std::byte*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(from), used - looked));
    int to = -1;
    if (what.y == kMiss) {
      ++misses;
      if (fills_slots()) to = slot_for(what.x);
      if (to >= 0) StageOf::keep_rows(slot_at(a.step.pool, to), ring, a.step.layout, lane);
    }
    __syncwarp();
    // One copy of the code is enough.
    StageOf::template request<false>(ring, base + a.step.layout.value_offset, valid_tokens(what.x),
                                     a.step.layout, lane);
    commit_async();
    wait_async(0);
    __syncwarp();
    block_.values(ring, a.step.layout.block_size, memory.block);
    if (to >= 0) {
      StageOf::keep_rows(slot_at(a.step.pool, to) + a.step.layout.value_offset, ring, a.step.layout,
                         lane);
      enter(what.x, to);
    }
    last = what;
    __syncwarp();
    ++used;
  }
  // Counts the last block's result, at position p.
  __device__ void keep_result(int p) {
    block_.merge();
    if (last.y == kHit || last.y == kMiss || last.y == kFetched) ++lookups;
    if (lane == 0 && a.step.order != nullptr)
      a.step.order[int64_t(row) * a.step.max_blocks + p] = last.x;
    if (lane == 0 && a.step.stamp) {
      uint32_t* used = sequence.last_use + entry0 + last.x;
      const auto now_used = static_cast<uint32_t>(r.n_tokens);
      if (sequence.many_rows) atomicMax(used, now_used);
      else *used = now_used;
    }
  }
  // Drops the last block's result. If its bytes were loaded, the load still counts.
  __device__ void drop_result() {
    if (last.y == kMiss || last.y == kFetched) ++lookups;
  }
  // Counts blocks that were fetched and never consumed.
  __device__ void count_waste() {
    lookups += __popc(__ballot_sync(kAllLanes, source == kFetched && looked + lane >= used));
  }
  __device__ int slot_for(int b) {
    int to = 0;
    if (lane == 0) to = take_victim(a.step.pool, key(b), now);
    return __shfl_sync(kAllLanes, to, 0);
  }
  // Copies a miss from its stage into a victim's slot, if there is one.
  __device__ void keep(int b, const uint4* stage) {
    const int to = slot_for(b);
    if (to < 0) return;
    StageOf::keep(slot_at(a.step.pool, to), stage, a.step.layout, lane);
    enter(b, to);
  }
};

}  // namespace riffle::cuda
