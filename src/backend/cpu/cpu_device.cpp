#include "backend/cpu/cpu_device.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/common/hadamard.h"
#include "kernels/common/softplus.h"
#include "util/error.h"

namespace riffle {

static_assert(int(cpu::KvType::F16) == int(KvKind::F16) &&
              int(cpu::KvType::F32) == int(KvKind::F32) && int(cpu::KvType::Q8) == int(KvKind::Q8));
static_assert(int(cpu::DigestKind::Mean) == int(BlockDigest::MEAN) &&
              int(cpu::DigestKind::Quest) == int(BlockDigest::QUEST) &&
              int(cpu::DigestKind::CuboidMean) == int(BlockDigest::CUBOID_MEAN));

CpuDevice::CpuDevice(const Model& model, const BackendOptions& options, ThreadPool* threads)
    : model_(model),
      config_(model.config),
      kernels_(options.kernels),
      arithmetic_(options.host_arithmetic()),
      threads_(threads),
      state_shape_(state_shape(model.config, options)),
      store_(kv_shape(config_, options), kernels_, threads, make_system_slabs(), true,
             options.options.host_mem),
      products_(kernels_, options.layout.type == cpu::KvType::F32, threads),
      experts_(config_, &products_, threads),
      chooses_tiles_(options.chooses_tiles()),
      thread_scratch_(threads->size()) {
  kv_ = !options.has_pool ? make_in_place(&store_)
        : grants_slots(options.options)
            ? make_pooled(&store_, threads, options.slots, options.evict(),
                          options.options.pool_per_layer)
            : make_emulated(&store_, threads, options.slots);
}

void CpuDevice::add_index(const Selector& selector, SequenceKv& s) {
  const KvShape& shape = store_.shape();
  const int full = static_cast<int>(s.n_tokens / shape.block_size());
  const auto take_in = [&](int64_t i, int) {
    const int layer = shape.layer_of(i), head = static_cast<int>(i - shape.first_head(layer));
    if (!shape.selects(layer)) return;
    s.selection->add_blocks(layer, head, full, s.heads[i].blocks.data());
  };
  if (selector.fits(s.selection.get())) {
    // Memory may have run out when a block became full: the state takes in the missing blocks now,
    // before anything is changed.
    for (size_t i = 0; s.selection && i < s.heads.size(); ++i) take_in(i, 0);
    return;
  }
  s.selection = selector.make_state(state_shape_);
  threads_->parallel_for(s.heads.size(), take_in);
}

void CpuDevice::embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) {
  threads_->parallel_for(n, [&](int64_t i, int) {
    float* row = x + i * table.cols;
    kernels_->linear.dequant_row(table.type, table.data, table.cols, tokens[i], row);
    if (const float scale = config_.stream_scale(); scale != 1)
      for (int64_t j = 0; j < table.cols; ++j) row[j] *= scale;
  });
}

// Elementwise operations on few rows cost less than waking the threads.
static constexpr int64_t kRowsPerItem = 16;

void CpuDevice::rmsnorm(const float* x, const Tensor& weight, int64_t n, float eps, float* out) {
  const int64_t dim = weight.cols;
  const auto* w = static_cast<const float*>(weight.data);
  threads_->parallel_for((n + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t i, int) {
    const int64_t first = i * kRowsPerItem;
    kernels_->linear.rmsnorm(x + first * dim, w, std::min(kRowsPerItem, n - first), dim, eps,
                             out + first * dim);
  });
}

void CpuDevice::subtract_means(const float* x, int64_t n, int64_t dim, float* out) {
  for_rows(threads_, n, [&](int64_t i) {
    const float* const row = x + i * dim;
    double sum = 0;
    for (int64_t j = 0; j < dim; ++j) sum += row[j];
    const auto mean = static_cast<float>(sum / static_cast<double>(dim));
    for (int64_t j = 0; j < dim; ++j) out[i * dim + j] = row[j] - mean;
  });
}

