// Construction and the operations that prompts and steps share; cuda_prompt.cpp and cuda_step.cpp
// have the others.
#include "backend/cuda/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cuda/draft_memory.h"
#include "backend/cuda/running_memory.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/sample/sample.h"
#include "util/error.h"

namespace riffle::cuda {

static constexpr int64_t kEmbedRows = 1024;

static_assert(cuda::kWindows == riffle::kWindows);
static_assert(Linear::kMaxOuts <= kGemvMaxOuts);
static_assert(int(KvType::F16) == int(KvKind::F16) && int(KvType::F32) == int(KvKind::F32) &&
              int(KvType::Q8) == int(KvKind::Q8));
static_assert(int(DigestKind::CuboidMean) == int(BlockDigest::CUBOID_MEAN));

static LoadProgress upload_progress(const ContextOptions& o) {
  if (!o.progress) return {};
  return [progress = o.progress, user = o.progress_user](double done, double total) {
    const riffle_progress p{RIFFLE_PHASE_UPLOAD, done, total};
    return progress(user, &p);
  };
}

CudaDevice::CudaDevice(const Model& model, const BackendOptions& options, ThreadPool* threads,
                       const DeviceInfo& device)
    : model_(model),
      config_(model.config),
      options_(options),
      threads_(threads),
      host_kernels_(options.kernels),
      device_(device),
      overlap_(device.limits.compute >= 90),
      heap_(options.options.gpu_mem),
      cublas_(heap_, compute_),
      weights_(model, heap_, compute_, threads, options.host_expert_layers,
               upload_progress(options.options)),
      slabs_(new PinnedSlabs(device.ordinal, pinning_of(device, options.options.pin))),
      store_(kv_shape(config_, options), host_kernels_, threads,
             std::unique_ptr<SlabSource>(slabs_), false, options.options.host_mem),
      kv_(config_, device_, &heap_, &compute_, &store_, slabs_, options),
      host_driven_(make_host_driven(config_, device_, &heap_, &compute_, &kv_)),
      prompt_rows_(&compute_),
      step_memory_(&heap_, &compute_),
      logits_(&step_memory_, &compute_, config_.vocab_size),
      sampling_(&step_memory_, &compute_, config_.vocab_size, drawable_ids(model)),
      graphs_(&compute_),
      profile_(&compute_),
      layer_kinds_(layer_kinds(config_, kv_.shape())),
      cpu_products_(host_kernels_, options.layout.type == cpu::KvType::F32, threads),
      cpu_experts_(config_, &cpu_products_, threads) {
  kv_.set_replay([this](const StepSequence& sequence) { replay_states(sequence); });
}

std::string CudaDevice::arithmetic() const {
  if (options_.host_expert_layers == 0) return detail();
  // Leaves out the number of layers: the name stands for the bits of prompts, which run on the
  // device, except for their experts in chunks of a few tokens.
  return device_.name + ", experts " + options_.host_arithmetic();
}

CudaDevice::~CudaDevice() {
  cudaStreamSynchronize(compute_);
  cudaGetLastError();
}

void CudaDevice::read(const float* src, int64_t n, float* host) {
  const DeviceScope on = enter();
  check(cudaMemcpyAsync(host, src, n * sizeof(float), cudaMemcpyDeviceToHost, compute_),
        "reading results");
  compute_.wait("reading results");
}

void CudaDevice::copy(const float* src, int64_t n, float* to) {
  const DeviceScope on = enter();
  check(cudaMemcpyAsync(to, src, n * sizeof(float), cudaMemcpyDeviceToDevice, compute_),
        "copying rows");
}

void CudaDevice::set_key_centres(std::vector<std::vector<float>> centres) {
  const DeviceScope on = enter();
  std::vector<float> all;
  key_centre_at_.clear();
  for (const std::vector<float>& centre : centres) {
    key_centre_at_.push_back(centre.empty() ? -1 : static_cast<int64_t>(all.size()));
    all.insert(all.end(), centre.begin(), centre.end());
  }
  if (all.empty()) return;
  const size_t bytes = all.size() * sizeof(float);
  grow(key_centres_, bytes, "centres of keys");
  check(cudaMemcpyAsync(key_centres_.data(), all.data(), bytes, cudaMemcpyHostToDevice, compute_),
        "copying centres of keys");
  compute_.wait("copying centres of keys");
}

void CudaDevice::rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) {
  if (n <= rope_positions_) return;
  const DeviceScope on = enter();
  // Allocates once all that the context may ever need, since moving the table would invalidate
  // recorded steps.
  const int64_t room = std::max<int64_t>(n, options_.options.n_ctx);
  cos_sin_.resize(frequencies.size());
  for (size_t t = 0; t < cos_sin_.size(); ++t) {
    const size_t bytes = room * rope_row(config_, config_.ropes[t]) * sizeof(float);
    if (cos_sin_[t].size() >= bytes) continue;
    rope_positions_ = 0;
    grow(cos_sin_[t], bytes, "the RoPE table");
  }
  std::vector<float> table;
  // Fills whole spans, so that steps after a prompt seldom need more.
  constexpr int64_t kSpan = 4096, kAtOnce = 16 * kSpan;
  const int64_t last = std::min(room, (n + kSpan - 1) / kSpan * kSpan);
  while (rope_positions_ < last) {
    const int64_t first = rope_positions_, count = std::min(kAtOnce, last - first);
    for (size_t t = 0; t < cos_sin_.size(); ++t) {
      const Rope& rope = config_.ropes[t];
      const size_t whole = config_.rope_head(rope), row = rope_row(config_, rope);
      table.resize(count * whole);
      threads_->parallel_for(
          count, [&](int64_t i, int) { frequencies[t].row(first + i, table.data() + i * whole); });
      check(cudaMemcpy2DAsync(cos_sin_[t].as<float>() + first * row, row * sizeof(float),
                              table.data(), whole * sizeof(float), row * sizeof(float), count,
                              cudaMemcpyHostToDevice, compute_),
            "filling the RoPE table");
      compute_.wait("filling the RoPE table");
    }
    rope_positions_ = first + count;
  }
}

