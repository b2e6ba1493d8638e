// The CPU's attention: one block of a decode step, tiles of a prompt, and operations on KV blocks:
// stores, loads and digests.
//
// A KV block: K[B][d] then V[B][d] of KvType, 64-byte aligned. A token's value lies value_at bytes
// behind its key: B rows, or 0 if a block is K[B][d] alone and keys are the values too.
#pragma once
#include "kernels/cpu/types.h"

namespace riffle::cpu {

// Running state of one row's partial attention, for its g query heads: online softmax, not yet
// normalised. The empty state is m = -inf, s = 0, o = 0. The result is o/s, its log-sum-exp m +
// log(s).
struct AttendState {
  float* o;  // [g][d]
  float* m;  // [g] largest score so far
  float* s;  // [g] sum of exp(score - m)
};

struct AttentionKernels {
  // Attends for one row to one block. q is f32 [g][d], already multiplied by 1/sqrt(d). Attends to
  // the tokens whose bit is set in mask (bit t: token t; bits >= block_size are zero), merges into
  // state, and stores each head's log-sum-exp of this block only in l_block[g] (-inf for an empty
  // mask). o may hold any finite values; scores up to +-1e4 stay finite. next: the block of the
  // next call, or NULL; this call prefetches it. Blocks are scattered and a page or two long, and
  // hardware prefetchers do not cross pages by themselves.
  void (*attend_block)(const float* q, int g, int d, const void* block, KvType type, int block_size,
                       int64_t value_at, uint64_t mask, AttendState* state, float* l_block,
                       const void* next);

  // Merges state b into a (same g, d).
  void (*merge)(AttendState* a, const AttendState* b, int g, int d);

  // Prefill: causal attention of n_q consecutive positions pos0, pos0+1, ... of the g heads of one
  // KV head over the blocks blocks[0..ceil((pos0+n_q)/block_size)), which already hold the keys of
  // those positions. window > 0: a query at position i sees key j only if i - j < window; keys
  // before the begin of the first query's window, rounded down to a multiple of 64, are not read. q
  // and out: f32 with row strides ldq and ldo; head h of the group at q + i*ldq + h*d. q is not yet
  // scaled by 1/sqrt(d). Online softmax in f32 (no n x n matrix). sinks: [g], the score of a key
  // without a value, which is added to the sum of each head's softmax; or NULL. scratch:
  // prefill_scratch_bytes(n_q, g, d, block_size), 64-byte aligned. Callers use n_q =
  // prefill_tile(g, d) except for the last rows.
  // Bit t of tiles[w] says whether the keys of key tile 64 w + t (kKeyTile keys) are read. If the
  // bit is 0, these keys are not loaded. NULL: all key tiles are read. Requires: each query sees at
  // least one key of the tiles that are read.
  int (*prefill_tile)(int g, int d);
  size_t (*prefill_scratch_bytes)(int n_q, int g, int d, int block_size);
  void (*attend_prefill)(const float* q, int64_t ldq, int n_q, int g, int d, int64_t pos0,
                         int64_t window, const uint64_t* tiles, const void* const* blocks,
                         int block_size, KvType type, int64_t value_at, const float* sinks,
                         float* out, int64_t ldo, void* scratch);

  // Chooses the key tiles that attend_prefill reads for n_q <= kQueryTile queries of one head. The
  // first query is at pos0, a multiple of kQueryTile. These key tiles are always marked: the first,
  // the kNearTiles before pos0, and those that contain the queries. Another key tile is marked if
  // at least one query gives it more than `share` of the query's total weight. The weight of a key
  // tile is e^s, where s is the score of its mean key, means[tile][d]. The total weight is the sum
  // over all key tiles before pos0. Writes all words up to the last query's key tile. scratch:
  // choice_scratch_bytes(pos0 + n_q, d). src/select/README.md names the source of the rule.
  size_t (*choice_scratch_bytes)(int64_t n_keys, int d);
  void (*choose_tiles)(const float* q, int64_t ldq, int n_q, int d, int64_t pos0,
                       const float* means, float share, uint64_t* tiles, void* scratch);

  // Convert count numbers to KvType and back. For Q8 they are one row (kernels/common/kv_q8.h).
  void (*kv_store)(const float* src, int64_t count, KvType type, void* dst);
  void (*kv_load)(const void* src, int64_t count, KvType type, float* dst);

  // Digest of a full block, as f16 vectors of d values each, one after the other: centre, radius[,
  // mean].
  //   Mean: (mean, 0).  Quest: box centre, half width.  CuboidMean: box centre, mean |k - centre|.
  // Rounding keeps Quest rigorous: centre is rounded first, the radius is measured from the rounded
  // centre and rounded up. with_mean appends the mean key (VETO needs it). Returns R: the smallest
  // factor with half width_j <= R * radius_j for all j (0/0 = 1), so that q.c + R sum|q_j| r_j
  // bounds every q.k_i; Quest: 1; Mean: +inf.
  float (*digest_build)(const void* k, KvType type, int block_size, int d, DigestKind kind,
                        bool with_mean, uint16_t* out);

  // scores[b] = q . centre_b + q_abs . radius_b for n digests, stride uint16s apart (q_abs may be
  // NULL: only the centre).
  void (*digest_score)(const uint16_t* digests, int64_t stride, int64_t n, int d, const float* q,
                       const float* q_abs, float* scores);
};

// Each sets the entries that its file implements and leaves the others as they were.
void attention_scalar(AttentionKernels*);
void attention_avx2(AttentionKernels*);
void attention_avx512(AttentionKernels*);
void attention_amx(AttentionKernels*);
void attention_neon(AttentionKernels*);

}  // namespace riffle::cpu