// Returns rows of the residual stream, normalised if there is a norm.
const float* CpuDevice::normed(const Tensor* norm, const float* x, int64_t n) {
  if (!norm || !norm->data) return x;
  normed_.reserve(n * norm->cols * sizeof(float));
  auto* const out = normed_.as<float>();
  if (config_.layer_norm) subtract_means(x, n, norm->cols, out);
  rmsnorm(config_.layer_norm ? out : x, *norm, n, config_.stream_eps(), out);
  return out;
}

void CpuDevice::norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) {
  rmsnorm(x, weight, n * n_heads, config_.norm_eps, x);
}

void CpuDevice::norm_rows(const float* x, int64_t n, const Tensor& weight, float* out,
                          int64_t ldo) {
  const auto* w = static_cast<const float*>(weight.data);
  threads_->parallel_for((n + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item, int) {
    for (int64_t i = item * kRowsPerItem; i < std::min(n, (item + 1) * kRowsPerItem); ++i)
      kernels_->linear.rmsnorm(x + i * weight.cols, w, 1, weight.cols, config_.norm_eps,
                               out + i * ldo);
  });
}

void CpuDevice::sigmoid_gate(float* x, const float* gate, int64_t count) {
  for_values(threads_, count, [&](int64_t first, int64_t n) {
    kernels_->linear.sigmoid_gate(x + first, gate + first, n);
  });
}

void CpuDevice::softplus_gate(float* x, const float* gate, int64_t n, int64_t width) {
  for_values(threads_, n, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const float factor = softplus(gate[i]);
      for (int64_t j = i * width; j < (i + 1) * width; ++j) x[j] *= factor;
    }
  });
}

void CpuDevice::softcap(float* x, int64_t count, float cap) {
  for_values(threads_, count,
             [&](int64_t first, int64_t n) { kernels_->linear.softcap(x + first, n, cap); });
}

void CpuDevice::scale(float* x, int64_t count, float factor) {
  for_values(threads_, count, [&](int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i) x[i] *= factor;
  });
}

void CpuDevice::add(float* x, const float* y, int64_t count) {
  for_values(threads_, count,
             [&](int64_t first, int64_t n) { kernels_->linear.add(x + first, y + first, n); });
}

void CpuDevice::rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) {
  if (n <= rope_positions_) return;
  cos_sin_.resize(frequencies.size());
  const auto row = [&](size_t t) { return config_.rope_head(config_.ropes[t]); };
  for (size_t t = 0; t < cos_sin_.size(); ++t) cos_sin_[t].resize(n * row(t));
  const int64_t first = rope_positions_;
  threads_->parallel_for(n - first, [&](int64_t i, int) {
    for (size_t t = 0; t < cos_sin_.size(); ++t)
      frequencies[t].row(first + i, cos_sin_[t].data() + (first + i) * row(t));
  });
  rope_positions_ = n;
}

void CpuDevice::rotate(float* x, int64_t n, int64_t ld, int n_heads, const int32_t* pos, int rope) {
  const Rope& r = config_.ropes[rope];
  const int d = config_.rope_head(r);
  const RopePairs pairs = {config_.rope_interleaved, r.rotated > 0 ? r.rotated : d};
  if (r.skipped > 0)
    return for_rows(threads_, n, [&](int64_t i) {
      for (int h = 0; h < n_heads; ++h)
        kernels_->linear.rope(x + i * ld + int64_t(h) * (r.skipped + d) + r.skipped, 1, d, 1, d,
                              cos_sin_[rope].data(), pos + i, pairs);
    });
  threads_->parallel_for((n + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t i, int) {
    const int64_t first = i * kRowsPerItem;
    kernels_->linear.rope(x + first * ld, std::min(kRowsPerItem, n - first), ld, n_heads, d,
                          cos_sin_[rope].data(), pos + first, pairs);
  });
}

