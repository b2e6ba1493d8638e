// The slot pool of GPU memory that the device itself manages, and the kernels that move KV blocks
// between it, the tails of sequences and host memory.
#pragma once
#include "kernels/common/pool_words.h"
#include "kernels/cuda/select/select.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// The slot pool as the device sees it (device-side residency). All members point to device memory.
//   words[slot] = key(table, entry) << 24 | stamp: the owner of the slot, and the step that used it
//   last. kFreeWord: no owner.
//   page_tables[table][entry] = slot or -1
//
// Rules: a reader (a row's warp) may use a slot only after it has found words[slot] to be {its key,
// now}, or moved it there from {its key, any stamp} with a compare-and-swap. An evictor may take a
// slot only by moving words[slot] from {any key, stamp != now} to {its key, now} with a
// compare-and-swap; then it clears the loser's page-table entry with a compare-and-swap (slot ->
// -1), copies the block in, and enters the slot in its own page table. A slot that a step uses
// stays for that step. If no slot is left, the step reads the block from host memory and does not
// keep it. So the pool never blocks a step and never changes an answer. A key belongs to one row,
// or to several: of forks (prefix_blocks), or of tokens computed ahead (many_rows). So an entry is
// written only after its bytes (__threadfence between). A reader that finds a slot stamped now
// executes a fence before it reads. If rows miss the same block in one step, each takes a slot.
// Later readers find the slot that was entered last. The other slots become victims like any unused
// slot.
struct Pool {
  std::byte* slots = nullptr;           // [n_slots][slot_bytes]
  int64_t n_slots = 0;                  // 0: no pool, rows read all blocks from host memory
  unsigned long long* words = nullptr;  // [n_slots]
  int32_t** page_tables = nullptr;      // [kMaxTables]
  int32_t* victims =
      nullptr;  // [n_slots]: slots by last use, oldest first, as of the step's beginning
  int32_t* n_victims = nullptr;    // [1]
  int32_t* next_victim = nullptr;  // [1]: cursor, advanced by atomicAdd
  uint32_t* now = nullptr;         // [1]: stamp of this step, 1 to kMaxStamp
  int32_t* n_usable = nullptr;     // [1]: slots [n_usable, n_slots) are lent (lend_slots)
  int64_t slot_bytes = 0;          // bytes of a slot: at least those of any layer's blocks
};
using pool::kFreeWord;
using pool::kMaxStamp;
using pool::kMaxTables;
using pool::kStampBits;
using pool::kVictimBins;
using pool::pool_key;

// Lists the victims of a step: *now += 1, then a counting sort of usable slots by age (exact for
// the last kVictimBins - 1 steps; older ones and free slots count as equally old, free ones first).
// scratch: victims_scratch_bytes().
size_t victims_scratch_bytes();
Status select_victims(const Pool& pool, void* scratch, cudaStream_t stream);

// lend.cu: blocks in slots from `first` on leave the pool, and no step takes these slots until a
// later call has a higher `first`. Their memory may be used for something else. first = n_slots:
// nothing is lent.
Status lend_slots(const Pool& pool, int64_t first, cudaStream_t stream);

// forget.cu: a table forgets its blocks from `first` on: all slots with their keys become free.
// page_table: [n_heads][max_blocks].
Status forget_blocks(const Pool& pool, int32_t table, int32_t* page_table, int64_t n_heads,
                     int64_t max_blocks, int64_t first, cudaStream_t stream);

// working_set.cu: runs at the end of a step that stamped the blocks it attended to. Counts each
// row's blocks that any of the last windows[0] steps of its sequence attended to, this step
// included (SparseServe 3.3), and the same for shorter windows. The counts go to the row's result.
// A step is known by its n_tokens, so a sequence need not be in every step. Reads 4 bytes for each
// block held, in all layers: 4 MiB for 128K tokens in blocks of 32, 32 layers and 8 KV heads, about
// 2 us at an H200's bandwidth, plus the launch.
struct WorkingSets {
  int n = 0, n_layers = 0, n_kv_heads = 0, block_size = 0;
  int64_t first_head = 0;                   // head of the first row; row i has head first_head + i
  int windows[kWindows] = {};               // steps, > 0; the first is the longest
  const StepSequence* sequences = nullptr;  // [n], device
  RowResult* results = nullptr;             // [n_layers][n][n_kv_heads]
};
Status count_working_sets(const WorkingSets& args, cudaStream_t stream);

struct Copy {
  const std::byte* src;
  std::byte* dst;
};
// Moves copies[i] (a device or pinned array) of block_bytes each (a multiple of 16), with one CTA
// for a block at a time, like FlashH2D (SparseServe 3.2). src or dst may be pinned host memory.
// FlashD2H's device scatter is the same kernel the other way.
Status gather(const Copy* copies, int64_t n, int64_t block_bytes, int n_sm, cudaStream_t stream);

// A run of consecutive heads whose blocks have the same layout.
struct SealRun {
  int64_t first_head = 0, n_heads = 0;
  int64_t tail_offset = 0;  // bytes from StepSequence::tail to the first head's newest block
  int64_t index_row = 0;    // index row of the first head
  KvLayout layout;
};

// seal.cu: seals the full tails of one sequence. Copies each head's tail to the head's pinned host
// block `block`, builds the block's digest, and copies the tail to the pool if a victim's slot is
// available.
struct Seal {
  StepSequence sequence;        // by value: host pointers of the table are device-readable
  uint16_t* digests = nullptr;  // null: no digests are kept
  float* bound_factor = nullptr;
  std::byte* codes = nullptr;  // null: no codes are kept
  KeyCodes kind = KeyCodes::None;
  int64_t block = 0;
  // Host arrays: the runs of all heads, and the runs of the heads that have an index.
  const SealRun *runs = nullptr, *indexed = nullptr;
  int n_runs = 0, n_indexed = 0;
  DigestKind digest = DigestKind::CuboidMean;
  bool with_mean = false;
  Pool pool;  // n_slots 0: host only
  bool to_host = true;
};
Status seal_tails(const Seal& args, cudaStream_t stream);

}  // namespace riffle::cuda