// ---- products

// Each group of rows reads the weights once. A row's bits do not depend on its group.
void CudaDevice::gemv_rows(const Gemv& all, int64_t n) {
  for (int64_t first = 0; first < n; first += kGemvMaxRows) {
    Gemv part = all;
    part.x = all.x + first * all.ldx;
    part.n = static_cast<int>(std::min<int64_t>(kGemvMaxRows, n - first));
    part.overlap = overlap_;
    for (int o = 0; o < all.n_outs; ++o) part.y[o] = all.y[o] + first * all.ldy[o];
    check(gemv(part, compute_), "multiplying by weights");
  }
}

void CudaDevice::multiply(const Matrix& w, const void* a, WType type, int64_t n, void* c,
                          int64_t ldc, WType c_type, bool add) {
  if (w.type == type)
    return cublas_.product(a, w.data, type, n, w.rows, w.cols, c, ldc, c_type, add);
  const int64_t tile = unpacked_rows(w.rows, w.cols, type);
  grow(prompt_.unpacked, tile * w.cols * size_of(type), "dequantised weights");
  for (int64_t first = 0; first < w.rows; first += tile) {
    const int64_t rows = std::min(tile, w.rows - first);
    check(dequantize(w, first, rows, prompt_.unpacked.data(), type, compute_),
          "dequantising weights");
    cublas_.product(a, prompt_.unpacked.data(), type, n, rows, w.cols,
                    static_cast<std::byte*>(c) + first * size_of(c_type), ldc, c_type, add);
  }
}

// Sets the rows of the residual stream that gemv multiplies, and the norm that it applies to them
// first (null: none). gemv's norms do not subtract the mean, so such norms are computed here.
void CudaDevice::set_rows(Gemv& g, const float* x, const float* norm, int64_t n) {
  g.x = x;
  g.ldx = g.w[0].cols;
  g.norm = norm;
  g.eps = config_.stream_eps();
  if (!norm || !config_.layer_norm) return;
  reserve_rows(n);
  normalise(x, norm, n, g.ldx, buffers_.normed.data(), WType::F32);
  g.x = buffers_.normed.as<float>();
  g.norm = nullptr;
}

// Writes normalised rows of the residual stream x to out.
void CudaDevice::normalise(const float* x, const float* norm, int64_t n, int64_t cols, void* out,
                           WType type) {
  check(rmsnorm(x, norm, n, cols, config_.stream_eps(), out, type, compute_, 0, config_.layer_norm),
        "normalising");
}

