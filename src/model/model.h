// The contents of a model file: configuration, weights as views of the mapped file, tokenizer, chat
// template. Both formats (GGUF, Hugging Face folder) give this one struct; nothing after loading
// knows which format it was.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/dtype.h"
#include "kernels/common/routing.h"
#include "util/buffer.h"

namespace riffle {

// The largest head that a file may describe.
inline constexpr int kMaxHeadDim = 4096;

class Tokenizer;
class MappedFile;
class ReadAhead;
class ChatTemplate;
struct TensorNames;

inline constexpr int kQ8Block = 32;  // values per Q8_0 block: one f16 scale, then 32 int8
inline constexpr int kQ8BlockBytes = 34;

struct Tensor;
namespace cuda {
class DeviceTensorSource;
}

// Makes the elements of tensors that have no bytes anywhere, from their seed and scale: in any
// part, in any order, with the same bits. The core has no such source; the measuring code has.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Writes row `row` in a file's layout: row_bytes(type, cols) bytes.
  virtual void row(const Tensor& tensor, int64_t row, std::byte* out) const = 0;
  // Writes rows [first, first + n) as f32, unrounded: [n][cols].
  virtual void values(const Tensor& tensor, int64_t first, int64_t n, float* out) const = 0;
  virtual const cuda::DeviceTensorSource* on_device() const = 0;
};

// A matrix inside a mapped file, row-major: row r begins at data + r * row_bytes(type, cols). May
// be unaligned. Without data, the source makes its elements from seed and scale. A device makes
// them where it needs them; the CPU devices need materialize().
struct Tensor {
  DType type = DType::F32;
  int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  uint64_t seed = 0;
  float scale = 0;
  const TensorSource* source = nullptr;
  int64_t bytes() const { return rows * row_bytes(type, cols); }
};

// Scaling that brings positions beyond the first trained length into it; model/rope.h describes
// each.
struct RopeScaling {
  enum Type : uint8_t { NONE, LINEAR, DYNAMIC, YARN, LLAMA3, FACTORS, LONGROPE } type = NONE;
  float factor = 1;
  int original_ctx = 0;                 // the first trained length; DYNAMIC, YARN, LLAMA3, LONGROPE
  float attention_factor = 1;           // YARN, LONGROPE: of cosines and sines
  float beta_fast = 32, beta_slow = 1;  // YARN
  bool truncated = true;                // YARN: its ramp begins and ends at whole dimensions
  float mscale_all_dim = 0;             // YARN: DeepSeek's; latent attention alone reads it
  float low_freq_factor = 1, high_freq_factor = 4;  // LLAMA3
  // FACTORS, LONGROPE: divisors of the frequencies, [rotated/2]. LONGROPE takes `factors` in
  // contexts of at most original_ctx tokens, and long_factors in longer ones.
  std::vector<float> factors, long_factors;
};

// One way of rotating queries and keys by their positions. A layer refers to it by its index in
// Config::ropes.
struct Rope {
  float theta = 0;  // 0: the heads are not rotated
  RopeScaling scaling;
  // The number of dimensions of each head that are rotated, from the first, in pairs
  // (j, j + rotated/2); 0: all.
  int rotated = 0;
  int head_dim = 0;  // size of the heads that it rotates; 0: Config::head_dim
  int skipped = 0;  // the first values of each head, which are not rotated; the rotated ones follow
  // Factor of queries and keys. riffle's scores are always q.k / sqrt(head_dim). If a model wants
  // q.k * f, this is sqrt(f * sqrt(head_dim)).
  float factor = 1;
  // Queries at position p are multiplied by 1 + temperature * ln(1 + floor(p / temperature_ctx)).
  // Such queries need their own entry in Config::ropes (LayerConfig::query_rope).
  float temperature = 0;
  int temperature_ctx = 0;
};

// The computation of layers that keep a recurrent state in place of keys and values
// (model/recurrence.h).
enum class Recurrence : uint8_t {
  NONE,
  SHORT_CONV,   // c * conv(b * x), a causal convolution of each channel over a few tokens: LFM2
  GATED_DELTA,  // Gated DeltaNet (Yang et al., arXiv 2412.06464): Qwen3.5 and later
  MAMBA2,       // Mamba-2 (Dao and Gu, arXiv 2405.21060): hybrid Granite 4, Nemotron-H
};

