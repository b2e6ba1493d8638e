// Synthetic attention, for measuring: keys, values and queries whose sparsity and step-to-step
// overlap are set, so that the speed of a long context can be measured without a model that was
// trained for one.
//
// Definition. A (layer, KV head) has C = clusters orthogonal directions. Each block belongs to one
// cluster, evenly and in random order; a key is 8 times its block's direction, plus a little noise.
// At each position `active` of the clusters are active, and a query is a multiple of the sum of
// their directions, plus noise of its own. So all query heads of a group attend to the same blocks,
// each a little differently. The multiple is such that exp(score) of an active block's key is
// exp(gain) times that of any other key, after the scaling by 1/sqrt(head_dim). From one position
// to the next some of the active clusters are exchanged. Values are noise. Everything is a pure
// function of (seed, layer, head, position): kernels/common/measure/attention_pattern.h.
//
// Directions are coordinate axes, orthogonal in any number format. So a block's digest shows its
// direction exactly, and speed alone is measured, not how well digests rank.
#pragma once
#include <cstdint>

#include "kernels/common/measure/synthetic_spec.h"
#include "util/options.h"

namespace riffle {

// Sets active/clusters as near to sparsity as head_dim directions allow. gain is log(w/(1-w) *
// (1-p)/p), which puts the share w = weight of the softmax into the share p = active/clusters of
// the blocks. Throws RIFFLE_BAD_ARGUMENT if a value is out of range or head_dim is too small for
// the sparsity, and RIFFLE_UNSUPPORTED for other unsuitable values of head_dim.
SyntheticSpec make_synthetic_spec(const SyntheticAttention& asked, int head_dim);

// Writes the keys and values of positions pos0 to pos0 + n - 1: k, v [n][n_kv_heads * head_dim].
// Requires, as below: head_dim is a multiple of 4.
void synthetic_keys(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                    int head_dim, int block_size, float* k, float* v);
// Writes the query of the token at `position`, q [n_heads * head_dim], in the form that queries
// have after RoPE, before they are scaled.
void synthetic_query(const SyntheticSpec& spec, int layer, int64_t position, int n_heads,
                     int n_kv_heads, int head_dim, float* q);

// Tells whether a block is active for the query at `position`.
bool synthetic_active(const SyntheticSpec& spec, int layer, int kv_head, int64_t position,
                      int64_t block);

}  // namespace riffle
