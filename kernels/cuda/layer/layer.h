// Operations of a layer besides products and attention: norms, biases, activations, conversions of
// number formats, and RoPE, which also appends keys and values to blocks.
#pragma once
#include "kernels/common/rope_pairs.h"
#include "kernels/common/xielu.h"
#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

// y[i][r] += bias[r] for n rows [n][ldy], r in [0, rows).
Status add_bias(float* y, int64_t n, int64_t ldy, int64_t rows, const float* bias,
                cudaStream_t stream);

// out = x / rms(x) * weight, n rows of dim, as f32, f16 or bf16 (out_type; f16 saturates at
// +-65504). Rows of out begin ldo values apart; 0: dim. centred: x less the mean of its row takes
// the place of x.
Status rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps, void* out,
               WType out_type, cudaStream_t stream, int64_t ldo = 0, bool centred = false);
// x += y / rms(y) * weight, n rows of dim. y has `bias` [dim] added first, if it is not null.
Status add_rmsnorm(float* x, const float* y, const float* bias, const float* weight, int64_t n,
                   int64_t dim, float eps, cudaStream_t stream);
// x = x / rms(x) * weight in place, for n heads [n][head_dim], weight [head_dim].
Status norm_heads(float* x, int64_t n, const float* weight, int head_dim, float eps,
                  cudaStream_t stream);
// Separates the heads of n rows both [n][n_heads][2][d]: the first d values of each go to q, the
// others to gate, both [n][n_heads][d].
Status split_heads(const float* both, int64_t n, int n_heads, int d, float* q, float* gate,
                   cudaStream_t stream);
// x *= sigmoid(gate) elementwise.
Status sigmoid_gate(float* x, const float* gate, int64_t count, cudaStream_t stream);
// x *= softplus(gate): each of n gates multiplies `width` values, which follow one another.
Status softplus_gate(float* x, const float* gate, int64_t n, int64_t width, cudaStream_t stream);
// x = cap * tanh(x / cap) elementwise.
Status softcap(float* x, int64_t count, float cap, cudaStream_t stream);
// x *= factor, for count values.
Status scale(float* x, int64_t count, float factor, cudaStream_t stream);
// Converts f32 [count] to f16 (saturating), bf16 or f32.
Status convert(const float* x, int64_t count, void* out, WType out_type, cudaStream_t stream);
// Converts rows [first, first + n) of w to [n][cols] of out_type (F32, F16 or BF16): prefill
// multiplies 16-bit tiles.
Status dequantize(const Matrix& w, int64_t first, int64_t n, void* out, WType out_type,
                  cudaStream_t stream);
// Converts n_parts parts of w, of part_rows rows each, and writes them one below the other. parts,
// on the device: the numbers of the parts, counted from the beginning of w.
Status dequantize_parts(const Matrix& w, const int32_t* parts, int64_t n_parts, int64_t part_rows,
                        void* out, WType out_type, cudaStream_t stream);
// out[i] = row rows[i] of w, as f32, f16 or bf16 (out_type), n rows. rows: on the device.
Status weight_rows(const Matrix& w, const int32_t* rows, int64_t n, void* out, WType out_type,
                   cudaStream_t stream);
// Per-layer embeddings of n tokens, out [n_layers][n][width]: (norm(p) + t sqrt(width)) / sqrt(2),
// where norm(p) = p / rms(p) * weight [width], and p and t are the parts [width] of projected and
// tokens, both [n][n_layers][width]. With one layer, out may be projected.
Status layer_embedding(const float* projected, const float* tokens, const float* weight, int64_t n,
                       int n_layers, int width, float eps, float* out, cudaStream_t stream);
// gate = silu(gate) * up elementwise, or with the function `kind` in place of silu. Both are of
// in_type (F32, F16, BF16). out, of out_type, may be gate itself if the types are the same. Biases
// (or null) are [width] and are added to gate and up first; count is a multiple of width.
Status glu(Gate kind, const void* gate, const void* up, int64_t count, WType in_type, void* out,
           WType out_type, cudaStream_t stream, const float* gate_bias = nullptr,
           const float* up_bias = nullptr, int64_t width = 0);
// out = max(0, x + bias)^2 elementwise, for FFNs without a gate. x is of in_type (F32, F16, BF16).
// out, of out_type, may be x itself if values of both types have the same size. bias (or null) is
// [width]; count is a multiple of width.
Status relu_squared(const void* x, int64_t count, WType in_type, void* out, WType out_type,
                    cudaStream_t stream, const float* bias = nullptr, int64_t width = 0);
