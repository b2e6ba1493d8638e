// Decode attention of one layer.
//
// A row is (sequence i, KV head h), row = i * n_kv_heads + h, with its g = n_heads / n_kv_heads
// query heads (g <= 8). Positions of a row's order: forced blocks first (sinks, recent blocks,
// tail, in token order), then the candidates (the full blocks between sinks and recent blocks) in
// the selection's order: select/selector.h RowPlan. RowRule::everything: all blocks that hold a
// token which the query sees, in token order, are forced.
//
// A row has kRowWarps warps on every device; position p belongs to warp p % kRowWarps, which keeps
// one online-softmax state for all its positions; the states are merged in warp order at the end.
// So the result depends only on the order.
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
  // the sum of its softmax; null: none. Sinks change neither the choice of blocks nor lse.
  const float* sinks = nullptr;
  KvLayout layout;
  RowRule rule;
  Pool pool;
  void* scratch = nullptr;       // decode_scratch_bytes; need not be cleared
  RowResult* results = nullptr;  // [n * n_kv_heads]
  int32_t* order =
      nullptr;  // [n * n_kv_heads][max_blocks]: blocks in the order attended; null: not wanted
  // [n * n_kv_heads][max_blocks], by block: bit t says whether to attend to its token t (of those
  // held; one at least). Null: to all. Whole blocks are fetched all the same, once for a row's
  // heads.
  const uint64_t* masks = nullptr;
  float* lse = nullptr;       // [n * n_heads]: log-sum-exp of the attended blocks; null: not wanted
  cudaEvent_t marks[2] = {};  // recorded after the scores and after the ranking; null: not wanted
  bool overlap = false;       // launch as dependents of the kernel before, see Gemv::overlap
  // [n * n_kv_heads], 0 before and after a step; null: costs a memset where nothing is selected.
  uint32_t* arrivals = nullptr;
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
// Enough for step.n, max_blocks and the functions below.
size_t decode_scratch_bytes(const DecodeStep& step);
// The whole of decode attention for one layer: choose the blocks, attend to them with device-side
// residency (hits from slots, misses straight from pinned host memory, kept in a victim's slot),
// merge, normalise. No host. papers/attend.h has it for more rules.
// Rows read everything: step.rule.everything.
Status attend_everything(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream);
Status attend_share(const DecodeStep& step, const ShareRule& share, const DeviceLimits& limits,
                    cudaStream_t stream);

}  // namespace riffle::cuda