struct RecurrenceConfig {
  Recurrence kind = Recurrence::NONE;
  int taps = 0;  // tokens that the convolution sees, its own included
  // GATED_DELTA: number and size of key heads (also those of queries) and value heads. k_heads
  // divides v_heads. Value head h uses key head h / (v_heads / k_heads) or, if `tiled`, h mod
  // k_heads: the order of GGUF files.
  // ba_by_key: a row is grouped by key head; each group has the betas, then the alphas, of its
  // value heads. qkvz_by_key: the same for q, k, v and z. Neither is tiled (Qwen3-Next). MAMBA2:
  // k_heads are the groups, k_dim is the size of the state, and the values are the heads' inputs.
  int k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  bool tiled = false, qkvz_by_key = false, ba_by_key = false;
  int64_t v_width() const { return int64_t(v_heads) * v_dim; }
  int64_t channels() const { return 2 * int64_t(k_heads) * k_dim + v_width(); }  // convolved
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). A token has one latent,
// of which LayerWeights::k_b and v_b make the keys and values of every head. riffle multiplies each
// query by its head's k_b instead, and each head's attended latent by v_b. So all heads attend to
// one row a token, [latent | rotated key], which is a key of head_dim = kv_rank + rope_dim values
// and a value too. n_kv_heads is 1.
struct LatentConfig {
  int kv_rank = 0;  // width of the latent; 0: the model has no such attention
  int q_rank = 0;   // width of the latent of which wq makes queries; 0: wq makes them of x
  // Parts of a head's query before k_b: not rotated (nope_dim), then rotated (rope_dim).
  int nope_dim = 0, rope_dim = 0;
  int value_dim = 0;      // size of each head's values after v_b
  float query_scale = 1;  // factor of queries, so that scores are q.k / sqrt(head_dim)
  explicit operator bool() const { return kv_rank > 0; }
  int query_dim() const { return nope_dim + rope_dim; }
};

// The first half of a layer, before its FFN.
enum class Mixer : uint8_t {
  ATTENTION,
  RECURRENT,  // it keeps a state in place of KV: Config::recurrence
  NONE,       // the layer is only an FFN
};

// Parameters of Activation::XIELU as files have them: softplus(alpha_p) and beta +
// softplus(alpha_n) are the factors of its two halves.
struct Xielu {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};

// Settings in which layers differ.
struct LayerConfig {
  int window = 0;            // tokens that a query sees, its own included; 0: all
  int rope = 0;              // RoPE of keys and of queries
  int query_rope = -1;       // RoPE of queries, if it differs; -1: as `rope`
  bool has_experts = false;  // the FFN is a mixture of experts
  Mixer mixer = Mixer::ATTENTION;
  bool has_ffn = true;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;  // 0: Config's values
  bool value_is_key = false;                      // wk makes the values too: wv is the same matrix
  Xielu xielu;                                    // parameters of the activation
  // The earlier layer whose keys and values this one attends to; -1: it has its own.
  int kv_source = -1;
  int hidden_dim = 0;  // width of its FFN without experts; 0: Config's value
};

// gate(W1 x) * (W3 x). RELU_SQUARED and XIELU have no gate.
enum class Activation : uint8_t {
  SILU,          // SwiGLU (Shazeer, arXiv 2002.05202)
  GELU_TANH,     // GeGLU with the approximation by tanh
  CLAMPED_SILU,  // SwiGLU as gpt-oss has it: clamped_swiglu of kernels/cpu/linear/linear.h
  RELU_SQUARED,  // max(0, W3 x)^2, without W1 (So et al., arXiv 2109.08668)
  XIELU,         // xielu(W3 x), without W1 (Huang and Schlag, arXiv 2411.13010)
};

struct ExpertsConfig {
  int n = 0, n_used = 0;  // experts of a layer; experts that a token goes through
  int hidden_dim = 0;     // width of an expert
  // The weights of the chosen experts, from a softmax over all, are divided by their sum.
  bool renormalised = true;
  bool bias = false;     // the router's and the experts' products have biases
  Routing routing = {};  // the choice and weights of experts, with `renormalised`
  // An expert that every token goes through: its width, 0: there is none. With shared_gate its
  // output is multiplied by sigmoid(LayerWeights::shared_gate x).
  int shared_dim = 0;
  bool shared_gate = false;
  float shared_scale = 1;  // factor of its output; Routing::scale is that of the others
  // The layer's FFN without experts runs next to them: LayerWeights has the tensors of both, and
  // Device::ffn adds their results.
  bool next_to_ffn = false;
  float score_scale = 1;  // the router's scores are multiplied by it
};