// Normalises n_heads heads of each row, if there is a norm.
void CpuDevice::norm_rotated(float* x, int64_t n, int64_t ld, int n_heads, const Tensor* norm) {
  if (!norm || !norm->data) return;
  const auto* w = static_cast<const float*>(norm->data);
  threads_->parallel_for((n + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item, int) {
    for (int64_t i = item * kRowsPerItem; i < std::min(n, (item + 1) * kRowsPerItem); ++i)
      kernels_->linear.rmsnorm(x + i * ld, w, n_heads, norm->cols, config_.norm_eps, x + i * ld);
  });
}

void CpuDevice::rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope,
                     const Tensor* norm) {
  if (static_cast<int64_t>(positions_.size()) < n) positions_.resize(n);
  std::iota(positions_.begin(), positions_.begin() + n, static_cast<int32_t>(pos0));
  rotate(x, n, ld, n_heads, positions_.data(), rope);
  norm_rotated(x, n, ld, n_heads, norm);
  if (!store_.shape().layout(0).transforms_keys()) return;  // all layers have the same type
  const int d = config_.rope_head(config_.ropes[rope]) + config_.ropes[rope].skipped;
  threads_->parallel_for(n, [&](int64_t i, int) { transform(x + i * ld, n_heads, d); });
}

void CpuDevice::shift_keys(float* k, int64_t n, std::span<const float> centre, float sign) {
  for (int64_t i = 0; i < n; ++i, k += centre.size())
    for (size_t j = 0; j < centre.size(); ++j) k[j] += sign * centre[j];
}

void CpuDevice::transform(float* heads, int n_heads, int d) {
  for (int h = 0; h < n_heads; ++h) hadamard(heads + int64_t(h) * d, d);
}

void CpuDevice::restore_values(int layer, float* out, int64_t n, int64_t ldo) {
  const BlockLayout layout = store_.shape().layout(layer);
  if (!layout.values_in_keys || !layout.transforms_keys()) return;
  threads_->parallel_for(n, [&](int64_t i, int) {
    transform(out + i * ldo, config_.n_heads, layout.head_dim);  // it is its own inverse
  });
}

void CpuDevice::split_heads(const float* both, int64_t n, int n_heads, int d, float* q,
                            float* gate) {
  threads_->parallel_for(n, [&](int64_t row, int) {
    for (int64_t i = row * n_heads; i < (row + 1) * n_heads; ++i) {
      std::copy_n(both + 2 * i * d, d, q + i * d);
      std::copy_n(both + (2 * i + 1) * d, d, gate + i * d);
    }
  });
}

void CpuDevice::linear(const Linear& args) {
  const float* x = normed(args.norm, args.x, args.n);
  const auto add_biases = [&] {
    for (int o = 0; o < args.n_outs; ++o) products_.add_bias(args.outs[o], args.n);
  };
  if (!args.add) {
    products_.multiply({args.outs, static_cast<size_t>(args.n_outs)}, x, args.n, args.phase);
    return add_biases();
  }
  for (int o = 0; o < args.n_outs; ++o) {
    LinearOut out = args.outs[o];
    product_.reserve(args.n * out.weight->rows * sizeof(float));
    float* y = std::exchange(out.y, product_.as<float>());
    const int64_t ldy = std::exchange(out.ldy, out.weight->rows);
    products_.multiply({&out, 1}, x, args.n, args.phase);
    if (args.post_norm && args.post_norm->data) {
      products_.add_bias(out, args.n);
      rmsnorm(out.y, *args.post_norm, args.n, config_.post_norm_eps, out.y);
    }
    if (ldy == out.ldy) add(y, out.y, args.n * ldy);
    else
      for (int64_t i = 0; i < args.n; ++i) add(y + i * ldy, out.y + i * out.ldy, out.ldy);
  }
  if (!args.post_norm || !args.post_norm->data) add_biases();
}

void CpuDevice::append(float* k, const float* v, int64_t n, int64_t pos0, const LayerKv& kv,
                       int layer) {
  const int heads = config_.kv_heads(layer), rope = config_.layers[layer].rope;
  if (!kv.unrotated) {
    this->rope(k, n, config_.kv_width(layer), heads, pos0, rope,
               rotated_norm(model_.weights.layers[layer].k_norm));
    shift_keys(k, n, key_centre(layer), -1);
  } else if (config_.rope_interleaved) {  // position 0 only changes the order of the pairs
    positions_.assign(std::max<size_t>(positions_.size(), n), 0);
    rotate(k, n, config_.kv_width(layer), heads, positions_.data(), rope);
  }
  store_prefill(layer, k, v, n, pos0, kv);
}

