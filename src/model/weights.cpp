#include "model/weights.h"

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/common/half.h"
#include "model/formats/mapped_file.h"
#include "util/error.h"

namespace riffle {

bool tensor_bytes(DType type, const std::vector<uint64_t>& shape, uint64_t* bytes) {
  if (shape.empty() || shape.back() == 0) return false;
  const DTypeInfo& info = dtype_info(type);
  if (shape.back() % info.block_values != 0) return false;
  uint64_t total = shape.back() / info.block_values;
  if (!checked_mul(total, info.block_bytes, &total)) return false;
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    if (shape[i] == 0 || !checked_mul(total, shape[i], &total)) return false;
  }
  *bytes = total;
  return true;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string out;
  for (const uint64_t n : shape) out += "[" + std::to_string(n) + "]";
  return out.empty() ? "no shape" : out;
}

void take_rows(const Tensor& whole, std::initializer_list<Tensor*> parts) {
  if (whole.rows == 0) return;
  const auto* data = static_cast<const std::byte*>(whole.data);
  for (Tensor* part : parts) {
    *part = {whole.type, part->rows, whole.cols, data};
    data += part->bytes();
  }
}

namespace {

float element(const RawTensor& raw, size_t i) {
  if (raw.type == DType::F32) return load_unaligned<float>(raw.data + 4 * i);
  const auto bits = load_unaligned<uint16_t>(raw.data + 2 * i);
  if (raw.type == DType::F16) return cpu::f16_to_f32(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return load_unaligned<float>(&wide);
}

class Binder {
 public:
  Binder(Model& model, const TensorTable& table, const std::string& where)
      : model_(model), table_(table), where_(where) {}

  Tensor matrix(const std::string& name, int64_t rows, int64_t cols) {
    const RawTensor& raw = find(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)});
    return {*raw.type, rows, cols, raw.data};
  }

  // Norm weights and biases: F32 whatever the file has.
  Tensor vector(const std::string& name, int64_t cols, float offset = 0) {
    const RawTensor& raw = find(name, {static_cast<uint64_t>(cols)});
    if (is_quantised(*raw.type))
      unsupported(raw.file, name + " type", raw.type_name, "F32, F16 or BF16");
    auto values = std::make_unique<std::vector<float>>(cols);
    for (int64_t i = 0; i < cols; ++i) {
      const float value = element(raw, i);
      if (!std::isfinite(value)) {
        bad_model(raw.file, name, format("%g at index %lld", value, static_cast<long long>(i)),
                  "finite values");
      }
      (*values)[i] = value + offset;
    }
    model_.owned.push_back(std::move(values));
    return {DType::F32, 1, cols, model_.owned.back()->data()};
  }

  // Several matrices of the same columns: each by its name, or as rows of one that has all of them
  // and is returned then.
  struct Part {
    Tensor* to;
    const std::string name;
    int64_t rows;
  };
  Tensor parts(const std::string& fused, std::initializer_list<Part> all, int64_t cols) {
    int64_t rows = 0;
    for (const Part& part : all) rows += part.rows;
    const auto it = table_.find(fused);
    const bool is_fused = it != table_.end() && !it->second.shape.empty() &&
                          it->second.shape.front() == static_cast<uint64_t>(rows);
    if (table_.count(all.begin()->name) || !is_fused) {
      for (const Part& part : all) *part.to = matrix(part.name, part.rows, cols);
      return {};
    }
    const Tensor whole = matrix(fused, rows, cols);
    const auto* data = static_cast<const std::byte*>(whole.data);
    for (const Part& part : all) {
      *part.to = {whole.type, part.rows, cols, data};
      data += part.to->bytes();
    }
    return whole;
  }