// RMS norm of q and of k, before RoPE or after it (Config::norm_after_rope).
enum class QkNorm : uint8_t {
  NONE,
  HEAD,   // a norm of each head, with one weight [head_dim]
  WHOLE,  // one norm of all heads together
};

struct Config {
  std::string name;          // general.name, or the folder's name
  std::string architecture;  // as GGUF names the family: "llama", "qwen3", ...
  int dim = 0;               // width of the residual stream
  int hidden_dim = 0;        // width of the FFN
  int head_dim = 0;
  int n_layers = 0;
  bool draft_head = false;  // Weights::draft is there
  int n_draft_layers = 0;   // MTP layers after them (DraftWeights); in folders at least 1
  int n_heads = 0;          // query heads
  int n_kv_heads = 0;       // divides n_heads
  int vocab_size = 0;
  int n_ctx = 0;  // trained length
  float norm_eps = 0;
  std::vector<Rope> ropes;          // the first is the model's usual one
  std::vector<LayerConfig> layers;  // [n_layers]
  Activation activation = Activation::SILU;
  ExpertsConfig experts;
  RecurrenceConfig recurrence;  // settings of recurrent layers
  LatentConfig latent;          // settings of all layers, if they have it
  // Factors of the embeddings, of each layer's outputs to the residual stream, and of the logits.
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  bool embedding_norm = false;  // embeddings are RMS-normalised, without weights
  float logit_softcap = 0;      // logits are softcap * tanh(logit / softcap); 0: as they are
  // Norms of layers' inputs and the final norm subtract the mean of each row first (Ba et al.,
  // arXiv 1607.06450).
  bool layer_norm = false;
  // A layer's FFN has the same normalised input as its attention, and both are added to it.
  bool parallel_ffn = false;
  // Width of each layer's part of the per-layer embeddings (Weights::layer_embedding); 0: none.
  int layer_embedding_dim = 0;
  // Norms that layers have: of the input of attention and FFN (pre), and of their output (post).
  bool pre_norm = true, post_norm = false;
  // Epsilon of post norms. Norms of q, k and embeddings have norm_eps; norms of a layer's input and
  // the final norm have stream_eps().
  float post_norm_eps = 0;
  // Epsilon of the norms of a layer's input and of the final norm; 0: norm_eps.
  float layer_norm_eps = 0;
  QkNorm qk_norm = QkNorm::NONE;
  bool norm_after_rope = false;  // q and k are normalised after RoPE, not before
  float q_norm_weight = 1;       // weight of every norm of q, if the file has no such tensors
  bool value_norm = false;       // each head of v is RMS-normalised, without weights
  bool attention_gate = false;   // LayerWeights::wgate
  // The gate is softplus(wgate x) in place of a sigmoid. head_gate: one gate for each head.
  bool softplus_gate = false, head_gate = false;
  bool query_gate = false;  // the gate's rows are in LayerWeights::wq
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool sinks = false;  // LayerWeights::sinks
  bool tied_output = false;
  bool text_part = false;  // the model also takes images; this is its text part
  int bos_id = -1, eos_id = -1;
  std::vector<int> eos_ids;  // every token that ends an answer, eos_id among them
  // GGUF stores the rows of wq and wk of Llamas permuted so that a RoPE pair is (2i, 2i+1); others
  // pair (i, i+head_dim/2). The forward pass undoes it when it rotates, so that q and k look alike
  // from there on.
  bool rope_interleaved = false;