void CpuDevice::fill_from(const AttentionSource& source, int layer, int64_t pos0, int64_t n,
                          const LayerKv& kv) {
  const int heads = config_.kv_heads(layer), d = config_.head_size(layer);
  constexpr int64_t kRows = 4096;
  sourced_k_.reserve(kRows * heads * d * sizeof(float));
  sourced_v_.reserve(kRows * heads * d * sizeof(float));
  for (int64_t first = 0; first < n; first += kRows) {
    const int64_t rows = std::min(kRows, n - first);
    source.keys(layer, pos0 + first, rows, heads, d, store_.shape().block_size(),
                sourced_k_.as<float>(), sourced_v_.as<float>());
    store_prefill(layer, sourced_k_.as<float>(), sourced_v_.as<float>(), rows, pos0 + first, kv);
  }
}

void CpuDevice::store_prefill(int layer, const float* k, const float* v, int64_t n, int64_t pos0,
                              const LayerKv& kv) {
  const BlockLayout layout = store_.shape().layout(layer);
  const int heads = config_.kv_heads(layer), d = layout.head_dim;
  for_rows(threads_, n, [&](int64_t i) {
    for (int h = 0; h < heads; ++h) {
      std::byte* block = kv.blocks[h * kv.n_blocks + (pos0 + i) / layout.block_size];
      std::byte* row = block + (pos0 + i) % layout.block_size * layout.row_bytes();
      kernels_->attention.kv_store(k + (i * heads + h) * d, d, layout.type, row);
      if (!layout.values_in_keys)
        kernels_->attention.kv_store(v + (i * heads + h) * d, d, layout.type,
                                     row + layout.value_offset());
    }
  });
}

// The operations of a prompt; the residual stream is the prompt's own.
class CpuDevice::CpuPrompt : public Prompt {
 public:
  CpuPrompt(CpuDevice& device, const PromptRequest& request)
      : device_(device),
        request_(request),
        rows_(size_t(request.n) * device.config_.dim * sizeof(float)) {}

  Buffer allocate(size_t bytes) override { return Buffer(bytes); }
  float* rows(int64_t first, int64_t, bool, int64_t) override {
    return rows_.as<float>() + first * device_.config_.dim;
  }
  void begin_layer(int layer) override {
    at_ = layer;
    const KvShape& shape = device_.store_.shape();
    // Later layers attend to this layer, so the keys of the whole prompt are held, not only a
    // chunk's.
    const bool read_later = request_.all_rows && shape.is_source(shape.source(layer));
    layer_ = device_.kv_->prefill_layer(
        *request_.sequence, layer, request_.n_total,
        read_later ? std::max(request_.chunk, request_.n) : request_.chunk);
    layer_.unrotated = request_.sequence->unrotated;
    means_.n = 0;
    means_.most = request_.n_total / kKeyTile;
  }
  void append(float* k, const float* v, int64_t n, int64_t pos0) override {
    device_.append(k, v, n, pos0, layer_, at_);
  }
  void attend(const PromptAttention& args) override {
    device_.attend_prefill({args, request_.sequence, at_, layer_, &means_, &counts_});
  }
  void recur(float* in, int64_t n, int64_t pos0, float* out) override {
    device_.recur_prompt(at_, *request_.sequence, in, n, pos0, out);
  }
  void fill_from(const AttentionSource& source, int64_t pos0, int64_t n) override {
    device_.fill_from(source, at_, pos0, n, layer_);
  }
  void finish_layer() override {
    device_.kv_->finish_layer(*request_.sequence, at_, request_.n_total);
  }
  TileCounts tiles() const override { return counts_; }
  uint64_t held() const override { return device_.kv_->prefill_held(); }
  void commit(const Marks& marks) override {
    device_.kv_->commit_prompt(*request_.sequence, request_.n_total, marks);
  }

