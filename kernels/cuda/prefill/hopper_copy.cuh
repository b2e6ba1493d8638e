// Shared memory and work of flash_prefill_hopper.cu, and its copying warp.
#pragma once
#include <cuda.h>

#include "kernels/common/agreed.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/prefill/flash_rows.cuh"
#include "kernels/cuda/types.h"

namespace riffle::cuda::hopper {

constexpr int kUnitKeys = kKeyTile;  // keys of a copy
constexpr int kLine = 128;           // bytes of a row of a box: 64 columns
constexpr int kBoxBytes = kUnitKeys * kLine;
constexpr int kNowhere = 0x7fffff00;  // position of keys that no query sees

struct Params {
  const float* q;
  const float* sinks;
  const std::byte* blocks;
  const uint64_t* tiles;  // words of query tile 0
  void* out;
  int64_t ldq, ldo, n_blocks, tile_words;
  int n, pos0;
  int offset;           // rows of query tile 0 before the chunk
  int n_tiles, n_work;  // query tiles; those times heads
  int n_heads, group;   // group: heads of a KV head
  int window;           // keys that a query sees, its own included
  int block_size;
  float scale;  // log2(e) / sqrt(d): scores are exponents of two
  WType out_type;
};

// The keys that are read: all that a query sees, or those of FlashPrefill::tiles.
enum class Keys { All, Chosen };

template <int kHeadDim, int kWarpgroups, int kRing, bool kTurns, Keys kKind>
struct Tile {
  static constexpr int kD = kHeadDim, kGroups = kWarpgroups, kStages = kRing;
  static constexpr bool kTakeTurns = kTurns, kChosen = kKind == Keys::Chosen;
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static_assert(!kChosen || kRows == kQueryTile);
  static constexpr int kKeys = kD <= 128 ? 128 : 64, kUnits = kKeys / kUnitKeys;
  // A matrix lies in shared memory as columns of boxes, 64 values wide.
  static constexpr int kColumns = kD / 64, kColumnBytes = kKeys * kLine;
  static constexpr int kTileBytes = kColumns * kColumnBytes, kGroupQBytes = kColumns * kBoxBytes;
  // The result is one product wide, or two.
  static constexpr int kParts = kD <= 128 ? 1 : 2, kPartColumns = kColumns / kParts;
  static constexpr int kQBytes = kGroups * kGroupQBytes;
  static constexpr int kBarriers = kQBytes + kStages * 2 * kTileBytes;  // byte offset
  static constexpr int kNotes =
      kBarriers + kStages * 4 * 8;  // byte offset of a Note for each stage
  // Boxes begin at multiples of 1024 bytes, but dynamic shared memory might not.
  static constexpr int kSharedBytes = kNotes + kStages * 16 + 1024;
  // A thread's registers: 64 K in all.
  static constexpr int kCopyRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kComputeRegisters = kGroups == 2 ? 232 : 160;
};

// Message of the copying warp about a stage whose keys are chosen: positions of its units, and
// whether it is the last of the query tile.
struct __align__(16) Note {
  int at[2], last, unused;
};

// Barriers of a stage: keys have arrived, keys are done with, and the same of values.
enum Event { kKeysFull, kKeysEmpty, kValuesFull, kValuesEmpty };

template <class T>
struct Shared {
  uint32_t base;
  unsigned char* bytes;
  __device__ explicit Shared(unsigned char* unaligned) {
    const uint32_t at = shared_address(unaligned);
    base = (at + 1023) & ~1023u;
    bytes = unaligned + (base - at);
  }
  __device__ uint32_t q(int group) const { return base + group * T::kGroupQBytes; }
  __device__ uint32_t keys(int stage) const {
    return base + T::kQBytes + stage * (2 * T::kTileBytes);
  }
  __device__ uint32_t values(int stage) const { return keys(stage) + T::kTileBytes; }
  __device__ uint32_t barrier(Event event, int stage) const {
    return base + T::kBarriers + (event * T::kStages + stage) * 8;
  }
  __device__ Note* note(int stage) const {
    return reinterpret_cast<Note*>(bytes + T::kNotes) + stage;
  }
};

// Byte offset of 16-byte chunk c of row r in a column of boxes.
__device__ __forceinline__ uint32_t swizzled(int r, int c) {
  return static_cast<uint32_t>(r * kLine + ((c ^ (r & 7)) << 4));
}

// A stage of the ring, and the parity of the ring's round.
template <int kStages>
struct Place {
  int stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A head's query tile.
struct Work {
  int head, tile, first;  // first: row of its first query in the chunk, or below 0
  int last;               // position of its last query
  int seen;               // position of the first key that any of its queries sees
};

// Work of this CTA's round `round`. Query tiles with the most keys come first, and every other
// round goes backwards, so that CTAs that take several have about the same number of keys. Heads
// are the fast index: those of a group run side by side and find each other's keys in L2. Returns
// false if there is none.
template <class T>
__device__ __forceinline__ bool next_work(const Params& p, int round, Work* w) {
  const int n = static_cast<int>(gridDim.x), i = static_cast<int>(blockIdx.x);
  const int item = round * n + (round & 1 ? n - 1 - i : i);
  if (item >= p.n_work) return false;
  w->head = item % p.n_heads;
  w->tile = p.n_tiles - 1 - item / p.n_heads;
  w->first = w->tile * T::kRows - p.offset;
  w->last = p.pos0 + min(w->first + T::kRows, p.n) - 1;
  w->seen = max(0, window_begin(p.window, p.pos0 + w->first));
  return true;
}

// ---- the copying warp ----

// The units of 64 keys that a query tile reads, in ascending order.
class Units {
 public:
  __device__ Units(const Params& p, const Work& w)
      : words_(p.tiles == nullptr
                   ? nullptr
                   : p.tiles + (static_cast<int64_t>(w.head) * p.n_tiles + w.tile) * p.tile_words),
        word_(w.seen / (64 * kUnitKeys)),
        last_word_(w.last / (64 * kUnitKeys)),
        last_(w.last / kUnitKeys) {
    bits_ = load(word_) & (~0ull << (w.seen / kUnitKeys & 63));
    next_ = load(word_ + 1);
  }
  // Returns the next unit, or -1.
  __device__ int take() {
    while (bits_ == 0) {
      if (word_ >= last_word_) return -1;
      word_++;
      bits_ = next_;
      next_ = load(word_ + 1);  // early: a word from memory takes as long as a tile's products
    }
    const int unit = word_ * 64 + __ffsll(static_cast<long long>(bits_)) - 1;
    bits_ &= bits_ - 1;
    return unit;
  }

