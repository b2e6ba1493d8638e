// Decode attention of one layer.
//
// A row is (sequence i, KV head h), row = i * n_kv_heads + h, with its g = n_heads / n_kv_heads
// query heads (g <= kMaxHeads). A row's order has the forced blocks first (sinks, recent blocks,
// tail, in token order), then the candidates (the full blocks between sinks and recent blocks) in
// the selection's order: select/selector.h RowPlan. With RowRule::everything all blocks that hold a
// token visible to the query are forced, in token order.
//
// A row has kRowWarps warps; if the model has few KV heads and the order is long, 2, 4 or 8 times
// as many (slices_of), on every device. Position p belongs to warp p % warps, which keeps one
// online-softmax state for all its positions; the states are merged in warp order at the end. So
// the result depends only on the model and the order.
#pragma once
#include "kernels/cuda/pool/pool.h"
#include "kernels/cuda/select/select.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

inline constexpr int kRowWarps = 64;
// A warp attends for up to kMaxGroup query heads. A row of more, but at most kMaxHeads, is attended
// to in parts (decode_parts.h), which share its order. The rules of papers/ and steps that the host
// drives take up to kMaxGroup.
inline constexpr int kMaxGroup = 8, kMaxHeads = 24;
// A row has at most kMaxSlices slices and kMaxParts parts. It has kRowArrivals counters in
// DecodeStep::arrivals: one for the row, one for each part, and one for each part of each slice.
inline constexpr int kMaxSlices = 8, kMaxParts = kMaxHeads / kMaxGroup,
                     kRowArrivals = 1 + kMaxParts + kMaxSlices * kMaxParts;

struct DecodeStep {
  int n = 0;  // sequences
  int layer = 0, n_heads = 0, n_kv_heads = 0;
  // The numbers (KvShape) of the first head and the first index row that the layer reads, and of
  // the layer's first row.
  int64_t first_head = 0, first_index = 0, first_row = 0;
  int64_t tail_offset = 0;  // bytes from StepSequence::tail to the first head's newest block
  int choice = 0;           // number of earlier layers in which blocks are chosen
  int64_t max_blocks = 0;   // most blocks that any sequence may hold: sizes the scratch
  const StepSequence* sequences = nullptr;  // [n], device
  const float* q = nullptr;                 // [n][n_heads * d], after RoPE, not scaled
  float* out = nullptr;                     // [n][n_heads * d]
  // [n_heads]: each head's attention sink, the score of a key without a value, which is added to
  // the sum of its softmax; null: none. Sinks change neither the choice of blocks nor lse.
  const float* sinks = nullptr;
  KvLayout layout;
  RowRule rule;
  Pool pool;
  void* scratch = nullptr;       // decode_scratch_bytes; need not be cleared
  RowResult* results = nullptr;  // [n * n_kv_heads]
  int32_t* order =
      nullptr;  // [n * n_kv_heads][max_blocks]: blocks in the order attended; null: not wanted
  // [n * n_kv_heads][max_blocks], by block: bit t is set if the row attends to token t of the
  // block. At least one of the tokens held has its bit set. Null: the row attends to all tokens.
  // Blocks are fetched whole in either case, once for all heads of a row.
  const uint64_t* masks = nullptr;
  float* lse = nullptr;       // [n * n_heads]: log-sum-exp of the attended blocks; null: not wanted
  cudaEvent_t marks[2] = {};  // recorded after the scores and after the ranking; null: not wanted
  bool overlap = false;       // launch as dependents of the previous kernel, see Gemv::overlap
  // [n * n_kv_heads][kRowArrivals], 0 before and after a step; null: costs a memset where nothing
  // is selected.
  uint32_t* arrivals = nullptr;
  // [1], 0 before the step. The CTAs of a row wait for each other, and this wait never ends if
  // kernels of other streams keep some of them off the GPU. After about 2 s the CTAs set this flag
  // and leave; the results of the step are then invalid. Null: they wait forever.
  uint32_t* fault = nullptr;
  bool stamp =
      false;  // enter the blocks attended to in the sequences' last_use; not for host-driven steps
};

// Returns cudaErrorNotSupported if the kernels lack the head_dim, group or block size, or if they
// do not fit a device of these limits: shared memory has to hold a block for each of a CTA's warps,
// or first its keys and then its values. Requires: limits are those of the current device.
Status decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits);
// Returns the bytes of scratch that suffice for step.n, max_blocks and the functions below.
size_t decode_scratch_bytes(const DecodeStep& step);
// Runs decode attention of one layer on the device alone: chooses the blocks, attends to them (hits
// come from slots, misses straight from pinned host memory, and these are kept in a victim's slot),
// merges and normalises. papers/attend.h has functions for more rules. attend_everything: rows read
// everything, step.rule.everything.
Status attend_everything(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream);
Status attend_share(const DecodeStep& step, const ShareRule& share, const DeviceLimits& limits,
                    cudaStream_t stream);

}  // namespace riffle::cuda