void CudaDevice::linear(const Linear& args) {
  const DeviceScope on = enter();
  const int64_t cols = args.outs[0].weight->cols;
  const float* norm = args.norm && args.norm->data ? weights_.vector(*args.norm) : nullptr;
  const bool post_norm = args.post_norm && args.post_norm->data;
  if (args.phase == Phase::Decode || args.n <= kFewRows) {
    Gemv g;
    g.n_outs = args.n_outs;
    g.then = args.add && !post_norm ? Then::Add : Then::Store;
    for (int o = 0; o < args.n_outs; ++o) {
      g.w[o] = weights_.matrix(*args.outs[o].weight);
      g.y[o] = args.outs[o].y;
      g.ldy[o] = args.outs[o].ldy;
    }
    set_rows(g, args.x, norm, args.n);
    const int64_t rows = args.outs[0].weight->rows;
    if (post_norm) {
      reserve_rows(args.n);
      g.y[0] = buffers_.products.as<float>();
      g.ldy[0] = rows;
    }
    gemv_rows(g, args.n);
    if (post_norm) add_normed(args.outs[0], buffers_.products, args.n, *args.post_norm);
    else
      for (int o = 0; o < args.n_outs; ++o) add_bias(args.outs[o], args.n);
    return profile_.mark(Part::Linear);
  }
  WType prepared = WType::Q8_0;  // nothing yet
  for (int o = 0; o < args.n_outs; ++o) {
    const WType type = operand_type(options_.layout.type, args.outs[o].weight->type);
    if (type != prepared) {
      make_operand(args.x, norm, args.n, cols, type);
      prepared = type;
    }
    const LinearOut& out = args.outs[o];
    float* y = post_norm ? prompt_.products.as<float>() : out.y;
    multiply(weights_.matrix(*out.weight), prompt_.operand.data(), type, args.n, y, out.ldy,
             WType::F32, args.add && !post_norm);
    if (post_norm) add_normed(out, prompt_.products, args.n, *args.post_norm);
    else add_bias(out, args.n);
  }
}

// prompt_.operand: rows of x, normalised if there is a norm, as prefill's products take them.
void CudaDevice::make_operand(const float* x, const float* norm, int64_t n, int64_t cols,
                              WType type) {
  grow(prompt_.operand, n * cols * size_of(type), "a prefill chunk");
  if (norm) return normalise(x, norm, n, cols, prompt_.operand.data(), type);
  check(convert(x, n * cols, prompt_.operand.data(), type, compute_), "making an operand");
}

// out.y += norm(rows + bias).
void CudaDevice::add_normed(const LinearOut& out, const Buffer& rows, int64_t n,
                            const Tensor& norm) {
  check(add_rmsnorm(out.y, rows.as<float>(), out.bias ? weights_.bias(*out.bias) : nullptr,
                    weights_.vector(norm), n, out.weight->rows, config_.post_norm_eps, compute_),
        "normalising");
}

void CudaDevice::norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) {
  const DeviceScope on = enter();
  const float* w = weights_.vector(weight);
  constexpr int64_t kHead = 512;  // the widest row that one warp normalises
  check(weight.cols <= kHead
            ? riffle::cuda::norm_heads(x, n * n_heads, w, static_cast<int>(weight.cols),
                                       config_.norm_eps, compute_)
            : rmsnorm(x, w, n * n_heads, weight.cols, config_.norm_eps, x, WType::F32, compute_),
        "normalising heads");
}

void CudaDevice::split_heads(const float* both, int64_t n, int n_heads, int d, float* q,
                             float* gate) {
  const DeviceScope on = enter();
  check(riffle::cuda::split_heads(both, n, n_heads, d, q, gate, compute_),
        "separating queries from their gates");
}

void CudaDevice::norm_rows(const float* x, int64_t n, const Tensor& weight, float* out,
                           int64_t ldo) {
  const DeviceScope on = enter();
  check(rmsnorm(x, weights_.vector(weight), n, weight.cols, config_.norm_eps, out, WType::F32,
                compute_, ldo),
        "normalising rows");
}

void CudaDevice::sigmoid_gate(float* x, const float* gate, int64_t count) {
  const DeviceScope on = enter();
  check(riffle::cuda::sigmoid_gate(x, gate, count, compute_), "gating attention's output");
}

void CudaDevice::softplus_gate(float* x, const float* gate, int64_t n, int64_t width) {
  const DeviceScope on = enter();
  check(riffle::cuda::softplus_gate(x, gate, n, width, compute_), "gating attention's output");
}

