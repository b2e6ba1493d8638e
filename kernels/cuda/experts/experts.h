// A mixture of experts: which experts a row goes through, and their FFNs.
#pragma once
#include "kernels/common/routing.h"
#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

inline constexpr int kMaxExperts = 1024;

// routed[i] [n_used], by falling score: route_row (kernels/common/routing.h) of scores[i]
// [n_experts], for n rows. n_experts is at most kMaxExperts.
Status route(const float* scores, int64_t n, int n_experts, int n_used, bool renormalised,
             Routed* routed, cudaStream_t stream);

// Decode. The experts' matrices lie on one another: expert e has rows [e * rows, (e + 1) * rows) of
// one matrix, where rows is hidden for w1 and w3 and the residual stream's width for w2. Arithmetic
// in f32.
struct ExpertsStep {
  const float* x = nullptr;  // [n][w1.cols], normalised
  int64_t n = 0;
  int n_used = 0;
  const Routed* routed = nullptr;  // [n][n_used]
  Matrix w1, w3, w2;
  int64_t hidden = 0;
  Gate gate = Gate::Silu;
  float* between = nullptr;  // [n][n_used][hidden]
  float* y = nullptr;        // [n][dim]: what the experts give is added, by falling weight
};
Status experts_up(const ExpertsStep& args, cudaStream_t stream);    // x to between
Status experts_down(const ExpertsStep& args, cudaStream_t stream);  // between to y

// Prefill. out[j] = x[from[j]], n rows of dim, as f32, f16 or bf16.
Status gather_rows(const float* x, const int32_t* from, int64_t n, int64_t dim, void* out,
                   WType out_type, cudaStream_t stream);
// x[i] += sum over k of routed[i][k].weight * y[at[i][k]], in this order; n rows of dim.
Status combine_rows(const float* y, const Routed* routed, const int32_t* at, int64_t n, int n_used,
                    int64_t dim, float* x, cudaStream_t stream);

}  // namespace riffle::cuda