  bool ends_answer(int token) const {
    return std::find(eos_ids.begin(), eos_ids.end(), token) != eos_ids.end();
  }
  // Return the number of query heads of a layer, of its KV heads, the size of its heads, and the
  // number of values in a row of its q, and of its k or v.
  int heads(int layer) const { return layers[layer].n_heads > 0 ? layers[layer].n_heads : n_heads; }
  int kv_heads(int layer) const {
    return layers[layer].n_kv_heads > 0 ? layers[layer].n_kv_heads : n_kv_heads;
  }
  int head_size(int layer) const {
    return layers[layer].head_dim > 0 ? layers[layer].head_dim : head_dim;
  }
  // Returns the size of the heads that a RoPE rotates.
  int rope_head(const Rope& rope) const { return rope.head_dim > 0 ? rope.head_dim : head_dim; }
  int64_t q_width(int layer) const { return int64_t(heads(layer)) * head_size(layer); }
  int64_t kv_width(int layer) const { return int64_t(kv_heads(layer)) * head_size(layer); }
  // Returns the most query heads that share a KV head.
  int most_group() const {
    int most = 0;
    for (int layer = 0; layer < n_layers; ++layer)
      if (attends(layer)) most = std::max(most, heads(layer) / kv_heads(layer));
    return most;
  }
  // Returns the size of the largest head.
  int widest_head() const {
    int most = 0;
    for (int layer = 0; layer < n_layers; ++layer)
      if (attends(layer)) most = std::max(most, head_size(layer));
    return most;
  }
  // Returns the most query heads of a layer.
  int most_heads() const {
    int most = 0;
    for (int layer = 0; layer < n_layers; ++layer)
      if (attends(layer)) most = std::max(most, heads(layer));
    return most;
  }
  // Tells whether layers differ in their number of query heads.
  bool uneven_heads() const {
    for (int layer = 0; layer < n_layers; ++layer)
      if (attends(layer) && heads(layer) != n_heads) return true;
    return false;
  }
  // Return the most KV heads of a layer, and the width of the widest q, and k or v, of a layer.
  int most_kv_heads() const {
    int most = 0;
    for (int layer = 0; layer < n_layers; ++layer) most = std::max(most, kv_heads(layer));
    return most;
  }
  int64_t widest_q() const {
    int64_t most = 0;
    for (int layer = 0; layer < n_layers; ++layer) most = std::max(most, q_width(layer));
    const int head = std::max(latent.query_dim(), latent.value_dim);
    return std::max({most, int64_t(n_heads) * head, int64_t(latent.q_rank)});
  }
  int64_t widest_kv() const {
    int64_t most = 0;
    for (int layer = 0; layer < n_layers; ++layer) most = std::max(most, kv_width(layer));
    return most;
  }
  int query_rope(int layer) const {
    const LayerConfig& l = layers[layer];
    return l.query_rope < 0 ? l.rope : l.query_rope;
  }
  // Returns the width of a layer's FFN without experts.
  int ffn_width(int layer) const {
    return layers[layer].hidden_dim > 0 ? layers[layer].hidden_dim : hidden_dim;
  }
  // Returns the last layer that keeps keys and values, or a state, of its own. Later layers need
  // only the tokens whose output is wanted.
  int last_keeper() const {
    int layer = n_layers - 1;
    while (layer > 0 && (layers[layer].kv_source >= 0 || layers[layer].mixer == Mixer::NONE))
      --layer;
    return layer;
  }
  // Tell whether a layer attends to keys and values, and whether it keeps a recurrent state.
  bool attends(int layer) const { return layers[layer].mixer == Mixer::ATTENTION; }
  bool recurs(int layer) const { return layers[layer].mixer == Mixer::RECURRENT; }
  bool gated_ffn() const {
    return activation != Activation::RELU_SQUARED && activation != Activation::XIELU;
  }
  // Scores are q.k * scale.
  void set_score_scale(double scale) {
    for (Rope& rope : ropes)
      rope.factor =
          static_cast<float>(std::sqrt(scale * std::sqrt(static_cast<double>(rope_head(rope)))));
  }
  // Returns the most values that a row has between the products of an FFN. In a mixture of experts
  // all chosen experts count.
  int64_t ffn_values() const {
    int64_t most = 0;
    for (int i = 0; i < n_layers; ++i) {
      const LayerConfig& l = layers[i];
      if (l.has_experts)
        most = std::max<int64_t>(
            {most, int64_t(experts.n_used) * experts.hidden_dim, experts.shared_dim});
      if (l.has_ffn && (!l.has_experts || experts.next_to_ffn))
        most = std::max<int64_t>(most, ffn_width(i));
    }
    return most;
  }
  // The residual stream is held divided by residual_scale, so that layers add their outputs without
  // a factor. Norms undo the division; with these two they undo it exactly.
  float stream_scale() const { return embedding_scale / residual_scale; }
  float stream_eps() const {
    return (layer_norm_eps > 0 ? layer_norm_eps : norm_eps) / (residual_scale * residual_scale);
  }
};

