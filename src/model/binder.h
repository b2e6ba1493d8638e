// Takes a file's tensors for a model's weights: checks each one's name, shape and type, and knows
// which tensors were not taken. Copies only vectors (norms, biases, sinks) and packed experts.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/packed_experts.h"
#include "kernels/common/half.h"
#include "kernels/cpu/linear/quants.h"
#include "model/weights.h"
#include "util/cpu_limits.h"
#include "util/error.h"
#include "util/mapped_file.h"
#include "util/read_ahead.h"
#include "util/thread_pool.h"

namespace riffle {

// Returns the text "F32, F16, ... or MXFP4".
inline std::string dtype_names() {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i)
    names += (i == 0 ? "" : i + 1 == kNumDTypes ? " or " : ", ") + std::string(kDTypes[i].name);
  return names;
}

inline float element(const RawTensor& raw, size_t i) {
  if (raw.type == DType::F32) return load_unaligned<float>(raw.data + 4 * i);
  const auto bits = load_unaligned<uint16_t>(raw.data + 2 * i);
  if (raw.type == DType::F16) return cpu::f16_to_f32(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return load_unaligned<float>(&wide);
}

// All values of a matrix are checked for NaN and infinity if it has at most this many: routers of
// experts, and matrices of small models. Larger ones are not read before they are used.
inline constexpr int64_t kMostChecked = 1 << 18;

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

  // Refuses a model that has one of the tensors and lacks the other. example: a layer's tensor;
  // name: the same of a later layer.
  void require_alike(const std::string& example, const std::string& name) const {
    if (has(example) != has(name))
      bad_model(where_, name, has(name) ? "a tensor" : "none",
                (has(name) ? "none, as " : "a tensor, as ") + example);
  }

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

}  // namespace riffle
