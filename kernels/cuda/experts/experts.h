// A mixture of experts: the choice of each row's experts, and their FFNs.
#pragma once
#include "kernels/common/routing.h"
#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

inline constexpr int kMaxExperts = 1024;

// routed[i][n_used] = route_row (kernels/common/routing.h) of scores[i][n_experts], for n rows.
// n_experts is at most kMaxExperts.
Status route(const float* scores, int64_t n, int n_experts, int n_used, bool renormalised,
             Routed* routed, cudaStream_t stream);

// An entry is one of a row's n_used choices: entry i * n_used + k is routed[i][k]. `places` has the
// entries sorted by expert, and by number within an expert. The entries of an expert are cut into
// groups of up to kGroup. `count` is the size of the group at its first entry, and 0 at the others.
inline constexpr int kGroup = 4;
inline constexpr int64_t kMaxEntries = 65535;  // of a step: the limit of a grid's second dimension
struct Place {
  int32_t entry, count;
};
Status group(const Routed* routed, int64_t n_entries, Place* places, cudaStream_t stream);

// Decode. The experts' matrices are stacked: expert e has rows [e * rows, (e + 1) * rows) of one
// matrix. `rows` is hidden for w1 and w3, and the residual stream's width for w2. w1 and w3 have
// the same type. Arithmetic is in f32.
struct ExpertsStep {
  const float* x = nullptr;  // [n][w1.cols], normalised
  int64_t n = 0;
  int n_used = 0;
  const Routed* routed = nullptr;  // [n][n_used]
  // [n * n_used]: groups of entries that read their weights together; null: each on its own.
  const Place* places = nullptr;
  Matrix w1, w3, w2;
  // Added to the products: [experts][hidden] twice, [experts][w1.cols]; null: none.
  const float *b1 = nullptr, *b3 = nullptr, *b2 = nullptr;
  int64_t hidden = 0;
  Gate gate = Gate::Silu;
  float* between = nullptr;  // [n][n_used][hidden]
  float* parts = nullptr;    // [n][n_used][w1.cols]: each expert's output, for combine_rows
};
Status experts_up(const ExpertsStep& args, cudaStream_t stream);    // reads x, writes between
Status experts_down(const ExpertsStep& args, cudaStream_t stream);  // reads between, writes parts

// Prefill. out[j] = x[from[j]], n rows of dim, as f32, f16 or bf16.
Status gather_rows(const float* x, const int32_t* from, int64_t n, int64_t dim, void* out,
                   WType out_type, cudaStream_t stream);

// x[i] += sum over k, in rising order, of routed[i][k].weight * y[at[i][k]]; n rows of dim. If at
// is null, at[i][k] is i * n_used + k.
Status combine_rows(const float* y, const Routed* routed, const int32_t* at, int64_t n, int n_used,
                    int64_t dim, float* x, cudaStream_t stream);

}  // namespace riffle::cuda