// Returns the configuration of the one layer of DraftWeights: like that of the last layer that
// attends, with a window.
Config draft_config(const Config& c);

// One expert of a mixture: an FFN like that of a layer without experts.
struct ExpertWeights {
  // [experts.hidden_dim][dim] twice, [dim][experts.hidden_dim]; w1 has no rows if FFNs have no gate
  Tensor w1, w3, w2;
  Tensor b1, b3, b2;  // [1][rows] F32, or without data
};

// Norms, biases and sinks that the model lacks have no data.
struct LayerWeights {
  // Norms of a layer's input: [1][dim] F32 (norm vectors are converted to F32 at load). With
  // Config::parallel_ffn both are the same.
  Tensor attn_norm, ffn_norm;
  // Norms of the outputs of attention (after wo) and of the FFN (after w2), before they are added
  // to the residual stream: [1][dim] F32.
  Tensor post_attn_norm, post_ffn_norm;
  // [n_heads*head_dim][dim]. Config::query_gate: [n_heads][2][head_dim][dim]: the rows of each
  // head's query, then those of its gate, which has the meaning of wgate.
  Tensor wq;
  // [n_kv_heads*head_dim][dim]; without rows: the layer has no keys and values of its own
  // (LayerConfig::kv_source)
  Tensor wk, wv;
  Tensor wo;  // [dim][n_heads*head_dim]
  // Config::latent: wq is [n_heads*query_dim][q_rank or dim], wv makes the latent [kv_rank][dim],
  // wk the rotated part of the key [rope_dim][dim]; wo is [dim][n_heads*value_dim]. wkv_a is the
  // latent's rows and then the key's, wq_a [q_rank][dim]. Both latents are normalised: q_a_norm and
  // kv_a_norm, [1][rank] F32. For each head: k_b [kv_rank][nope_dim], v_b [value_dim][kv_rank].
  Tensor wq_a, q_a_norm, wkv_a, kv_a_norm;
  std::vector<Tensor> k_b, v_b;
  // A layer that keeps a recurrent state has these in place of wq, wk and wv, in the order of
  // recurrent_tensors. Its wo is [dim][recurrent_out].
  std::vector<Tensor> mix;
  // Gate of attention's output, which is multiplied by sigmoid(wgate x) before wo; x is the input
  // of wq: [n_heads*head_dim][dim], or [n_heads][dim] with Config::head_gate.
  Tensor wgate;
  // Some files keep wq, wk and wv in one matrix, one after the other, and w1 and w3 in another.
  // wq and the others are then rows of these.
  Tensor wqkv, w13;
  Tensor w1, w3;  // gate, up: [hidden_dim][dim]; without rows: see ExpertWeights
  Tensor w2;      // down: [dim][hidden_dim]
  // RMS norms of q and of k, F32: [1][head_dim] of each head, or [1][rows of wq] and
  // [1][rows of wk] of all heads together.
  Tensor q_norm, k_norm;
  Tensor v_norm;  // [1][head_dim] F32, all ones; without data: values are not normalised
  // [1][1] F32: the residual stream is multiplied by it after the layer; without data: it is not.
  Tensor output_scale;
  // [1][4] F32: a Xielu; without data: Config::activation is another.
  Tensor xielu;
  // Added to the products, [1][rows] F32.
  Tensor bq, bk, bv, bo, b1, b3, b2;
  // Attention sinks, [1][n_heads] F32: the score of a key without a value, which is added to the
  // sum of each head's softmax (Agarwal et al., arXiv 2508.10925).
  Tensor sinks;
  Tensor router, router_bias;  // [experts.n][dim], [1][experts.n] F32: scores of the experts
  Tensor choice_bias;          // Routing::choice_bias: [1][experts.n] F32
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;  // experts.shared_dim wide
  // ExpertsConfig::next_to_ffn, [1][dim] F32 each: norms of the router's and of the experts' input,
  // and of the outputs of the FFN and of the experts before they are added. post_ffn_norm is that
  // of their sum.
  Tensor router_norm, expert_norm, ffn_out_norm, expert_out_norm;
  Tensor expert_scales;  // [1][experts.n] F32, factors of the experts' weights; or without data
  // Per-layer embeddings (Device::add_layer_embedding): [layer_embedding_dim][dim],
  // [dim][layer_embedding_dim], and the norm [1][dim] F32. layer_projection is this layer's rows of
  // Weights::layer_projection.
  Tensor embedding_gate, embedding_out, embedding_norm, layer_projection;
  bool has_ffn() const { return w2.rows > 0 || !experts.empty(); }
  Tensor shared_gate;  // [1][dim] F32
};

