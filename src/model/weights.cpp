#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "formats/packed_experts.h"
#include "kernels/common/half.h"
#include "kernels/cpu/linear/quants.h"
#include "model/recurrence.h"
#include "util/cpu_limits.h"
#include "util/error.h"
#include "util/mapped_file.h"
#include "util/read_ahead.h"
#include "util/thread_pool.h"

namespace riffle {

bool is_part_for_images(std::string_view name) {
  return name.starts_with("v.") || name.starts_with("mm.");
}

void take_rows(const Tensor& whole, std::initializer_list<Tensor*> parts) {
  if (whole.rows == 0) return;
  const auto* data = static_cast<const std::byte*>(whole.data);
  for (Tensor* part : parts) {
    *part = {whole.type, part->rows, whole.cols, data};
    data += part->bytes();
  }
}

void take_layer_projections(Weights& w) {
  if (w.layer_projection.rows == 0) return;
  Tensor rest = w.layer_projection;
  for (LayerWeights& layer : w.layers) {
    layer.layer_projection.rows = w.layer_projection.rows / std::ssize(w.layers);
    take_rows(rest, {&layer.layer_projection});
    rest.data = static_cast<const std::byte*>(rest.data) + layer.layer_projection.bytes();
  }
}

namespace {

// Returns the text "F32, F16, ... or MXFP4".
std::string dtype_names() {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i)
    names += (i == 0 ? "" : i + 1 == kNumDTypes ? " or " : ", ") + std::string(kDTypes[i].name);
  return names;
}

float element(const RawTensor& raw, size_t i) {
  if (raw.type == DType::F32) return load_unaligned<float>(raw.data + 4 * i);
  const auto bits = load_unaligned<uint16_t>(raw.data + 2 * i);
  if (raw.type == DType::F16) return cpu::f16_to_f32(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return load_unaligned<float>(&wide);
}

// All values of a matrix are checked for NaN and infinity if it has at most this many: routers of
// experts, and matrices of small models. Larger ones are not read before they are used.
constexpr int64_t kMostChecked = 1 << 18;

class Binder {
 public:
  Binder(ModelParts& model, const TensorTable& table, const std::string& where)
      : model_(model), table_(table), where_(where) {}

  Tensor matrix(const std::string& name, int64_t rows, int64_t cols) {
    const RawTensor& raw = find(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)});
    if (rows * cols <= kMostChecked && !is_quantised(*raw.type))
      for (int64_t i = 0; i < rows * cols; ++i) finite_element(raw, name, i);
    return {*raw.type, rows, cols, raw.data};
  }

