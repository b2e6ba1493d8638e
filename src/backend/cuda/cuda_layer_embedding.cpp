// Per-layer embeddings (Gemma 4). Their table is in host memory, mostly in the file; a step
// brings the rows of its tokens to the device once, for all layers, and a prompt those of a chunk
// for each layer.
#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/running_memory.h"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {

// Makes the part that depends on tokens alone, of n_layers layers whose rows `projection` has: out
// [n_layers][n][layer_embedding_dim]. buffers.tokens and buffers.own are filled in. The products
// are those of a step; n is small.
void CudaDevice::project_tokens(const LayerEmbeddingBuffers& b, const Matrix& projection, int64_t n,
                                int n_layers, float* out) {
  const Weights& all = model_.weights;
  check(weight_rows(weights_.matrix(all.embedding), b.tokens.as<int32_t>(), n, b.embedded.data(),
                    WType::F32, compute_),
        "embedding");
  Gemv g;
  g.x = b.embedded.as<float>();
  g.ldx = config_.dim;
  g.w[0] = projection;
  g.y[0] = b.projected.as<float>();
  g.ldy[0] = projection.rows;
  gemv_rows(g, n);
  check(layer_embedding(b.projected.as<float>(), b.own.as<float>(),
                        weights_.vector(all.layer_projection_norm), n, n_layers,
                        config_.layer_embedding_dim, config_.norm_eps, out, compute_),
        "embedding");
}

// Adds the gated values [n][layer_embedding_dim] of a layer to few rows of the residual stream.
void CudaDevice::add_gated_embedding(const LayerWeights& w, const float* values, int64_t n,
                                     float* x) {
  const int64_t width = config_.layer_embedding_dim;
  auto* const gate_values = buffers_.layer_embedding.gate.as<float>();
  Gemv g;
  g.x = x;
  g.ldx = config_.dim;
  g.w[0] = weights_.matrix(w.embedding_gate);
  g.y[0] = gate_values;
  g.ldy[0] = width;
  gemv_rows(g, n);
  check(glu(gate(), gate_values, values, n * width, WType::F32, gate_values, WType::F32, compute_),
        "gating a per-layer embedding");
  g.x = gate_values;
  g.ldx = width;
  g.w[0] = weights_.matrix(w.embedding_out);
  g.y[0] = buffers_.products.as<float>();
  g.ldy[0] = config_.dim;
  gemv_rows(g, n);
  add_normed({&w.embedding_out, x, config_.dim}, buffers_.products, n, w.embedding_norm);
}

// Copies the rows of a step's tokens to pinned memory, where a recorded step finds them.
void CudaDevice::upload_layer_embeddings() {
  if (config_.layer_embedding_dim == 0) return;
  std::copy_n(step_.tokens, step_.n, host_tokens_.as<int32_t>());
  table_rows(model_.weights.layer_embedding, step_.tokens, step_.n, 0, 1, 1,
             host_layer_rows_.as<float>());
}

void CudaDevice::embed_layers_of_step() {
  if (config_.layer_embedding_dim == 0) return;
  const LayerEmbeddingBuffers& b = buffers_.layer_embedding;
  const Weights& all = model_.weights;
  check(cudaMemcpyAsync(b.tokens.data(), host_tokens_.data(), step_.n * sizeof(int32_t),
                        cudaMemcpyHostToDevice, compute_),
        "embedding");
  check(cudaMemcpyAsync(b.own.data(), host_layer_rows_.data(),
                        step_.n * all.layer_embedding.cols * sizeof(float), cudaMemcpyHostToDevice,
                        compute_),
        "embedding");
  project_tokens(b, weights_.matrix(all.layer_projection), step_.n, config_.n_layers,
                 b.values.as<float>());
}

void CudaDevice::add_layer_embedding_of_step(int layer, float* x) {
  const int64_t values = step_.n * config_.layer_embedding_dim;
  add_gated_embedding(model_.weights.layers[layer],
                      buffers_.layer_embedding.values.as<float>() + layer * values, step_.n, x);
  profile_.mark(Part::Linear);
}

// For prompts: steps have add_layer_embedding_of_step.
void CudaDevice::add_layer_embedding(int layer, const int32_t* tokens, int64_t n, float* x, Phase) {
  const DeviceScope on = enter();
  const Weights& all = model_.weights;
  const LayerWeights& w = all.layers[layer];
  const int64_t dim = config_.dim, width = config_.layer_embedding_dim;
  const bool few = n <= kFewRows;
  if (few) reserve_rows(n);
  const LayerEmbeddingBuffers& b = few ? buffers_.layer_embedding : prompt_.layer_embedding;
  // The rows, then the tokens.
  const size_t own_bytes = n * width * sizeof(float), token_bytes = n * sizeof(int32_t);
  ++event_waits_;
  std::byte* const here = begin_staging(own_bytes + token_bytes);
  table_rows(all.layer_embedding, tokens, n, layer, config_.n_layers, 1,
             reinterpret_cast<float*>(here));
  std::memcpy(here + own_bytes, tokens, token_bytes);
  check(cudaMemcpyAsync(b.own.data(), here, own_bytes, cudaMemcpyHostToDevice, compute_),
        "embedding");
  check(cudaMemcpyAsync(b.tokens.data(), here + own_bytes, token_bytes, cudaMemcpyHostToDevice,
                        compute_),
        "embedding");
  end_staging();
  const Matrix projection = rows_of(weights_.matrix(all.layer_projection), layer * width, width);
  auto* const values = b.projected.as<float>();
  if (few) {
    project_tokens(b, projection, n, 1, values);
    return add_gated_embedding(w, values, n, x);
  }
  // prompt_.operand holds the tokens' embeddings, then the rows x, then the gated values.
  const WType type = operand_type(options_.layout.type, all.layer_projection.type);
  check(weight_rows(weights_.matrix(all.embedding), b.tokens.as<int32_t>(), n,
                    prompt_.operand.data(), type, compute_),
        "embedding");
  multiply(projection, prompt_.operand.data(), type, n, values, width, WType::F32, false);
  check(layer_embedding(values, b.own.as<float>(), weights_.vector(all.layer_projection_norm), n, 1,
                        static_cast<int>(width), config_.norm_eps, values, compute_),
        "embedding");
  // The residual stream is not normalised here, so it may exceed the largest f16, as hidden values
  // may.
  const WType gate_type = down_type(options_.layout.type, config_, w.embedding_gate.type),
              out_type = down_type(options_.layout.type, config_, w.embedding_out.type);
  make_operand(x, nullptr, n, dim, gate_type);
  multiply(weights_.matrix(w.embedding_gate), prompt_.operand.data(), gate_type, n, b.gate.data(),
           width, WType::F32, false);
  check(glu(gate(), b.gate.data(), values, n * width, WType::F32, prompt_.operand.data(), out_type,
            compute_),
        "gating a per-layer embedding");
  multiply(weights_.matrix(w.embedding_out), prompt_.operand.data(), out_type, n,
           prompt_.products.data(), dim, WType::F32, false);
  add_normed({&w.embedding_out, x, dim}, prompt_.products, n, w.embedding_norm);
}

}  // namespace riffle::cuda