 private:
  CpuDevice& device_;
  PromptRequest request_;
  int at_ = 0;  // the current layer
  Buffer rows_;
  TileMeans means_;
  TileCounts counts_;
};

class CpuDevice::CpuStep : public Step {
 public:
  explicit CpuStep(CpuDevice& device) : device_(device) {}
  void run(const std::function<void()>& operations, int32_t* tokens) override {
    operations();
    device_.end_step(tokens);
  }
  void embed(const Tensor& table, float* x) override {
    device_.embed(table, device_.step_.tokens, device_.step_.n, x);
  }
  void add_layer_embedding(int layer, float* x) override {
    device_.add_layer_embedding(layer, device_.step_.tokens, device_.step_.n, x, Phase::Decode);
  }
  void append(int layer, float* q, float* k, const float* v) override {
    device_.append_step(layer, q, k, v);
  }
  void attend(int layer, const float* q, float* out) override {
    device_.attend_step(layer, q, out);
  }
  void recur(int layer, float* in, float* out) override { device_.recur_step(layer, in, out); }

 private:
  CpuDevice& device_;
};

std::unique_ptr<Prompt> CpuDevice::begin_prompt(const PromptRequest& request) {
  return std::make_unique<CpuPrompt>(*this, request);
}

std::unique_ptr<Step> CpuDevice::begin_step(const StepRequest& step) {
  auto under_way = std::make_unique<CpuStep>(*this);
  step_ = step;
  stepping_.clear();
  for (int64_t i = 0; i < step.n; ++i)
    if (step.ahead_of(i) == 0) stepping_.push_back(step.sequences[i]);
  kv_->activate(stepping_.data(), stepping_.size(), step.row_slots);
  positions_.resize(std::max<size_t>(positions_.size(), step.n));
  for (int64_t i = 0; i < step.n; ++i)
    positions_[i] = step.sequences[i]->unrotated ? 0 : static_cast<int32_t>(step.position(i));
  for (int64_t i = 0; i < step.n; ++i)
    store_.begin_working_set(*step.sequences[i], step.working_set);
  return under_way;
}

void CpuDevice::end_step(int32_t* tokens) {
  for (int64_t i = 0; step_.samples && i < step_.n; ++i)
    if (step_.samples[i].allowed) step_.find_mask(i);
  if (step_.samples) std::fill_n(tokens, step_.n, kNotSampled);
  std::swap(logits_, next_logits_);
}

void CpuDevice::append_step(int layer, float* q, float* k, const float* v) {
  const BlockLayout layout = store_.shape().layout(layer);
  const int heads = config_.kv_heads(layer), q_heads = config_.heads(layer), d = layout.head_dim;
  const LayerWeights& w = model_.weights.layers[layer];
  rotate(q, step_.n, int64_t(q_heads) * d, q_heads, positions_.data(), config_.query_rope(layer));
  if (k)
    rotate(k, step_.n, int64_t(heads) * d, heads, positions_.data(), config_.layers[layer].rope);
  norm_rotated(q, step_.n, int64_t(q_heads) * d, q_heads, rotated_norm(w.q_norm));
  if (k) norm_rotated(k, step_.n, int64_t(heads) * d, heads, rotated_norm(w.k_norm));
  for (int64_t i = 0; layout.transforms_keys() && i < step_.n; ++i) {
    if (step_.sequences[i]->unrotated) continue;  // keys are rotated when they are read
    transform(q + i * q_heads * d, q_heads, d);
    if (!k) continue;
    transform(k + i * heads * d, heads, d);
    shift_keys(k + i * heads * d, 1, key_centre(layer), -1);
  }
  if (step_.attention) {
    sourced_k_.reserve(step_.n * heads * d * sizeof(float));
    sourced_v_.reserve(step_.n * heads * d * sizeof(float));
    const bool own = k;
    k = own ? sourced_k_.as<float>() : nullptr;
    v = sourced_v_.as<float>();
    for (int64_t i = 0; i < step_.n; ++i) {
      const int64_t at = i * heads * d;
      const auto position = static_cast<int32_t>(step_.position(i));
      if (own)
        step_.attention->keys(layer, position, 1, heads, d, layout.block_size, k + at,
                              sourced_v_.as<float>() + at);
      step_.attention->query(store_.shape().source(layer), position, q_heads, heads, d,
                             q + i * q_heads * d);
    }
  }
  for (int64_t i = 0; k && i < step_.n; ++i)
    for (int h = 0; h < heads; ++h) {
      std::byte* row = kv_->tail(*step_.sequences[i], layer, h) +
                       step_.position(i) % layout.block_size * layout.row_bytes();
      kernels_->attention.kv_store(k + (i * heads + h) * d, d, layout.type, row);
      if (!layout.values_in_keys)
        kernels_->attention.kv_store(v + (i * heads + h) * d, d, layout.type,
                                     row + layout.value_offset());
    }
}