  // Returns a matrix of which only single rows are read, each in parts of `part` columns. It is not
  // read ahead.
  Tensor table(const std::string& name, int64_t rows, int64_t cols, int64_t part) {
    const RawTensor& raw = find(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)});
    if (part % dtype_info(*raw.type).block_values != 0)
      unsupported(raw.file, name + " type", raw.type_name,
                  "a type whose block length divides " + std::to_string(part));
    by_row_.insert(&raw);
    return {*raw.type, rows, cols, raw.data};
  }

  // Returns norm weights or biases as F32, whatever type the file has.
  Tensor vector(const std::string& name, int64_t cols, float offset = 0) {
    const RawTensor& raw = find(name, {static_cast<uint64_t>(cols)});
    return {DType::F32, 1, cols, floats(raw, name, cols, offset)};
  }

  // Returns the taps of a convolution as F32, channel by channel. Folders have a dimension of 1
  // between channels and taps.
  Tensor taps(const std::string& name, int64_t channels, int64_t n) {
    const auto c = static_cast<uint64_t>(channels), t = static_cast<uint64_t>(n);
    const auto it = table_.find(name);
    const bool three = it != table_.end() && it->second.shape.size() == 3;
    const RawTensor& raw =
        find(name, three ? std::vector<uint64_t>{c, 1, t} : std::vector<uint64_t>{c, t});
    return {DType::F32, channels, n, floats(raw, name, channels * n, 0)};
  }

  // Returns values as F32. A file may have them as a vector.
  Tensor values(const std::string& name, int64_t rows, int64_t cols) {
    const auto it = table_.find(name);
    const auto r = static_cast<uint64_t>(rows), c = static_cast<uint64_t>(cols);
    const bool flat = it == table_.end() || it->second.shape.size() == 1;
    const RawTensor& raw =
        find(name, flat ? std::vector<uint64_t>{r * c} : std::vector<uint64_t>{r, c});
    return {DType::F32, rows, cols, floats(raw, name, rows * cols, 0)};
  }

  // Returns the four values of a Xielu, which the file has as tensors of one value.
  Tensor xielu(const std::string& prefix, const TensorNames& names) {
    std::vector<float> all;
    for (const char* rest :
         {names.xielu_alpha_p, names.xielu_alpha_n, names.xielu_beta, names.xielu_eps}) {
      const std::string name = prefix + rest;
      all.push_back(*floats(find(name, {}), name, 1, 0));
    }
    return keep(all);
  }
  Tensor xielu(const Xielu& x) { return keep({x.alpha_p, x.alpha_n, x.beta, x.eps}); }

  // Returns values of at most 0. logs: the file has log(-x).
  Tensor decay(const std::string& name, int64_t rows, int64_t cols, bool logs) {
    const Tensor t = values(name, rows, cols);
    auto* const values = model_.owned.back()->data();
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float given = values[i];
      if (logs) values[i] = -std::exp(given);
      if (!std::isfinite(values[i]) || values[i] > 0)
        bad_model(where_, format("%s[%lld]", name.c_str(), static_cast<long long>(i)),
                  format("%g", static_cast<double>(given)),
                  logs ? "a logarithm whose exponential fits f32" : "a number up to 0");
    }
    return t;
  }

  // Makes a vector of values that are no tensor of the file.
  Tensor keep(const std::vector<float>& values) {
    model_.owned.push_back(std::make_unique<std::vector<float>>(values));
    return {DType::F32, 1, static_cast<int64_t>(values.size()), model_.owned.back()->data()};
  }

  // Makes a norm whose weights are all the same and not in the file.
  Tensor constant(int64_t cols, float value) {
    model_.owned.push_back(std::make_unique<std::vector<float>>(cols, value));
    return {DType::F32, 1, cols, model_.owned.back()->data()};
  }

  // Binds several matrices with the same number of columns: each by its name, or all as rows of one
  // fused matrix. Returns the fused matrix, or a tensor without rows.
  struct Part {
    Tensor* to;
    const std::string name;
    int64_t rows;
  };
  Tensor parts(const std::string& fused, std::initializer_list<Part> all, int64_t cols) {
    int64_t rows = 0;
    for (const Part& part : all) rows += part.rows;
    const auto it = table_.find(fused);
    // A part may have the name of the whole. Then its shape says which it is.
    const bool named_as_part =
        std::any_of(all.begin(), all.end(), [&](const Part& part) { return part.name == fused; });
    const bool is_fused =
        it != table_.end() && !table_.count(all.begin()->name) &&
        (!named_as_part ||
         (!it->second.shape.empty() && it->second.shape.front() == static_cast<uint64_t>(rows)));
    if (!is_fused) {
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

  bool has(const std::string& name) const { return table_.count(name) > 0; }

  // Returns n matrices of `rows` rows, stacked in a tensor of three dimensions.
  std::vector<Tensor> stack(const std::string& name, int n, int64_t rows, int64_t cols) {
    const RawTensor& raw = find(
        name, {static_cast<uint64_t>(n), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)});
    std::vector<Tensor> all(n, Tensor{*raw.type, rows, cols, raw.data});
    for (int i = 0; i < n; ++i) all[i].data = raw.data + i * all[i].bytes();
    return all;
  }

  // Finds the matrices of n heads in one: of each head the rows of its keys [k_rows][cols], then
  // those of its values [v_rows][cols]. Keys are transposed, so they are copied: in F16 if the file
  // has a quantised type.
  void split_heads(const std::string& name, int n, int64_t k_rows, int64_t v_rows, int64_t cols,
                   std::vector<Tensor>* keys, std::vector<Tensor>* values) {
    const Tensor both = matrix(name, n * (k_rows + v_rows), cols);
    const DType type = is_quantised(both.type) ? DType::F16 : both.type;
    const int64_t size = dtype_info(type).block_bytes, bytes = row_bytes(both.type, cols);
    Buffer& buffer = model_.generated.emplace_back(static_cast<size_t>(n * k_rows * cols * size));
    std::vector<float> row(static_cast<size_t>(cols));
    std::vector<uint16_t> halves(static_cast<size_t>(cols));
    for (int64_t h = 0; h < n; ++h) {
      const auto* const from =
          static_cast<const uint8_t*>(both.data) + h * (k_rows + v_rows) * bytes;
      auto* const to = buffer.as<uint8_t>() + h * k_rows * cols * size;
      for (int64_t r = 0; r < k_rows; ++r) {
        const uint8_t* values_of_row = from + r * bytes;
        if (is_quantised(both.type)) {
          cpu::dequant_blocks(both.type, values_of_row, cols, row.data());
          std::ranges::transform(row, halves.begin(), cpu::f32_to_f16);
          values_of_row = reinterpret_cast<const uint8_t*>(halves.data());
        }
        for (int64_t c = 0; c < cols; ++c)
          std::memcpy(to + (c * k_rows + r) * size, values_of_row + c * size, size);
      }
      keys->push_back({type, cols, k_rows, to});
      values->push_back({both.type, v_rows, cols, from + k_rows * bytes});
    }
  }

  // Returns n vectors of `cols` values, the rows of a matrix.
  std::vector<Tensor> vectors(const std::string& name, int n, int64_t cols) {
    const RawTensor& raw = find(name, {static_cast<uint64_t>(n), static_cast<uint64_t>(cols)});
    const float* values = floats(raw, name, n * cols, 0);
    std::vector<Tensor> all;
    for (int i = 0; i < n; ++i) all.push_back({DType::F32, 1, cols, values + i * cols});
    return all;
  }

  // Returns experts in the layout of formats/packed_experts.h: n matrices of `cols` columns, made
  // of rows first, first + step, ... of the `all` rows of each expert.
  std::vector<Tensor> packed(const std::string& name, int n, int64_t all, int64_t cols,
                             int64_t first, int64_t step) {
    const auto experts = static_cast<uint64_t>(n), rows = static_cast<uint64_t>(all / step),
               whole = static_cast<uint64_t>(all), width = static_cast<uint64_t>(cols);
    const bool mxfp4 = table_.count(name + "_blocks") > 0;
    DType type = DType::MXFP4;
    const uint8_t *values = nullptr, *scales = nullptr;
    if (mxfp4) {
      if (width % 32 != 0)
        unsupported(where_, name + "_blocks", "rows of " + std::to_string(cols) + " values",
                    "a multiple of 32");
      values = bytes_of(name + "_blocks", {experts, whole, width / 32, 16});
      scales = bytes_of(name + "_scales", {experts, whole, width / 32});
    } else {
      const RawTensor& raw = at(name, {experts, width, whole});
      if (!raw.type || is_quantised(*raw.type))
        unsupported(raw.file, name + " type", raw.type_name, "F32, F16 or BF16");
      type = *raw.type;
      values = raw.data;
      use(name, raw);
      packed_.insert(&raw);
    }
    const int64_t bytes = static_cast<int64_t>(rows) * row_bytes(type, cols);
    Buffer& buffer = model_.generated.emplace_back(static_cast<size_t>(n * bytes));
    if (!threads_) threads_.emplace(default_threads());
    std::vector<Tensor> result(static_cast<size_t>(n));
    threads_->parallel_for(n, [&](int64_t i, int) {
      std::byte* to = buffer.as<std::byte>() + i * bytes;
      if (mxfp4) {
        const int64_t blocks = cols / 32;
        pack_mxfp4(values + i * all * blocks * 16, scales + i * all * blocks, first, step,
                   static_cast<int64_t>(rows), blocks, to);
      } else {
        const int size = dtype_info(type).block_bytes;
        transpose_experts(values + i * all * cols * size, size, all, first, step,
                          static_cast<int64_t>(rows), cols, to);
      }
      result[static_cast<size_t>(i)] = {type, static_cast<int64_t>(rows), cols, to};
    });
    model_.n_params += experts * rows * width;
    model_.weight_bytes += static_cast<uint64_t>(n * bytes);
    return result;
  }
  // Returns the biases [n][all] of such experts in the same way.
  std::vector<Tensor> packed_vectors(const std::string& name, int n, int64_t all, int64_t first,
                                     int64_t step) {
    const bool counted = used_.count(name) > 0;
    const RawTensor& raw = at(name, {static_cast<uint64_t>(n), static_cast<uint64_t>(all)});
    if (!raw.type) unsupported(raw.file, name + " type", raw.type_name, "F32, F16 or BF16");
    const float* values = floats(raw, name, n * all, 0);
    use(name, raw);
    if (!counted) model_.n_params += static_cast<uint64_t>(n * all);
    if (!counted) model_.weight_bytes += raw.bytes;
    if (step == 1) {
      std::vector<Tensor> result;
      for (int i = 0; i < n; ++i) result.push_back({DType::F32, 1, all, values + i * all});
      return result;
    }
    auto some = std::make_unique<std::vector<float>>();
    for (int64_t i = first; i < n * all; i += step) some->push_back(values[i]);
    model_.owned.push_back(std::move(some));
    std::vector<Tensor> result;
    const float* chosen = model_.owned.back()->data();
    for (int i = 0; i < n; ++i)
      result.push_back({DType::F32, 1, all / step, chosen + i * (all / step)});
    return result;
  }

  void ignore(const std::string& name) { used_.insert(name); }
  void ignore_prefix(const std::string& prefix) { ignored_.push_back(prefix); }
  bool is_ignored(const std::string& name) const {
    return std::any_of(ignored_.begin(), ignored_.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
  }

  // Refuses tensors that were not used: with them the model computes something else.
  void refuse_the_rest() const {
    for (const auto& [name, raw] : table_) {
      if (used_.count(name) || is_ignored(name)) continue;
      // Old checkpoints carry the RoPE frequencies, which follow from rope_theta.
      if (name.ends_with(".rotary_emb.inv_freq")) continue;
      unsupported(raw.file, "tensor " + name,
                  "a tensor that a model of this kind and size does not have",
                  "none (no other biases, no further layers)");
    }
  }

  void report(const LoadProgress& progress) {
    double done = 0;
    std::vector<MappedBytes> parts;
    for (const RawTensor* raw : bound_) {
      if (packed_.count(raw) == 0 && by_row_.count(raw) == 0)
        parts.push_back({raw->data, raw->bytes});
      else if (packed_.count(raw) > 0)  // it was copied and is no longer needed
        for (const auto& file : model_.files) file->drop(raw->data, raw->bytes);
      done += static_cast<double>(raw->bytes);
      if (progress && !progress(done, static_cast<double>(model_.weight_bytes))) {
        throw Error(RIFFLE_ABORTED, where_ + ": loading was cancelled");
      }
    }
    // Disks read a file fastest from its beginning to its end.
    std::sort(parts.begin(), parts.end(),
              [](const MappedBytes& a, const MappedBytes& b) { return a.data < b.data; });
    model_.read_ahead = std::make_unique<ReadAhead>(model_.files, std::move(parts));
  }

 private:
  // Returns an element of a tensor that is not quantised.
  float finite_element(const RawTensor& raw, const std::string& name, int64_t i) const {
    const float value = element(raw, i);
    if (!std::isfinite(value))
      bad_model(raw.file, name, format("%g at index %lld", value, static_cast<long long>(i)),
                "finite values; the file is damaged, or its conversion went wrong");
    return value;
  }

  const float* floats(const RawTensor& raw, const std::string& name, int64_t n, float offset) {
    if (is_quantised(*raw.type))
      unsupported(raw.file, name + " type", raw.type_name, "F32, F16 or BF16");
    auto values = std::make_unique<std::vector<float>>(n);
    for (int64_t i = 0; i < n; ++i) {
      (*values)[i] = finite_element(raw, name, i) + offset;
    }
    model_.owned.push_back(std::move(values));
    return model_.owned.back()->data();
  }

  // Returns the bytes of a tensor of type U8, which is not a type of weights.
  const uint8_t* bytes_of(const std::string& name, const std::vector<uint64_t>& shape) {
    const RawTensor& raw = at(name, shape);
    uint64_t n = 1;
    for (const uint64_t size : shape)
      if (!checked_mul(n, size, &n)) n = 0;
    if (raw.type_name != "U8" || n == 0 || raw.bytes != n)
      bad_model(raw.file, name + " type", raw.type_name, "U8");
    use(name, raw);
    packed_.insert(&raw);
    return raw.data;
  }

  void use(const std::string& name, const RawTensor& raw) {
    if (used_.insert(name).second) bound_.push_back(&raw);
  }

  // Returns the tensor of this name and shape. It does not count as used.
  const RawTensor& at(const std::string& name, const std::vector<uint64_t>& shape) const {
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
    return raw;
  }

  const RawTensor& find(const std::string& name, const std::vector<uint64_t>& shape) {
    const RawTensor& raw = at(name, shape);
    if (!raw.type) unsupported(raw.file, name + " type", raw.type_name, dtype_names());
    use(name, raw);
    uint64_t elements = 1;
    for (const uint64_t n : shape) elements *= n;  // fits: the bytes did
    model_.n_params += elements;
    model_.weight_bytes += raw.bytes;
    return raw;
  }

  ModelParts& model_;
  const TensorTable& table_;
  const std::string& where_;
  std::set<std::string> used_;
  std::vector<std::string> ignored_;  // beginnings of names of tensors that are not used
  std::vector<const RawTensor*> bound_;
  std::set<const RawTensor*> packed_;  // tensors of bound_ that were copied in another order
  std::set<const RawTensor*> by_row_;  // tensors of bound_ of which single rows are read
  std::optional<ThreadPool> threads_;  // threads that copy them
};

// Binds the router and the experts of a layer.
void bind_experts(Binder& binder, const Config& c, const TensorNames& names,
                  const std::string& prefix, LayerWeights* layer) {
  const int n = c.experts.n;
  const int64_t hidden = c.experts.hidden_dim;
  layer->router = binder.matrix(prefix + names.router, n, c.dim);
  layer->experts.resize(n);
  const auto set = [&](Tensor ExpertWeights::*to, const std::vector<Tensor>& from) {
    for (int e = 0; e < n; ++e) layer->experts[e].*to = from[e];
  };
  using E = ExpertWeights;
  if (c.experts.bias) layer->router_bias = binder.vector(prefix + names.router_bias, n);
  if (c.experts.routing.choice_bias)
    layer->choice_bias = binder.vector(prefix + names.choice_bias, n);
  if (const int64_t shared = c.experts.shared_dim; shared > 0) {
    if (names.shared_w13) {
      layer->shared.w1.rows = layer->shared.w3.rows = shared;
      take_rows(binder.matrix(prefix + names.shared_w13, 2 * shared, c.dim),
                {&layer->shared.w1, &layer->shared.w3});
    } else {
      if (c.gated_ffn()) layer->shared.w1 = binder.matrix(prefix + names.shared_w1, shared, c.dim);
      layer->shared.w3 = binder.matrix(prefix + names.shared_w3, shared, c.dim);
    }
    layer->shared.w2 = binder.matrix(prefix + names.shared_w2, c.dim, shared);
    if (c.experts.shared_gate)
      layer->shared_gate = binder.vector(prefix + names.shared_gate, c.dim);
  }
  if (names.expert_w13 && binder.has(prefix + names.expert_w13)) {
    const std::vector<Tensor> both = binder.stack(prefix + names.expert_w13, n, 2 * hidden, c.dim);
    for (int e = 0; e < n; ++e) {
      layer->experts[e].w1.rows = layer->experts[e].w3.rows = hidden;
      take_rows(both[e], {&layer->experts[e].w1, &layer->experts[e].w3});
    }
    set(&E::w2, binder.stack(prefix + (names.stacked_w2 ? names.stacked_w2 : names.expert_w2), n,
                             c.dim, hidden));
    return;
  }
  if (!c.gated_ffn() && names.stacked_w3 && binder.has(prefix + names.stacked_w3)) {
    set(&E::w3, binder.stack(prefix + names.stacked_w3, n, hidden, c.dim));
    set(&E::w2, binder.stack(prefix + names.stacked_w2, n, c.dim, hidden));
    return;
  }
  if (names.packed_experts) {
    set(&E::w1, binder.packed(prefix + names.expert_w1, n, 2 * hidden, c.dim, 0, 2));
    set(&E::w3, binder.packed(prefix + names.expert_w3, n, 2 * hidden, c.dim, 1, 2));
    set(&E::w2, binder.packed(prefix + names.expert_w2, n, c.dim, hidden, 0, 1));
    if (!c.experts.bias) return;
    set(&E::b1, binder.packed_vectors(prefix + names.expert_b1, n, 2 * hidden, 0, 2));
    set(&E::b3, binder.packed_vectors(prefix + names.expert_b3, n, 2 * hidden, 1, 2));
    set(&E::b2, binder.packed_vectors(prefix + names.expert_b2, n, c.dim, 0, 1));
    return;
  }
  if (!names.expert) {
    if (c.gated_ffn()) set(&E::w1, binder.stack(prefix + names.expert_w1, n, hidden, c.dim));
    set(&E::w3, binder.stack(prefix + names.expert_w3, n, hidden, c.dim));
    set(&E::w2, binder.stack(prefix + names.expert_w2, n, c.dim, hidden));
    if (!c.experts.bias) return;
    set(&E::b1, binder.vectors(prefix + names.expert_b1, n, hidden));
    set(&E::b3, binder.vectors(prefix + names.expert_b3, n, hidden));
    set(&E::b2, binder.vectors(prefix + names.expert_b2, n, c.dim));
    return;
  }
  for (int e = 0; e < n; ++e) {
    const std::string at = format(names.expert, e);
    ExpertWeights& expert = layer->experts[e];
    if (c.gated_ffn()) expert.w1 = binder.matrix(prefix + at + names.expert_w1, hidden, c.dim);
    expert.w3 = binder.matrix(prefix + at + names.expert_w3, hidden, c.dim);
    expert.w2 = binder.matrix(prefix + at + names.expert_w2, c.dim, hidden);
    // Devices stack the experts, so all must have one type.
    const ExpertWeights& first = layer->experts[0];
    for (const auto& [mine, other] :
         {std::pair{&expert.w1, &first.w1}, {&expert.w3, &first.w3}, {&expert.w2, &first.w2}})
      if (mine->type != other->type)
        unsupported(prefix + at, "type", dtype_info(mine->type).name,
                    std::string(dtype_info(other->type).name) + ", as expert 0 has");
  }
}

// Binds the tensors of a layer that keeps a recurrent state, except wo.
std::vector<Tensor> bind_mix(Binder& binder, const Config& c, const TensorNames& names,
                             const std::string& prefix) {
  const std::vector<const char*> rest = names.mix(c.recurrence);
  std::vector<Tensor> mix;
  for (const MixTensor& t : recurrent_tensors(c)) {
    std::string name = prefix + rest[mix.size()];
    // Ollama's converter leaves out the end of ssm_dt.bias.
    if (const size_t n = name.size() - std::min<size_t>(name.size(), 5);
        !binder.has(name) && name.ends_with(".bias") && binder.has(name.substr(0, n)))
      name.resize(n);
    mix.push_back(t.role == MixTensor::PRODUCT ? binder.matrix(name, t.rows, t.cols)
                  : t.role == MixTensor::TAPS  ? binder.taps(name, t.rows, t.cols)
                  : t.role == MixTensor::DECAY ? binder.decay(name, t.rows, t.cols, names.log_decay)
                  : t.role == MixTensor::VECTOR ? binder.vector(name, t.cols)
                                                : binder.values(name, t.rows, t.cols));
  }
  return mix;
}

// Binds the tensors of multi-head latent attention.
void bind_latent(Binder& binder, const Config& c, const TensorNames& names,
                 const std::string& prefix, LayerWeights* layer) {
  const LatentConfig& l = c.latent;
  const int64_t q_rows = int64_t(c.n_heads) * l.query_dim();
  const auto name = [&](const char* rest) { return prefix + rest; };
  if (l.q_rank > 0) {
    layer->wq_a = binder.matrix(name(names.wq_a), l.q_rank, c.dim);
    layer->q_a_norm = binder.vector(name(names.q_a_norm), l.q_rank);
    layer->wq = binder.matrix(name(names.wq_b), q_rows, l.q_rank);
  } else {
    layer->wq = binder.matrix(name(names.wq), q_rows, c.dim);
  }
  layer->wkv_a = binder.matrix(name(names.wkv_a), l.kv_rank + l.rope_dim, c.dim);
  layer->wv.rows = l.kv_rank;
  layer->wk.rows = l.rope_dim;
  take_rows(layer->wkv_a, {&layer->wv, &layer->wk});
  layer->kv_a_norm = binder.vector(name(names.kv_a_norm), l.kv_rank);
  if (!names.k_b || (names.wkv_b && binder.has(name(names.wkv_b)))) {
    binder.split_heads(name(names.wkv_b), c.n_heads, l.nope_dim, l.value_dim, l.kv_rank,
                       &layer->k_b, &layer->v_b);
  } else {
    layer->k_b = binder.stack(name(names.k_b), c.n_heads, l.kv_rank, l.nope_dim);
    layer->v_b = binder.stack(name(names.v_b), c.n_heads, l.value_dim, l.kv_rank);
  }
  layer->wo = binder.matrix(name(names.wo), c.dim, int64_t(c.n_heads) * l.value_dim);
}

// Binds layer l of c. prefix: the beginning of its tensors' names.
LayerWeights bind_layer(Binder& binder, const Config& c, int l, const TensorNames& names,
                        const std::string& prefix) {
  const auto name = [&](const char* rest) { return prefix + rest; };
  const auto norm = [&](const char* rest, int64_t cols) {
    return binder.vector(name(rest), cols, names.norm_offset);
  };
  const int64_t q_rows = c.q_width(l), kv_rows = c.kv_width(l), head_dim = c.head_size(l),
                ffn = c.ffn_width(l);
  const bool own_kv = c.layers[l].kv_source < 0;
  LayerWeights layer;
  const bool mixes = c.layers[l].mixer != Mixer::NONE, has_ffn = c.layers[l].has_ffn;
  if (c.pre_norm && mixes) layer.attn_norm = norm(names.attn_norm, c.dim);
  if (c.pre_norm && has_ffn)
    layer.ffn_norm = c.parallel_ffn ? layer.attn_norm : norm(names.ffn_norm, c.dim);
  if (c.post_norm) {
    layer.post_attn_norm = norm(names.post_attn_norm, c.dim);
    layer.post_ffn_norm = norm(names.post_ffn_norm, c.dim);
  }
  if (c.attends(l) && c.latent) {
    bind_latent(binder, c, names, prefix, &layer);
  } else if (c.attends(l)) {
    if (!own_kv) {
      layer.wq = binder.matrix(name(names.wq), q_rows, c.dim);
      for (const char* rest : {names.wk, names.wv, names.k_norm})  // some files keep them, unused
        binder.ignore(name(rest));
    } else if (c.layers[l].value_is_key) {
      layer.wq = binder.matrix(name(names.wq), q_rows, c.dim);
      layer.wv = layer.wk = binder.matrix(name(names.wk), kv_rows, c.dim);
    } else {
      layer.wqkv = binder.parts(name(names.wqkv),
                                {{&layer.wq, name(names.wq), c.query_gate ? 2 * q_rows : q_rows},
                                 {&layer.wk, name(names.wk), kv_rows},
                                 {&layer.wv, name(names.wv), kv_rows}},
                                c.dim);
      if (!names.fused_in_gguf) layer.wqkv = {};
    }
    layer.wo = binder.matrix(name(names.wo), c.dim, q_rows);
  } else if (c.recurs(l)) {
    layer.mix = bind_mix(binder, c, names, prefix);
    layer.wo = binder.matrix(name(names.mix_out), c.dim, recurrent_out(c));
  }
  if (c.attention_gate && c.attends(l))
    layer.wgate =
        binder.matrix(name(names.wgate), c.head_gate ? int64_t{c.heads(l)} : q_rows, c.dim);
  const bool experts = has_ffn && c.layers[l].has_experts;
  if (experts) bind_experts(binder, c, names, prefix, &layer);
  if (experts && c.experts.next_to_ffn) {
    layer.router_norm = norm(names.router_norm, c.dim);
    layer.expert_norm = norm(names.expert_norm, c.dim);
    layer.ffn_out_norm = norm(names.ffn_out_norm, c.dim);
    layer.expert_out_norm = norm(names.expert_out_norm, c.dim);
    layer.expert_scales = binder.vector(name(names.expert_scales), c.experts.n);
  }
  if (has_ffn && (!experts || c.experts.next_to_ffn)) {
    if (!c.gated_ffn()) layer.w3 = binder.matrix(name(names.w3), ffn, c.dim);
    else
      layer.w13 =
          binder.parts(name(names.w13),
                       {{&layer.w1, name(names.w1), ffn}, {&layer.w3, name(names.w3), ffn}}, c.dim);
    if (!names.fused_in_gguf) layer.w13 = {};
    layer.w2 = binder.matrix(name(names.w2), c.dim, ffn);
  }
  if (const int64_t width = c.layer_embedding_dim; width > 0) {
    layer.embedding_gate = binder.matrix(name(names.embedding_gate), width, c.dim);
    layer.embedding_out = binder.matrix(name(names.embedding_out), c.dim, width);
    layer.embedding_norm = norm(names.embedding_norm, c.dim);
  }
  if (c.activation == Activation::XIELU && has_ffn)
    layer.xielu = names.xielu_eps ? binder.xielu(prefix, names) : binder.xielu(c.layers[l].xielu);
  if (c.qk_norm != QkNorm::NONE && c.attends(l)) {
    const bool whole = c.qk_norm == QkNorm::WHOLE;
    const int64_t q_width = whole ? q_rows : head_dim, k_width = whole ? kv_rows : head_dim;
    layer.q_norm =
        names.q_norm ? norm(names.q_norm, q_width) : binder.constant(q_width, c.q_norm_weight);
    if (own_kv)
      layer.k_norm = names.k_norm ? norm(names.k_norm, k_width) : binder.constant(k_width, 1);
  }
  if (c.value_norm && c.attends(l) && own_kv) layer.v_norm = binder.constant(head_dim, 1);
  if (names.output_scale && binder.has(name(names.output_scale)))
    layer.output_scale = binder.values(name(names.output_scale), 1, 1);
  if (c.qkv_bias && c.attends(l)) {
    layer.bq = binder.vector(name(names.bq), q_rows);
    layer.bk = binder.vector(name(names.bk), kv_rows);
    layer.bv = binder.vector(name(names.bv), kv_rows);
  }
  if (c.o_bias && c.attends(l)) layer.bo = binder.vector(name(names.bo), c.dim);
  if (c.sinks && c.attends(l)) layer.sinks = binder.vector(name(names.sinks), c.heads(l));
  if (c.mlp_bias && has_ffn && !c.layers[l].has_experts) {
    layer.b1 = binder.vector(name(names.b1), ffn);
    layer.b3 = binder.vector(name(names.b3), ffn);
    layer.b2 = binder.vector(name(names.b2), c.dim);
  }
  return layer;
}

// Binds the per-layer embeddings.
void bind_layer_embedding(Binder& binder, const Config& c, const TensorNames& names, Weights* w) {
  const int64_t width = c.layer_embedding_dim, all = width * c.n_layers;
  w->layer_embedding = binder.table(names.layer_embedding, c.vocab_size, all, width);
  w->layer_projection = binder.matrix(names.layer_projection, all, c.dim);
  w->layer_projection_norm = binder.vector(names.layer_projection_norm, width, names.norm_offset);
  take_layer_projections(*w);
}

// Binds the MTP layer, if the file has one and the family's is known.
void bind_draft(Binder& binder, const Config& c, const TensorNames& names, Weights* w) {
  const std::string prefix = format(names.drafts, c.n_layers);
  if (!names.draft_proj || !binder.has(prefix + names.draft_proj)) return;
  DraftWeights& draft = w->draft;
  const auto norm = [&](const char* name) {
    return binder.vector(prefix + name, c.dim, names.norm_offset);
  };
  draft.proj = binder.matrix(prefix + names.draft_proj, c.dim, 2 * int64_t{c.dim});
  draft.embed_norm = norm(names.draft_embed_norm);
  draft.hidden_norm = norm(names.draft_hidden_norm);
  draft.final_norm =
      binder.has(prefix + names.draft_final_norm) ? norm(names.draft_final_norm) : w->final_norm;
  const auto table = [&](const char* name, const Tensor& usual) {
    return name && binder.has(prefix + name) ? binder.matrix(prefix + name, c.vocab_size, c.dim)
                                             : usual;
  };
  draft.embedding = table(names.draft_embedding, w->embedding);
  draft.output = table(names.draft_output, w->output);
  draft.layer = bind_layer(binder, draft_config(c), 0, names, prefix + names.draft_layer);
}

}  // namespace