void CudaDevice::softcap(float* x, int64_t count, float cap) {
  const DeviceScope on = enter();
  check(riffle::cuda::softcap(x, count, cap, compute_), "capping logits");
}

void CudaDevice::scale(float* x, int64_t count, float factor) {
  const DeviceScope on = enter();
  check(riffle::cuda::scale(x, count, factor, compute_), "scaling a layer's output");
}

void CudaDevice::add_bias(const LinearOut& out, int64_t n) {
  if (!out.bias || !out.bias->data) return;
  check(riffle::cuda::add_bias(out.y, n, out.ldy, out.weight->rows, weights_.vector(*out.bias),
                               compute_),
        "adding a bias");
}

// ---- prefill

// Writes n rows of a table that is in host memory, or one of the `parts` parts of each row, times a
// factor.
void CudaDevice::table_rows(const Tensor& table, const int32_t* tokens, int64_t n, int part,
                            int parts, float factor, float* out) {
  const int64_t width = table.cols / parts;
  threads_->parallel_for(n, [&](int64_t i, int) {
    const auto decode = [&](const void* data, int64_t row) {
      float* const x = out + i * width;
      host_kernels_->linear.dequant_row(table.type, data, width, row * parts + part, x);
      for (int64_t j = 0; factor != 1 && j < width; ++j) x[j] *= factor;
    };
    if (table.data) return decode(table.data, tokens[i]);
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(table.type, table.cols)));
    table.source->row(table, tokens[i], row.data());
    decode(row.data(), 0);
  });
}

void CudaDevice::embedding_rows(const Tensor& table, const int32_t* tokens, int64_t n, float* out) {
  table_rows(table, tokens, n, 0, 1, config_.stream_scale(), out);
}

// Returns pinned memory for values that are about to be copied to the device. Once the copy is
// enqueued, the caller calls end_staging.
std::byte* CudaDevice::begin_staging(size_t bytes) {
  for (Buffer& b : staging_)
    if (b.size() < bytes) {
      if (b.size() > 0) compute_.wait("embedding");
      b = pinned(bytes, "staging for the embedding");
    }
  check(cudaEventSynchronize(staged_[staging_turn_]), "embedding");
  return staging_[staging_turn_].as<std::byte>();
}

void CudaDevice::end_staging() {
  staged_[staging_turn_].record(compute_);
  staging_turn_ ^= 1;
}

void CudaDevice::embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) {
  const DeviceScope on = enter();
  const int64_t batch = std::min(n, kEmbedRows);
  for (int64_t first = 0; first < n; first += batch) {
    const int64_t rows = std::min(batch, n - first);
    if (first >= 2 * batch) ++event_waits_;
    auto* const rows_here =
        reinterpret_cast<float*>(begin_staging(batch * table.cols * sizeof(float)));
    embedding_rows(table, tokens + first, rows, rows_here);
    check(cudaMemcpyAsync(x + first * table.cols, rows_here, rows * table.cols * sizeof(float),
                          cudaMemcpyHostToDevice, compute_),
          "embedding");
    end_staging();
  }
}

RopePairs CudaDevice::rope_pairs(int rope) const {
  return riffle::cuda::rope_pairs(config_, config_.ropes[rope]);
}

void CudaDevice::rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope,
                      const Tensor* norm) {
  const DeviceScope on = enter();
  const Rope& r = config_.ropes[rope];
  check(riffle::cuda::rope(x, n, ld, n_heads, config_.rope_head(r) + r.skipped,
                           cos_sin_[rope].as<float>(), pos0, rope_pairs(rope),
                           options_.layout.transforms_keys(), compute_,
                           norm ? rotated_norm(*norm) : HeadNorm()),
        "rotating queries");
}

// Returns the key centres of a layer, or null if it has none.
const float* CudaDevice::key_centre(int layer) const {
  if (key_centre_at_.empty() || key_centre_at_[layer] < 0) return nullptr;
  return key_centres_.as<float>() + key_centre_at_[layer];
}

// Returns the sinks of a layer's heads; null: none.
const float* CudaDevice::sinks(int layer) const {
  return config_.sinks ? weights_.bias(model_.weights.layers[layer].sinks) : nullptr;
}

bool CudaDevice::start_profile() {
  const DeviceScope on = enter();
  profile_.start();
  return true;
}

void CudaDevice::finish_profile(StepTiming& timing) { profile_.finish(timing); }