 private:
  __device__ uint64_t load(int word) const {
    if (word > last_word_) return 0;
    const uint64_t bits = words_ == nullptr ? ~0ull : words_[word];
    return word == last_word_ ? bits & (~0ull >> (63 - (last_ & 63))) : bits;
  }

  const uint64_t* words_;
  int word_, last_word_, last_;
  uint64_t bits_, next_;
};

// Writes a unit's values as the copy of a box would, with zeros at and after `total`.
template <class T>
__device__ __forceinline__ void copy_values_by_hand(const Params& p, int kv_head, int unit,
                                                    unsigned char* to) {
  constexpr int kChunks = T::kD / 8;  // 16-byte chunks in a row
  const int lane = static_cast<int>(threadIdx.x) % 32, total = p.pos0 + p.n;
  const int64_t value_bytes = static_cast<int64_t>(p.block_size) * (2 * T::kD);
#pragma unroll 2
  for (int i = lane; i < kUnitKeys * kChunks; i += 32) {
    const int row = i / kChunks, c = i % kChunks, key = unit * kUnitKeys + row;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (key < total) {
      const std::byte* block =
          p.blocks + (kv_head * p.n_blocks + key / p.block_size) * (2 * value_bytes);
      x = *reinterpret_cast<const uint4*>(block + value_bytes + key % p.block_size * (2 * T::kD) +
                                          16 * c);
    }
    *reinterpret_cast<uint4*>(to + c / 8 * T::kColumnBytes + swizzled(row, c % 8)) = x;
  }
  fence_async();
  __syncwarp();
}

// Fills the ring's next stage with the keys and values of these units.
template <class T>
__device__ __forceinline__ void fill_stage(const CUtensorMap* map, const Params& p,
                                           const Shared<T>& shared, Place<T::kStages>& place,
                                           int kv_head, const int (&units)[T::kUnits],
                                           const Note& note) {
  const bool leader = threadIdx.x % 32 == 0;
  const int stage = place.stage, total = p.pos0 + p.n;
  const int unit_blocks = kUnitKeys / p.block_size;
  const int head_block = kv_head * static_cast<int>(p.n_blocks);
  const uint32_t keys_full = shared.barrier(kKeysFull, stage);
  barrier_wait(shared.barrier(kKeysEmpty, stage), place.parity ^ 1);
  if (leader) {
    if (T::kChosen) *shared.note(stage) = note;
    barrier_arrive_expect(keys_full, T::kTileBytes);
#pragma unroll
    for (int u = 0; u < T::kUnits; u++) {
#pragma unroll
      for (int c = 0; c < T::kColumns; c++) {
        copy_box(shared.keys(stage) + c * T::kColumnBytes + u * kBoxBytes, map, 64 * c, 0, 0,
                 head_block + units[u] * unit_blocks, keys_full);
      }
    }
  }
  const uint32_t values_full = shared.barrier(kValuesFull, stage);
  barrier_wait(shared.barrier(kValuesEmpty, stage), place.parity ^ 1);
  int bytes = T::kTileBytes;
#pragma unroll
  for (int u = 0; u < T::kUnits; u++) {
    if ((units[u] + 1) * kUnitKeys > total) {
      const int at = T::kQBytes + stage * (2 * T::kTileBytes) + T::kTileBytes + u * kBoxBytes;
      copy_values_by_hand<T>(p, kv_head, units[u], shared.bytes + at);
      bytes -= T::kColumns * kBoxBytes;
    }
  }
  if (leader) {
    barrier_arrive_expect(values_full, bytes);
#pragma unroll
    for (int u = 0; u < T::kUnits; u++) {
      if ((units[u] + 1) * kUnitKeys > total) continue;
#pragma unroll
      for (int c = 0; c < T::kColumns; c++) {
        copy_box(shared.values(stage) + c * T::kColumnBytes + u * kBoxBytes, map, 64 * c, 0, 1,
                 head_block + units[u] * unit_blocks, values_full);
      }
    }
  }
  __syncwarp();
  place.next();
}

template <class T>
__device__ __forceinline__ void copy_tiles(const CUtensorMap* map, const Params& p,
                                           const Shared<T>& shared) {
  Place<T::kStages> place;
  Work w;
  for (int round = 0; next_work<T>(p, round, &w); round++) {
    const int kv_head = w.head / p.group;
    if constexpr (T::kChosen) {
      Units list(p, w);
      int next = list.take();
      do {
        // If no unit is left to fill the stage, the unit of the last query is copied as padding.
        // Its position is kNowhere, so every query masks it.
        int units[T::kUnits];
        Note note;
#pragma unroll
        for (int u = 0; u < T::kUnits; u++) {
          units[u] = next >= 0 ? next : w.last / kUnitKeys;
          note.at[u] = next >= 0 ? next * kUnitKeys : kNowhere;
          if (next >= 0) next = list.take();
        }
        note.last = next < 0;
        fill_stage<T>(map, p, shared, place, kv_head, units, note);
      } while (next >= 0);
    } else {
      const int first_unit = w.seen / kUnitKeys, last_unit = w.last / kUnitKeys;
      for (int tile = w.seen / T::kKeys; tile <= w.last / T::kKeys; tile++) {
        // A tile may contain units before the first visible unit or after the last one. No query
        // sees them, and their blocks may be absent. The nearest visible unit is copied instead.
        int units[T::kUnits];
#pragma unroll
        for (int u = 0; u < T::kUnits; u++)
          units[u] = min(max(tile * T::kUnits + u, first_unit), last_unit);
        fill_stage<T>(map, p, shared, place, kv_head, units, Note());
      }
    }
  }
}

}  // namespace riffle::cuda::hopper