void bind_weights(ModelParts& model, const Config& c, const TensorTable& table,
                  const TensorNames& names, const std::string& where,
                  const LoadProgress& progress) {
  Binder binder(model, table, where);
  Weights& w = model.weights;
  w.embedding = binder.matrix(names.embedding, c.vocab_size, c.dim);
  if (c.embedding_norm) w.embedding_norm = binder.constant(c.dim, 1);
  for (int l = 0; l < c.n_layers; ++l)
    w.layers.push_back(bind_layer(binder, c, l, names, format(names.layer, l)));
  if (c.layer_embedding_dim > 0) bind_layer_embedding(binder, c, names, &w);
  const bool other = names.final_norm_too && !binder.has(names.final_norm);
  w.final_norm = binder.vector(other ? names.final_norm_too : names.final_norm, c.dim,
                               names.final_norm_offset ? names.norm_offset : 0);
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
  // Ollama's converter keeps the part that reads images, and MTP layers by their names in folders.
  if (model.format == "gguf")
    for (const char* prefix : {"v.", "mm.", "mtp."}) binder.ignore_prefix(prefix);
  if (c.n_draft_layers == 1) bind_draft(binder, c, names, &w);
  for (int l = c.n_layers; l < c.n_layers + c.n_draft_layers; ++l) {
    const std::string prefix = format(names.drafts, l);
    // In GGUF a layer that the file wrongly counts as an MTP layer would be left out unseen.
    if (names.draft_mark && !has_prefix(table, prefix + names.draft_mark))
      bad_model(where, format("tensors %s%s*", prefix.c_str(), names.draft_mark), "none",
                format("some, since the last %d of %d layers are said to be MTP layers",
                       c.n_draft_layers, c.n_layers + c.n_draft_layers));
    binder.ignore_prefix(prefix);
  }
  binder.refuse_the_rest();
  binder.report(progress);
}

}  // namespace riffle