void CudaDevice::add_stats(Stats& s) const {
  s.host_syncs = compute_.waits() + kv_.waits() + event_waits_;
  s.device_bytes = heap_.used();
  s.peak_device_bytes = heap_.peak();
  s.pinned_bytes = slabs_->pinned_bytes();
}

}  // namespace riffle::cuda

namespace riffle {

static std::optional<cuda::DeviceInfo> usable(std::string& text) {
  auto device = cuda::find_device(text);
  if (device && !cuda::cublas_available(text)) device.reset();
  if (device) text = device->name;
  return device;
}

bool cuda_usable(std::string& text) { return usable(text).has_value(); }

bool cuda_integrated() {
  std::string why;
  const auto device = cuda::find_device(why);
  return device && device->integrated;
}

bool cuda_driver_missing() { return cuda::driver_version() == 0; }

// Tells whether the kernels run layers with this layout and `group` query heads per KV head.
static bool layer_supported(const BlockLayout& l, int group, const cuda::DeviceInfo& device,
                            std::string& text) {
  cuda::KvLayout layout = cuda::device_layout(l);
  const int d = l.head_dim;
  if (l.values_in_keys && d != cuda::kLatentDim) {
    text = format("latent attention has rows of %d values, expected %d on a GPU: use device cpu", d,
                  cuda::kLatentDim);
    return false;
  }
  if (!l.values_in_keys && d == cuda::kLatentDim) {
    text = format(
        "heads have %d values, which a GPU supports for latent attention only: use device "
        "cpu",
        d);
    return false;
  }
  const cuda::DeviceScope on(device.ordinal);
  const auto supported = [&] {
    return cuda::prefill_supported(layout) == cudaSuccess &&
           cuda::step_selections().supported(layout, group, device.limits) == cudaSuccess;
  };
  if (supported()) return true;
  // A smaller block may be the remedy.
  int fits = 0;
  for (int size : {16, 32, 64}) {
    layout.block_size = size;
    if (supported()) fits = size;
  }
  const char* type = l.type == cpu::KvType::F16 ? "f16" : l.type == cpu::KvType::F32 ? "f32" : "q8";
  text = fits ? format(
                    "blocks of %d %s tokens with head_dim %d do not fit the shared memory of %s: "
                    "at most %d tokens fit",
                    l.block_size, type, d, device.name.c_str(), fits)
              : format(
                    "the CUDA kernels do not support head_dim %d with blocks of %d %s tokens and "
                    "%d query "
                    "heads per KV head",
                    d, l.block_size, type, group);
  return false;
}

static bool shape_supported(const Config& c, const BlockLayout& l, const cuda::DeviceInfo& device,
                            std::string& text) {
  if (const int rank = c.latent.kv_rank; rank > cuda::kLatentValueDim) {
    text = format("latents have %d values, expected at most %d on a GPU: use device cpu", rank,
                  cuda::kLatentValueDim);
    return false;
  }
  int last = -1;  // the last layer with attention that was checked; one like it needs no check
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (c.recurs(layer)) {
      if (std::visit([](const auto& of) { return cuda::recurrent_supported(of); },
                     recurrent_shape(c)))
        continue;
      text = format(
          "layer %d is a %s with heads of %d x %d and %d taps, expected at most %d x %d and %d "
          "taps: use device cpu",
          layer, recurrence_info(c).name, c.recurrence.v_dim, c.recurrence.k_dim, c.recurrence.taps,
          kMostStateDim, kMostStateDim, kMostTaps);
      return false;
    }
    if (!c.attends(layer)) continue;
    BlockLayout of_layer = l;
    of_layer.head_dim = c.head_size(layer);
    const bool seen = last >= 0 && c.head_size(layer) == c.head_size(last) &&
                      c.kv_heads(layer) == c.kv_heads(last) && c.heads(layer) == c.heads(last);
    if (!seen && !layer_supported(of_layer, c.heads(layer) / c.kv_heads(layer), device, text))
      return false;
    last = layer;
  }
  return true;
}

bool cuda_shape_supported(const Config& c, const BlockLayout& l, std::string& text) {
  const auto device = cuda::find_device(text);
  std::string why;
  if (!device) return false;
  if (shape_supported(c, l, *device, why)) return true;
  text = why;
  return false;
}

