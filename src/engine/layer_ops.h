// The parts of a layer that prompts, steps and the draft head share: products, norms and gates, as
// operations of a device on rows of the residual stream.
#pragma once
#include <functional>
#include <vector>

#include "backend/device.h"
#include "backend/forward_buffers.h"
#include "model/model.h"
#include "model/recurrence.h"

namespace riffle {

class LayerOps {
 public:
  LayerOps(const Model& model, Device& device)
      : model_(model), mix_(recurrent_tensors(model.config)), device_(device) {}
  // Computes the products that go into a layer with a recurrent state.
  void mix_in(const LayerWeights& w, const float* x, int64_t n, Phase phase, float* out);
  // Applies the layer's norm of q, k or v, if it has one.
  void norm_qk(float* x, int64_t n, int64_t width, const Tensor& weight);
  // RMS-normalises n embeddings if the model does.
  void norm_embeddings(float* x, int64_t n);
  // Returns the product that computes queries from x. It writes to q, or to buffers.both if queries
  // have gates. With latent attention it writes the input of latent_queries: the latent of the
  // queries to q, or the queries before `k_b` to `att`.
  LinearOut query_product(const LayerWeights& w, int layer, const ForwardBuffers& buffers) const;
  // Brings n rows of queries to q if they came with their gates.
  void take_queries(int layer, int64_t n, const ForwardBuffers& buffers);
  // key_product and value_product return the products of x that give k and v. finish_keys applies
  // their norms. With latent attention k is then [latent | key], and v is unused.
  LinearOut key_product(const LayerWeights& w, int layer, const ForwardBuffers& buffers) const;
  LinearOut value_product(const LayerWeights& w, int layer, const ForwardBuffers& buffers) const;
  void finish_keys(const LayerWeights& w, int layer, int64_t n, const ForwardBuffers& buffers);
  // Latent attention: computes n rows of queries, before RoPE, from the output of query_product.
  // Leaves the queries before `k_b` in `att`. rotated_only: writes only the values of q that RoPE
  // changes, without the factor LatentConfig::query_scale; the others are undefined.
  void latent_queries(const LayerWeights& w, int layer, int64_t n, Phase phase,
                      const ForwardBuffers& buffers, bool rotated_only = false);
  // Returns attention's output for finish_layer. With latent attention that is `att` times v_b, in
  // the buffer of the queries.
  float* attended(const LayerWeights& w, int layer, int64_t n, Phase phase,
                  const ForwardBuffers& buffers);
  // Runs a layer that attends, for the n rows of a step.
  void attend(Step& step, int layer, const ForwardBuffers& buffers, float* x, int64_t n);
  // Finishes a layer for n rows: gate, if any, on attention's output; output projection and FFN,
  // each added to x. The gate changes `attended`. gates: values for it; null: they are computed,
  // and overwrite the queries. add_embedding adds the layer's per-layer embedding to the rows.
  void finish_layer(const LayerWeights& w, float* attended, float* queries, const float* gates,
                    float* x, int64_t n, Phase phase,
                    const std::function<void()>& add_embedding = {});
  // Computes the final norm and the output projection of n rows.
  void output(const float* x, int64_t n, Phase phase, float* logits);

 private:
  const Model& model_;
  const std::vector<MixTensor> mix_;  // tensors of recurrent layers
  Device& device_;
};

}  // namespace riffle
