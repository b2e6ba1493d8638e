// Synthetic attention, for measuring: keys, values and queries whose sparsity and step-to-step
// overlap are set, so that the speed of a long context can be measured without a model that was
// trained for one.
//
// Definition. A (layer, KV head) has C = clusters orthogonal directions. Its blocks belong to one
// each, spread evenly and in no order; a key is 8 times its block's direction, plus a little noise.
// At each position the head has `active` of the clusters in view, and a query is a multiple of the
// sum of their directions, plus noise of its own: all query heads of a group look at the same
// blocks, each a little differently. The multiple is such that exp(score) of an active block's key
// is exp(gain) times that of any other, after the scaling by 1/sqrt(head_dim). From one position to
// the next some of the active clusters are exchanged. Values are noise. All is a pure function of
// (seed, layer, head, position): kernels/common/measure/attention_pattern.h.
//
// Directions are coordinate axes, orthogonal in any number format. So a block's digest shows its
// direction, so this does not measure how well a digest ranks.
#pragma once
#include <cstdint>

#include "kernels/common/measure/synthetic_spec.h"
#include "util/options.h"

namespace riffle {

// active/clusters is as near to sparsity as head_dim directions allow; gain is log(w/(1-w) *
// (1-p)/p), which puts the share w = weight of the softmax into the share p = active/clusters of
// the blocks. RIFFLE_BAD_ARGUMENT: a value out of range, or head_dim is too small for the sparsity.
SyntheticSpec make_synthetic_spec(const SyntheticAttention& asked, int head_dim);

// Keys and values of positions pos0 to pos0 + n - 1: k, v [n][n_kv_heads * head_dim]. head_dim is a
// multiple of 4, as below.
void synthetic_keys(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                    int head_dim, int block_size, float* k, float* v);
// Writes the query of the token at `position`, q [n_heads * head_dim], in the form that queries
// have after RoPE, before they are scaled.
void synthetic_query(const SyntheticSpec& spec, int layer, int64_t position, int n_heads,
                     int n_kv_heads, int head_dim, float* q);

// Tells whether the query at `position` has a block in view.
bool synthetic_active(const SyntheticSpec& spec, int layer, int kv_head, int64_t position,
                      int64_t block);

}  // namespace riffle