// A head that predicts the token after the next one (multi-token prediction, MTP: DeepSeek-V3,
// arXiv 2412.19437, section 2.2): a layer like those of draft_config, whose input is
// proj [embed_norm(e) | hidden_norm(h)]. e is the embedding of the next token, h the final norm's
// output at the token before it. output gives the logits, from final_norm of the layer's output.
// That norm's output takes the place of h for the token after.
struct DraftWeights {
  Tensor proj;                                 // [dim][2 dim]; without rows: there is no head
  Tensor embed_norm, hidden_norm, final_norm;  // [1][dim] F32
  Tensor embedding, output;                    // the model's own, or other ones of these shapes
  LayerWeights layer;
};

struct Weights {
  Tensor embedding;       // [vocab_size][dim]
  Tensor embedding_norm;  // [1][dim] F32, all ones; without data: embeddings are not normalised
  // Per-layer embeddings: [vocab_size][n_layers*layer_embedding_dim],
  // [n_layers*layer_embedding_dim][dim], and a norm [1][layer_embedding_dim] F32; without rows:
  // there are none. The first may be half of a file; only the tokens' rows of it are read.
  Tensor layer_embedding, layer_projection, layer_projection_norm;
  std::vector<LayerWeights> layers;
  Tensor final_norm;  // [1][dim] F32
  Tensor output;      // [vocab_size][dim]; the embedding itself when tied
  DraftWeights draft;
};

// All of a model except its configuration.
struct ModelParts {
  Weights weights;
  std::string format;                              // "gguf", "safetensors" or the maker's name
  std::string chat_template;                       // text, or empty
  std::unique_ptr<Tokenizer> tokenizer;            // null: the model has none
  std::unique_ptr<const ChatTemplate> chat;        // null: there is none that can be evaluated
  std::string chat_error;                          // why not, if the model has a template
  std::vector<std::shared_ptr<MappedFile>> files;  // keep the views alive
  std::unique_ptr<ReadAhead> read_ahead;           // reads the weights ahead; null: nothing to read
  std::vector<std::unique_ptr<std::vector<float>>> owned;  // norms, biases and sinks in F32
  std::vector<Buffer> generated;  // bytes of tensors without data, and of repacked experts
  uint64_t n_params = 0, weight_bytes = 0;
  // Returns the bytes of the weights without the per-layer embeddings, of which only the rows of a
  // text's tokens are read.
  uint64_t resident_bytes() const { return weight_bytes - weights.layer_embedding.bytes(); }
  // GGUF's names of the tensors, and those of the model's own file.
  const TensorNames *gguf_names, *file_names;

  ModelParts();  // with the usual names of GGUF
  ~ModelParts();
  ModelParts(ModelParts&&) noexcept;
  ModelParts& operator=(ModelParts&&) noexcept;
};

// load_model makes a Model when all of its configuration is known, which nothing changes
// afterwards.
struct Model : ModelParts {
  Model() = default;
  Model(Config c, ModelParts parts) : ModelParts(std::move(parts)), config(std::move(c)) {}

  Config config;
};

// Gives every tensor without data its bytes in host memory, in a file's layout, owned by the model.
// Does nothing if all tensors have bytes. Uses all cores. RIFFLE_OUT_OF_MEMORY leaves the model as
// it was.
void materialize(Model& model);

// Returns a bound: only ids below it may be drawn. From it on come rows of the output without a
// piece, and the pieces of type unused at the vocabulary's end, which converters put in for such
// rows ("[PAD32000]"). An end token is never left out.
int drawable_ids(const Model& model);

// progress(done, total) in bytes; returns false to cancel (then Error RIFFLE_ABORTED). May be
// empty.
using LoadProgress = std::function<bool(double done, double total)>;

}  // namespace riffle