void CpuDevice::attend_prefill(const PrefillAttention& a) {
  if (a.kv.unrotated) attend_prefill_list(a);
  else if (a.share > 0) attend_prefill_tiles(a);
  else attend_prefill_dense(a);
  restore_values(a.layer, a.out, a.n, a.ldo);
  if (!a.last || !a.sequence->selection || !store_.shape().selects(a.layer)) return;
  const int d = config_.head_size(a.layer), heads = config_.kv_heads(a.layer),
            g = config_.heads(a.layer) / heads;
  threads_->parallel_for(heads, [&](int64_t h, int) {
    PromptEnd end;
    end.layer = a.layer;
    end.head = static_cast<int>(h);
    end.q = a.q + h * g * d;
    end.stride = a.ldq;
    end.n = static_cast<int>(a.n);
    end.pos0 = a.pos0;
    end.begin = a.sequence->n_tokens;
    end.blocks = a.kv.blocks + h * a.kv.n_blocks;
    a.sequence->selection->end_prompt(end);
  });
}

// Returns the sinks of the query heads of one KV head; null: none.
const float* CpuDevice::sinks(int layer, int head) const {
  if (!config_.sinks) return nullptr;
  return static_cast<const float*>(model_.weights.layers[layer].sinks.data) +
         head * (config_.heads(layer) / config_.kv_heads(layer));
}

void CpuDevice::attend_prefill_dense(const PrefillAttention& a) {
  const BlockLayout layout = store_.shape().layout(a.layer);
  const int d = layout.head_dim, heads = config_.kv_heads(a.layer),
            g = config_.heads(a.layer) / heads;
  const int tile = kernels_->attention.prefill_tile(g, d);
  const size_t scratch = kernels_->attention.prefill_scratch_bytes(tile, g, d, layout.block_size);
  for (Buffer& b : thread_scratch_) b.reserve(scratch);
  const int64_t tiles = (a.n + tile - 1) / tile;
  threads_->parallel_for(tiles * heads, [&](int64_t item, int thread) {
    const int h = static_cast<int>(item % heads);
    const int64_t i0 =
        (tiles - 1 - item / heads) * tile;  // the longest first, so that the threads end together
    const int n_q = static_cast<int>(std::min<int64_t>(tile, a.n - i0));
    kernels_->attention.attend_prefill(
        a.q + i0 * a.ldq + h * g * d, a.ldq, n_q, g, d, a.pos0 + i0, a.window, nullptr,
        reinterpret_cast<const void* const*>(a.kv.blocks + h * a.kv.n_blocks), layout.block_size,
        layout.type, static_cast<int64_t>(layout.value_offset()), sinks(a.layer, h),
        a.out + i0 * a.ldo + h * g * d, a.ldo, thread_scratch_[thread].data());
  });
}

std::unique_ptr<Device> make_cpu_device(const Model& model, const BackendOptions& options,
                                        ThreadPool* threads) {
  return std::make_unique<CpuDevice>(model, options, threads);
}

}  // namespace riffle
