// What is in a model file: configuration, weights as views of the mapped file, tokenizer, chat
// template. Both formats (GGUF, Hugging Face folder) end in this one struct; nothing after loading
// knows which it was.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/common/dtype.h"
#include "util/buffer.h"

namespace riffle {

class Tokenizer;
class MappedFile;
class ChatTemplate;

inline constexpr int kQ8Block = 32;  // values per Q8_0 block: one f16 scale, then 32 int8
inline constexpr int kQ8BlockBytes = 34;

// A matrix inside a mapped file, row-major: row r begins at data + r * row_bytes(type, cols). May
// be unaligned. Without data it is a synthetic one, which has no bytes anywhere: element i
// (row-major) is what kernels/common/synthetic.h makes of (seed, i), times scale. A device makes it
// where it needs it; the CPU devices need materialize().
struct Tensor {
  DType type = DType::F32;
  int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  uint64_t seed = 0;
  float scale = 0;
  int64_t bytes() const { return rows * row_bytes(type, cols); }
};

// How positions beyond the first trained length are brought into it; model/rope.h says what each
// does.
struct RopeScaling {
  enum Type : uint8_t { NONE, LINEAR, DYNAMIC, YARN, LLAMA3, FACTORS } type = NONE;
  float factor = 1;
  int original_ctx = 0;                 // the first trained length; DYNAMIC, YARN, LLAMA3
  float attention_factor = 1;           // YARN: of cosines and sines
  float beta_fast = 32, beta_slow = 1;  // YARN
  float low_freq_factor = 1, high_freq_factor = 4;  // LLAMA3
  std::vector<float> factors;  // FACTORS: by which each frequency is divided [head_dim/2]
};

struct Config {
  std::string name;          // general.name, or the folder's name
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3"
  int dim = 0;               // width of the residual stream
  int hidden_dim = 0;        // width of the FFN
  int head_dim = 0;
  int n_layers = 0;
  int n_heads = 0;     // query heads
  int n_kv_heads = 0;  // divides n_heads
  int vocab_size = 0;
  int n_ctx = 0;  // trained length
  float norm_eps = 0;
  float rope_theta = 0;
  RopeScaling rope;
  // Tokens that a query sees in layers from first_window_layer on, its own included; 0: all.
  int sliding_window = 0, first_window_layer = 0;
  bool qk_norm = false;  // each head of q and of k is normalised before RoPE
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool tied_output = false;
  int bos_id = -1, eos_id = -1;
  std::vector<int> eos_ids;  // every token that ends an answer, eos_id among them
  // GGUF stores the rows of wq and wk permuted so that a RoPE pair is (2i, 2i+1); Hugging Face
  // pairs (i, i+head_dim/2). The forward pass undoes it when it rotates, so that q and k look alike
  // from there on.
  bool rope_interleaved = false;

  bool ends_answer(int token) const {
    return std::find(eos_ids.begin(), eos_ids.end(), token) != eos_ids.end();
  }
  // Architectures whose GGUF files keep the rows of wq and wk as Hugging Face has them.
  bool rows_as_trained() const { return architecture == "qwen2" || architecture == "qwen3"; }
  int window(int layer) const { return layer >= first_window_layer ? sliding_window : 0; }
};

struct LayerWeights {
  Tensor attn_norm;  // [1][dim] F32 (norm vectors are converted to F32 at load)
  Tensor wq;         // [n_heads*head_dim][dim]
  Tensor wk, wv;     // [n_kv_heads*head_dim][dim]
  Tensor wo;         // [dim][n_heads*head_dim]
  Tensor ffn_norm;   // [1][dim] F32
  Tensor w1, w3;     // gate, up: [hidden_dim][dim]
  Tensor w2;         // down: [dim][hidden_dim]
  // RMS norms of each head of q and of k before RoPE, [1][head_dim] F32; without data: none.
  Tensor q_norm, k_norm;
  // Added to the products, [1][rows] F32; without data where the model has none.
  Tensor bq, bk, bv, bo, b1, b3, b2;
};

struct Weights {
  Tensor embedding;  // [vocab_size][dim]
  std::vector<LayerWeights> layers;
  Tensor final_norm;  // [1][dim] F32
  Tensor output;      // [vocab_size][dim]; the embedding itself when tied
};

struct Model {
  Config config;
  Weights weights;
  std::string format;                              // "gguf", "safetensors" or "synthetic"
  std::string chat_template;                       // text, or empty
  std::unique_ptr<Tokenizer> tokenizer;            // null: the model has none
  std::unique_ptr<const ChatTemplate> chat;        // null: there is none that can be evaluated
  std::string chat_error;                          // why, if the model carries one
  std::vector<std::shared_ptr<MappedFile>> files;  // keep the views alive
  std::vector<std::unique_ptr<std::vector<float>>> owned;  // norm vectors converted to F32
  std::vector<Buffer> generated;  // bytes of synthetic tensors that have some
  uint64_t n_params = 0, weight_bytes = 0;

  Model();
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
};

// Only ids below it may be drawn. Beyond are rows of the output that no piece belongs to, and the
// pieces of type unused at the vocabulary's end, which converters put in for such rows
// ("[PAD32000]"). An end token is never left out.
int drawable_ids(const Model& model);

// progress(done, total) in bytes; returns false to cancel (then Error RIFFLE_ABORTED). May be
// empty.
using LoadProgress = std::function<bool(double done, double total)>;

// path: a .gguf file or a Hugging Face folder. chat: how conversations are written; null: as the
// model's own template does. Its end-of-turn tokens end answers too (Config::eos_ids). Throws
// Error: RIFFLE_IO, RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress,
                                  std::unique_ptr<const ChatTemplate> chat);
std::unique_ptr<Model> load_model(const std::string& path, const LoadProgress& progress);

}  // namespace riffle