  // n matrices of `rows` rows, stacked in a tensor of three dimensions.
  std::vector<Tensor> stack(const std::string& name, int n, int64_t rows, int64_t cols) {
    const RawTensor& raw = find(
        name, {static_cast<uint64_t>(n), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)});
    std::vector<Tensor> all(n, Tensor{*raw.type, rows, cols, raw.data});
    for (int i = 0; i < n; ++i) all[i].data = raw.data + i * all[i].bytes();
    return all;
  }

  void ignore(const std::string& name) { used_.insert(name); }

  // A tensor nobody asked for means a model that computes something else.
  void refuse_the_rest() const {
    for (const auto& [name, raw] : table_) {
      if (used_.count(name)) continue;
      // Old checkpoints carry the RoPE frequencies, which follow from rope_theta.
      if (name.ends_with(".rotary_emb.inv_freq")) continue;
      unsupported(raw.file, "tensor " + name,
                  "a tensor that a model of this kind and size does not have",
                  "none (no other biases, no further layers)");
    }
  }

  void report(const LoadProgress& progress) {
    double done = 0;
    for (const RawTensor* raw : bound_) {
      will_need(raw->data, raw->bytes);
      done += static_cast<double>(raw->bytes);
      if (progress && !progress(done, static_cast<double>(model_.weight_bytes))) {
        throw Error(RIFFLE_ABORTED, where_ + ": loading was cancelled");
      }
    }
  }

 private:
  const RawTensor& find(const std::string& name, const std::vector<uint64_t>& shape) {
    const auto it = table_.find(name);
    if (it == table_.end())
      bad_model(where_, "tensor " + name, "none", "shape " + shape_text(shape));
    const RawTensor& raw = it->second;
    // GGUF and safetensors may write a vector as a matrix of one row, or pad shapes with ones in
    // front.
    size_t ones = 0;
    while (raw.shape.size() - ones > shape.size() && raw.shape[ones] == 1) ++ones;
    if (!std::equal(raw.shape.begin() + ones, raw.shape.end(), shape.begin(), shape.end())) {
      bad_model(raw.file, name + " shape", shape_text(raw.shape), shape_text(shape));
    }
    if (!raw.type)
      unsupported(raw.file, name + " type", raw.type_name,
                  "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
                  "IQ4_NL, IQ4_XS or MXFP4");
    used_.insert(name);
    bound_.push_back(&raw);
    uint64_t elements = 1;
    for (const uint64_t n : shape) elements *= n;  // fits: the bytes did
    model_.n_params += elements;
    model_.weight_bytes += raw.bytes;
    return raw;
  }

  Model& model_;
  const TensorTable& table_;
  const std::string& where_;
  std::set<std::string> used_;
  std::vector<const RawTensor*> bound_;
};

// The router and the experts of a layer.
void bind_experts(Binder& binder, const Config& c, const TensorNames& names,
                  const std::string& prefix, LayerWeights* layer) {
  const int n = c.experts.n;
  const int64_t hidden = c.experts.hidden_dim;
  layer->router = binder.matrix(prefix + names.router, n, c.dim);
  layer->experts.resize(n);
  if (!names.expert) {
    const std::vector<Tensor> w1 = binder.stack(prefix + names.expert_w1, n, hidden, c.dim),
                              w3 = binder.stack(prefix + names.expert_w3, n, hidden, c.dim),
                              w2 = binder.stack(prefix + names.expert_w2, n, c.dim, hidden);
    for (int e = 0; e < n; ++e) {
      layer->experts[e].w1 = w1[e];
      layer->experts[e].w3 = w3[e];
      layer->experts[e].w2 = w2[e];
    }
    return;
  }
  for (int e = 0; e < n; ++e) {
    char at[64];
    std::snprintf(at, sizeof at, names.expert, e);
    ExpertWeights& expert = layer->experts[e];
    expert.w1 = binder.matrix(prefix + at + names.expert_w1, hidden, c.dim);
    expert.w3 = binder.matrix(prefix + at + names.expert_w3, hidden, c.dim);
    expert.w2 = binder.matrix(prefix + at + names.expert_w2, c.dim, hidden);
    // Devices keep them stacked.
    const ExpertWeights& first = layer->experts[0];
    for (const auto& [mine, other] :
         {std::pair{&expert.w1, &first.w1}, {&expert.w3, &first.w3}, {&expert.w2, &first.w2}})
      if (mine->type != other->type)
        unsupported(prefix + at, "type", dtype_info(mine->type).name,
                    std::string(dtype_info(other->type).name) + ", as expert 0 has");
  }
}

}  // namespace

