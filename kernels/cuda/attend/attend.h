// Decode attention of one layer.
//
// A row is (sequence i, KV head h), row = i * n_kv_heads + h, with its g = n_heads / n_kv_heads
// query heads (g <= 8). Positions of a row's order: forced blocks first (sinks, recent blocks,
// tail, in token order), then the candidates (the full blocks between sinks and recent blocks),
// most critical first, ties to the lower block: select/selector.h RowPlan. Mode Everything: all
// blocks that hold a token which the query sees, in token order, are forced.
//
// A row has kRowWarps warps whatever the device; position p belongs to warp p % kRowWarps, which
// keeps one online-softmax state for all its positions; the states are merged in warp order at the
// end. So the result depends on the order alone.
#pragma once
#include "kernels/cuda/pool/pool.h"
#include "kernels/cuda/select/select.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

inline constexpr int kRowWarps = 64;

struct DecodeStep {
  int n = 0;  // sequences
  int layer = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0;
  int not_indexed = 0;     // number of layers before this one without an index (StepSequence)
  int64_t max_blocks = 0;  // most blocks any sequence may come to hold: sizes the scratch
  const StepSequence* sequences = nullptr;  // [n], device
  const float* q = nullptr;                 // [n][n_heads * d], after RoPE, not scaled
  float* out = nullptr;                     // [n][n_heads * d]
  // [n_heads]: each head's attention sink, the score of a key without a value, which is added to
  // the sum of its softmax; null: none. Sinks change neither what is read nor lse.
  const float* sinks = nullptr;
  KvLayout layout;
  Ranked ranked;
  Pool pool;
  void* scratch = nullptr;       // decode_scratch_bytes; need not be cleared
  RowResult* results = nullptr;  // [n * n_kv_heads]
  int32_t* order =
      nullptr;  // [n * n_kv_heads][max_blocks]: blocks in the order attended; null: not wanted
  // [n * n_kv_heads][max_blocks], by block: bit t says whether to attend to its token t (of those
  // held; one at least). Null: to all. Whole blocks are fetched all the same, once for a row's
  // heads.
  const uint64_t* masks = nullptr;
  float* lse = nullptr;       // [n * n_heads]: log-sum-exp of what was attended; null: not wanted
  cudaEvent_t marks[2] = {};  // recorded after the scores and after the ranking; null: not wanted
  bool overlap = false;       // launch as dependents of the kernel before, see Gemv::overlap
  uint32_t* arrivals =
      nullptr;  // [n * n_kv_heads], 0 before and after a step; null: costs a memset if not ranked
  // [1], 0 before: the CTAs of a row wait for each other, which never ends if kernels of other
  // streams keep some of them from the GPU. After about 2 s they set this and leave; then the
  // step's results mean nothing. Null: they wait for ever.
  uint32_t* fault = nullptr;
  bool stamp =
      false;  // enter the blocks attended to in the sequences' last_use; not for host-driven steps
};

// cudaErrorNotSupported for a head_dim, group or block size that the kernels do not have, or not on
// a device of these limits (which must be the current one): each of a CTA's warps has a block in
// shared memory, or its keys and then its values.
Status decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits);
// Enough for step.n, max_blocks and any rule except top_p and vote, which need 4 more bytes a token
// and query head.
size_t decode_scratch_bytes(const DecodeStep& step);
// The whole of decode attention for one layer: score the digests, rank, attend progressively with
// device-side residency (hits from slots, misses straight from pinned host memory, kept in a
// victim's slot), test, merge, normalise. No host.
Status attend_decode(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream);

// The same in pieces, driven by the host (pipelined PSA). rank_rows: begins a step: scores, and at
// least the first `first` positions of every row ranked -> order (forced blocks first) and counts.
// The host reads both to look blocks up. attend_positions: positions [begin, end) of rows that are
// not done, sources given (the tail's is not used: it comes from the sequence); updates the warps'
// states in scratch and publishes masses. verify_rows: after [begin, end), tests, sets done[row]
// (also when the row has read all it may) and results (lookups and misses 0); when no row is left
// it stores epoch into *flag (mapped pinned host memory) after __threadfence_system(). Ranges: the
// forced blocks (sinks + recent + 1) first, then microbatches. finish_rows: merges the warps'
// states into out and lse.
struct StreamedStep {
  DecodeStep step;  // pool and order unused; scratch: streamed_scratch_bytes, need not be cleared
  int32_t* order = nullptr;   // [rows][max_blocks]
  int32_t* counts = nullptr;  // [rows][2]: n_forced, n_total
  const std::byte* const* sources =
      nullptr;  // [rows][max_positions] device or pinned pointers, of positions [begin, end)
  int64_t max_positions = 0;
  int32_t* done = nullptr;      // [rows]
  int32_t* n_active = nullptr;  // [1]
};
size_t streamed_scratch_bytes(const DecodeStep& step);
Status rank_rows(const StreamedStep& step, int32_t first, const DeviceLimits& limits,
                 cudaStream_t stream);
// Extends the rows' orders so that positions below `want` are ranked.
Status rank_more(const StreamedStep& step, int32_t want, const DeviceLimits& limits,
                 cudaStream_t stream);
Status attend_positions(const StreamedStep& step, int32_t begin, int32_t end,
                        const DeviceLimits& limits, cudaStream_t stream);
Status verify_rows(const StreamedStep& step, int32_t begin, int32_t end, uint32_t* flag,
                   uint32_t epoch, cudaStream_t stream);
Status finish_rows(const StreamedStep& step, const DeviceLimits& limits, cudaStream_t stream);

}  // namespace riffle::cuda
