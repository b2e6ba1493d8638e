// The checkpoints of tests/golden/tiny (tools/fixtures/README.md says what is in them): as Hugging
// Face folders, as GGUF, and how a runtime is held against their golden logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/raw_tensor.h"
#include "tests/engine/test_model.h"
#include "tests/model/test_files.h"

namespace riffle::test {

inline const std::string kTinyRoot = "tests/golden/tiny";

struct TinyCheckpoint {
  struct Position {
    int prefill;   // tokens of the first pass; 0: any
    int position;  // the row is what follows tokens 0 to position
  };
  std::string name;
  nlohmann::json config;
  std::string weights;  // path
  // The whole model, if it takes images: config and weights are its text part. Null and empty:
  // there is no other part.
  nlohmann::json whole_config;
  std::string whole_weights;
  bool gguf;
  std::vector<Position> positions;
  std::vector<std::vector<float>> logits;  // a row for each position
  // Transformers' text after the `length` tokens from `first` on; each token leads by a margin that
  // no rounding overcomes.
  struct {
    int first = 0, length = 0;
    std::vector<int32_t> tokens;
  } greedy;

  int integer(const char* key) const { return config.at(key).get<int>(); }
  int head_dim() const {
    return config.value("head_dim", integer("hidden_size") / integer("num_attention_heads"));
  }
  // Tells whether RoPE is scaled by the length of the text.
  bool scales_by_length() const {
    const std::string text = config.dump();
    return text.find("\"dynamic\"") != std::string::npos &&
           text.find("\"alpha\"") == std::string::npos;
  }
  // Tells whether the CUDA kernels support this head size, this number of query heads for each KV
  // head, and all else that the family needs.
  bool runs_on_gpu(int most_group = 24) const {
    const int d = head_dim(), heads = integer("num_attention_heads");
    if (const int rank = config.value("kv_lora_rank", 0); rank > 0)
      return rank == 512 && config.value("qk_rope_head_dim", 0) == 64 && heads <= most_group;
    return (d == 64 || d == 80 || d == 96 || d == 128 || d == 256) &&
           heads <= most_group * config.value("num_key_value_heads", heads);
  }
  // Tells whether heads are so wide that a GPU runs dense, share and auto alone.
  bool wide() const {
    return config.value("kv_lora_rank", 0) > 0 || config.value("global_head_dim", 0) > 256;
  }
  int n_tokens() const {
    int n = 0;
    for (const Position& p : positions) n = std::max(n, p.position + 1);
    return n;
  }
};

// Compares F32 tensors of values that two programs have computed with functions of their own.
inline bool nearly_same_floats(const RawTensor& a, const RawTensor& b) {
  bool same = a.bytes == b.bytes;
  for (uint64_t i = 0; same && i < a.bytes; i += 4) {
    const auto x = load_unaligned<float>(a.data + i), y = load_unaligned<float>(b.data + i);
    same = std::fabs(x - y) <= 1e-6f * std::fabs(y);
  }
  return same;
}

std::vector<int32_t> tiny_tokens();

TinyCheckpoint tiny_checkpoint(const std::string& name);

// They are read once, since a case with sections begins again for each one.
const std::vector<TinyCheckpoint>& tiny_checkpoints();

std::string tiny_folder(const TinyCheckpoint& c, const TempDir& temp);

// ---- GGUF

// Returns the GGUF file that converters make of the checkpoint.
std::string tiny_gguf(const TinyCheckpoint& c);

// ---- comparison

struct TinyDifference {
  double relative = 0;  // the largest difference of a logit over the largest logit of its row
  std::string where = "";
  bool same_best = true;  // the best token is the golden one everywhere
};

TinyDifference& operator+=(TinyDifference& worst, const TinyDifference& d);

TinyDifference tiny_difference(const std::vector<float>& got, const std::vector<float>& golden,
                               const std::string& where);

// The same of several rows; `where` is the number of a row.
inline TinyDifference rows_difference(const std::vector<std::vector<float>>& got,
                                      const std::vector<std::vector<float>>& want) {
  TinyDifference worst;
  for (size_t i = 0; i < want.size(); ++i)
    worst += tiny_difference(got[i], want[i], "row " + std::to_string(i));
  return worst;
}

// Each position by one prefill, by a prefill and then single steps, and all in one session by a
// prefill for each.
TinyDifference compare(Runtime& r, const TinyCheckpoint& c);

// Dynamic scaling follows from the length of the context here, where transformers takes that of
// each forward: they agree where a forward fills the context.
TinyDifference compare_full(ContextOptions o, const TinyCheckpoint& c, const std::string& path);

TinyDifference compare(const ContextOptions& o, const TinyCheckpoint& c, const std::string& path);

// Dense selection, and room for every position.
ContextOptions tiny_options(const TinyCheckpoint& c, ContextOptions o, KvKind kv);

}  // namespace riffle::test