void bind_weights(Model& model, const TensorTable& table, const TensorNames& names,
                  const std::string& where, const LoadProgress& progress) {
  const Config& c = model.config;
  const int64_t q_rows = static_cast<int64_t>(c.n_heads) * c.head_dim;
  const int64_t kv_rows = static_cast<int64_t>(c.n_kv_heads) * c.head_dim;
  Binder binder(model, table, where);
  Weights& w = model.weights;
  w.embedding = binder.matrix(names.embedding, c.vocab_size, c.dim);
  for (int l = 0; l < c.n_layers; ++l) {
    char prefix[64];
    std::snprintf(prefix, sizeof prefix, names.layer, l);
    const auto name = [&](const char* rest) { return std::string(prefix) + rest; };
    const auto norm = [&](const char* rest, int64_t cols) {
      return binder.vector(name(rest), cols, names.norm_offset);
    };
    LayerWeights layer;
    if (c.pre_norm) {
      layer.attn_norm = norm(names.attn_norm, c.dim);
      layer.ffn_norm = norm(names.ffn_norm, c.dim);
    }
    if (c.post_norm) {
      layer.post_attn_norm = norm(names.post_attn_norm, c.dim);
      layer.post_ffn_norm = norm(names.post_ffn_norm, c.dim);
    }
    layer.wqkv = binder.parts(name(names.wqkv),
                              {{&layer.wq, name(names.wq), q_rows},
                               {&layer.wk, name(names.wk), kv_rows},
                               {&layer.wv, name(names.wv), kv_rows}},
                              c.dim);
    layer.wo = binder.matrix(name(names.wo), c.dim, q_rows);
    if (c.layers[l].has_experts) {
      bind_experts(binder, c, names, prefix, &layer);
    } else {
      layer.w13 = binder.parts(
          name(names.w13),
          {{&layer.w1, name(names.w1), c.hidden_dim}, {&layer.w3, name(names.w3), c.hidden_dim}},
          c.dim);
      layer.w2 = binder.matrix(name(names.w2), c.dim, c.hidden_dim);
    }
    if (c.qk_norm != QkNorm::NONE) {
      const bool whole = c.qk_norm == QkNorm::WHOLE;
      layer.q_norm = norm(names.q_norm, whole ? q_rows : c.head_dim);
      layer.k_norm = norm(names.k_norm, whole ? kv_rows : c.head_dim);
    }
    if (c.qkv_bias) {
      layer.bq = binder.vector(name(names.bq), q_rows);
      layer.bk = binder.vector(name(names.bk), kv_rows);
      layer.bv = binder.vector(name(names.bv), kv_rows);
    }
    if (c.o_bias) layer.bo = binder.vector(name(names.bo), c.dim);
    if (c.mlp_bias && !c.layers[l].has_experts) {
      layer.b1 = binder.vector(name(names.b1), c.hidden_dim);
      layer.b3 = binder.vector(name(names.b3), c.hidden_dim);
      layer.b2 = binder.vector(name(names.b2), c.dim);
    }
    w.layers.push_back(layer);
  }
  w.final_norm = binder.vector(names.final_norm, c.dim, names.norm_offset);
  if (c.tied_output) {
    w.output = w.embedding;
    binder.ignore(names.output);  // a copy of the embedding that some files keep
  } else {
    w.output = binder.matrix(names.output, c.vocab_size, c.dim);
  }
  if (c.ropes[0].scaling.type == RopeScaling::FACTORS)
    binder.ignore("rope_freqs.weight");  // read with the config
  if (c.ropes[0].scaling.type == RopeScaling::LONGROPE)
    for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"})
      binder.ignore(name);
  binder.refuse_the_rest();
  binder.report(progress);
}

}  // namespace riffle
