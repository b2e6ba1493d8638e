// A mixture of experts: which experts a row goes through, and their FFNs.
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/common/routing.h"
#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

// routed[i] [n_used], by falling score: route_row (kernels/common/routing.h) of scores[i]
// [n_experts] times score_scale, for n rows. With Routing::sigmoid it is route_by_sigmoid,
// otherwise with a choice_bias route_by_biased_softmax; scores stay unchanged. Weights are then
// multiplied by expert_scales, and after a softmax by Routing::scale. n_experts is at most
// kMostExperts.
struct Route {
  const float* scores = nullptr;  // [n][n_experts]
  int64_t n = 0;
  int n_experts = 0, n_used = 0;
  bool renormalised = false;
  Routing routing = {};                // its choice_bias is ignored
  const float* choice_bias = nullptr;  // [n_experts]; null: none
  float score_scale = 1;
  const float* expert_scales = nullptr;  // [n_experts], by expert; null: all 1
  Routed* routed = nullptr;              // [n][n_used]
  // Input of the experts, computed by the same kernel: normed[i] = RMS norm of x[i], times norm.
  // normed null: not computed.
  const float *x = nullptr, *norm = nullptr;
  int64_t dim = 0;
  float eps = 0;
  float* normed = nullptr;
  bool overlap = false;  // with normed; see Gemv::overlap
};
Status route(const Route& args, cudaStream_t stream);

// An entry is one of a row's n_used choices: entry i * n_used + k is routed[i][k]. places lists the
// entries by expert, those of one expert by rising number. In each run of up to kGroup entries of
// an expert, the first holds their number and the others hold 0.
inline constexpr int kGroup = 4;
inline constexpr int64_t kMaxEntries = 65535;  // most entries of a step: a limit of a grid's blocks
struct Place {
  int32_t entry, count;
};
Status group(const Routed* routed, int64_t n_entries, Place* places, cudaStream_t stream);

// Decode. The experts' matrices are stacked: expert e has rows [e * rows, (e + 1) * rows) of one
// matrix, where rows is hidden for w1 and w3 and the residual stream's width for w2. w1 and w3 have
// one type; w1 without rows: between is max(0, W3 x + b3)^2. Arithmetic in f32.
struct ExpertsStep {
  const float* x = nullptr;  // [n][w3.cols], normalised
  int64_t n = 0;
  int n_used = 0;
  const Routed* routed = nullptr;  // [n][n_used]
  // [n * n_used]: entries that read their weights together; null: each reads its own.
  const Place* places = nullptr;
  Matrix w1, w3, w2;
  // Added to the products: [experts][hidden] twice, [experts][w3.cols]; null: none.
  const float *b1 = nullptr, *b3 = nullptr, *b2 = nullptr;
  int64_t hidden = 0;
  Gate gate = Gate::Silu;
  float* between = nullptr;  // [n][n_used][hidden]
  float* parts = nullptr;    // [n][n_used][w3.cols]: each expert's output, for combine_rows
  bool overlap = false;      // see Gemv::overlap
};
Status experts_up(const ExpertsStep& args, cudaStream_t stream);    // x to between
Status experts_down(const ExpertsStep& args, cudaStream_t stream);  // between to parts

// Makes the stream wait for the host, by two words in pinned memory that both see. The kernel
// writes answered + 1 to asked and spins until answered equals it. The host does its part when
// asked changes, then writes answered. The host must not wait for this stream before it answers.
struct HostCall {
  uint32_t* asked = nullptr;
  const uint32_t* answered = nullptr;
};
Status call_host(const HostCall& call, cudaStream_t stream);

// Prefill. out[j] = x[from[j]], n rows of dim, as f32, f16 or bf16.
Status gather_rows(const float* x, const int32_t* from, int64_t n, int64_t dim, void* out,
                   WType out_type, cudaStream_t stream);

// Rows [first, first + n) of the rows by expert go through one expert; n <= kExpertTileRows. used:
// the expert's index in the list of experts that have rows.
inline constexpr int kExpertTileRows = 128;
struct ExpertTile {
  int32_t expert, used, first, n;
};
// Returns the most tiles that `rows` rows of n_experts experts make.
constexpr int64_t most_expert_tiles(int64_t rows, int64_t n_experts) {
  return rows / kExpertTileRows + n_experts;
}
// Prefill. out[j] [rows] = W_e a[j] + bias_e for each row j of the tiles, where e is its tile's
// expert. w: the experts' matrices, one below the other, `rows` rows each, F16 or BF16; a has its
// type. Sums in f32.
struct PromptProduct {
  const void* a = nullptr;  // [..][w.cols]
  Matrix w;
  int64_t rows = 0;
  // -1: w has all experts. Else w has only experts with rows, from the one with this
  // ExpertTile::used on.
  int first_used = -1;
  const float* bias = nullptr;        // [experts][rows]; null: none
  const ExpertTile* tiles = nullptr;  // on the device
  int n_tiles = 0;
  void* out = nullptr;  // [..][rows]
  WType out_type = WType::F32;
};
// Returns whether the kernel multiplies such matrices. If not, cuBLAS multiplies by one expert at a
// time.
bool prompt_product_supported(WType type, int64_t rows, int64_t cols, const DeviceLimits& limits);
Status prompt_product(const PromptProduct& args, const DeviceLimits& limits, cudaStream_t stream);

// x[i] += sum over k of routed[i][k].weight * y[at[i][k]], in this order; n rows of dim. Without
// `add` x[i] is the sum. at null: y[i * n_used + k]. overlap: see Gemv::overlap. The output of a
// shared expert, if there is one, is the last term: scale * sigmoid(share[i]) * shared[i] or, if
// share is null, scale * shared[i].
struct SharedOutput {
  const float* shared = nullptr;  // [n][dim]; null: there is none
  const float* share = nullptr;   // [n]
  float scale = 1;
};
Status combine_rows(const float* y, const Routed* routed, const int32_t* at, int64_t n, int n_used,
                    int64_t dim, float* x, bool overlap, cudaStream_t stream,
                    const SharedOutput& shared = {}, bool add = true);

}  // namespace riffle::cuda