bool cuda_chooses_tiles(const Config& config, std::string& text) {
  const auto device = cuda::find_device(text);
  if (!device) return false;
  if (const int d = config.widest_head(); d > cuda::kMaxNarrowDim) {
    text = format(
        "`prefill_selector` tiles needs heads of at most %d values on a GPU: found %d: use dense",
        cuda::kMaxNarrowDim, d);
    return false;
  }
  if (device->limits.compute >= 80) return true;
  text = format(
      "`prefill_selector` tiles needs a GPU of compute capability 8.0 or more: found %s, %d.%d",
      device->name.c_str(), device->limits.compute / 10, device->limits.compute % 10);
  return false;
}

// Throws if the host decides residency and its kernels lack the shape of the model's attention.
static void require_narrow(const Config& c, const ContextOptions& o) {
  const char* const host = why_host_residency(o);
  if (const std::string beyond = cuda::beyond_papers(c); host && !beyond.empty())
    fail(RIFFLE_UNSUPPORTED, "%s, expected that the GPU decides residency, since the model has %s",
         host, beyond.c_str());
}

DeviceNeeds plan_cuda(const Model& model, const BackendOptions& options) {
  std::string text;
  const auto device = cuda::find_device(text);
  if (!device) fail(RIFFLE_UNSUPPORTED, "device cuda: %s", text.c_str());
  const Config& c = model.config;
  const BlockLayout& l = options.layout;
  const ContextOptions& o = options.options;
  require_narrow(c, o);
  const Selection selection = options.selection();
  const auto step = cuda::step_selections().make(*make_selector(selection)->rule());
  DeviceNeeds needs;
  needs.free = device->free;
  needs.weights = cuda::device_bytes(model);
  if (c.experts.n > 0)
    for (const LayerWeights& l : model.weights.layers)
      needs.expert_bytes.push_back(cuda::expert_bytes(l));
  needs.expert_staging = cuda::expert_staging_bytes(model, l.type);
  needs.host_staging = cuda::weight_staging_bytes();
  needs.buffers = cuda::running_list(model, options);
  needs.prompt = cuda::prompt_list(model, options, false);
  needs.prompt_least = cuda::prompt_list(model, options, true);
  needs.lends = options.has_pool && !why_host_residency(o) && o.slots == 0;
  const KvShape shape = kv_shape(c, options);
  for (MemoryItem item :
       cuda::session_list(c, shape, digest_spec(selection), *step, options.rows_ahead, o.n_ctx)) {
    item.bytes = product({item.bytes, uint64_t(o.n_sessions)});
    needs.buffers.push_back(item);
  }
  if (options.drafts) {
    needs.weights += cuda::draft_bytes(model);
    const MemoryList drafts = cuda::draft_list(model, options);
    needs.buffers.insert(needs.buffers.end(), drafts.begin(), drafts.end());
  }
  add_to(needs.buffers, MemoryUse::PREFILL_KV, "KV of a layer",
         cuda::CudaKv::prefill_bytes(shape, o.n_ctx));
  if (!options.has_pool) return needs;
  needs.per_slot = shape.largest_block() + sizeof(unsigned long long) + sizeof(int32_t);
  // If the device decides, a step needs no slots (kernels/cuda/pool/pool.h), and the plan asks for
  // one for each row of a layer. If the host decides, each row needs the slots of one iteration.
  // The host has to take over if memory cannot be pinned. It can if layers are alike and its
  // kernels have the shape of the attention. Then a pool whose size riffle chooses is large enough
  // for that.
  needs.min_slots = c.most_kv_heads();
  if (why_host_residency(o) || (o.residency == ResidencyKind::AUTO && o.slots == 0 &&
                                shape.uneven().empty() && cuda::beyond_papers(c).empty()))
    needs.min_slots *= (row_slots(o.selection) + 1) * (o.pool_per_layer ? c.n_layers : 1);
  return needs;
}

std::unique_ptr<Device> make_cuda_device(const Model& model, const BackendOptions& options,
                                         ThreadPool* threads) {
  std::string text;
  const auto device = usable(text);
  if (!device) fail(RIFFLE_UNSUPPORTED, "device cuda: %s", text.c_str());
  if (!shape_supported(model.config, options.layout, *device, text))
    fail(RIFFLE_UNSUPPORTED, "device cuda: %s", text.c_str());
  require_narrow(model.config, options.options);
  const cuda::DeviceScope on(device->ordinal);
  return std::make_unique<cuda::CudaDevice>(model, options, threads, *device);
}

}  // namespace riffle