// The same with xielu (kernels/common/xielu.h) in place of the square.
Status xielu(const void* x, int64_t count, WType in_type, void* out, WType out_type,
             const XieluFactors& factors, cudaStream_t stream, const float* bias = nullptr,
             int64_t width = 0);

// Products of heads with a matrix each (HeadProducts of src/backend/device.h), for the few rows of
// a step: y[i*ldy + h*y_head + r] = w[h*rows + r] . (x + i*ldx + h*x_head). The `copied` values
// that follow the first w.cols of x are written after the product.
struct HeadProductsStep {
  Matrix w;          // head h has rows [h * rows, (h + 1) * rows)
  int64_t rows = 0;  // rows of one head
  int n_heads = 0;
  const float* x = nullptr;
  int64_t ldx = 0, x_head = 0;
  float* y = nullptr;
  int64_t ldy = 0, y_head = 0;
  int64_t n = 0, copied = 0;
  bool overlap = false;  // see Gemv::overlap
};
Status head_products_step(const HeadProductsStep& args, cudaStream_t stream);
// Operands of such products in a prompt: out [n_heads][n][cols] of out_type, or null. Writes the
// remaining values of x to y, after the `rows` values of each product.
struct HeadOperands {
  const float* x = nullptr;
  int64_t ldx = 0, x_head = 0;
  float* y = nullptr;
  int64_t ldy = 0, y_head = 0;
  int64_t n = 0, cols = 0, rows = 0, copied = 0;
  int n_heads = 0;
  void* out = nullptr;
  WType out_type = WType::F16;
};
Status head_operands(const HeadOperands& args, cudaStream_t stream);
// Transforms n rows x [n][d] in place (kernels/common/hadamard.h). d is at most 1,024.
Status hadamard_rows(float* x, int64_t n, int d, cudaStream_t stream);

// RMS norm of each head after its rotation: x / rms(x) * weight [head_dim]. weight null: no norm.
struct HeadNorm {
  const float* weight = nullptr;
  float eps = 0;
};

// Rotates n_heads heads of each of n rows x[n][ld] to position pos0 + i, then applies the norm.
// cos_sin[position][RopePairs::row_width(head_dim) / 2][2]. `pairs` is the order of the input; pair
// j of the output is always (j, j + head_dim/2), counted from the first number that is rotated.
// transform: also transforms the heads after that (kernels/common/hadamard.h), as is done to
// queries and keys if keys are kept in 8 bits.
Status rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
            int64_t pos0, RopePairs pairs, bool transform, cudaStream_t stream,
            const HeadNorm& norm = {});

// rope.cu: decode. Row i of q [n][ldq] and k [n][ldk] is rotated to the position
// sequences[i].n_tokens - 1 (q in place) and normalised; k (likewise) and v [n][ldk] are written as
// KvType into the sequences' tails of this layer. v null: blocks have keys alone.
struct RopeAppendStep {
  float* q = nullptr;
  const float *k = nullptr, *v = nullptr;
  int64_t ldq = 0, ldk = 0;
  int n = 0, n_heads = 0, n_kv_heads = 0;
  int64_t tail_offset = 0;            // as in DecodeStep
  const float* key_centre = nullptr;  // [n_kv_heads][head_dim], subtracted from Q8 keys; or null
  const float *cos_sin = nullptr, *query_cos_sin = nullptr;  // for keys, and for queries
  RopePairs pairs;
  HeadNorm q_norm, k_norm;
  const StepSequence* sequences = nullptr;
  KvLayout layout;
  bool overlap = false;  // see Gemv::overlap
};
Status rope_append_step(const RopeAppendStep& args, cudaStream_t stream);

// rope.cu: prefill. k [n][ldk] is rotated to positions pos0 + i, normalised and, with v, written
// into blocks, contiguous [n_kv_heads][n_blocks] of block_bytes. key_centre: as in RopeAppendStep.
Status rope_append_prefill(const float* k, const float* v, int64_t n, int64_t ldk, int n_kv_heads,
                           const float* cos_sin, int64_t pos0, RopePairs pairs, std::byte* blocks,
                           int64_t n_blocks, const KvLayout& layout, const float* key_centre,
                           cudaStream_t stream, const HeadNorm& norm = {});

}  // namespace riffle::cuda
