// A prompt on the device: the memory that its operations need, its layers' KV and attention.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_source.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/running_memory.h"
#include "kernels/common/agreed.h"
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/prefill/prefill.h"
#include "util/error.h"

namespace riffle::cuda {

class CudaDevice::CudaPrompt : public Prompt {
 public:
  CudaPrompt(CudaDevice& device, const PromptRequest& request);
  ~CudaPrompt() override;

  void check(const Selector& selector) override;
  Buffer allocate(size_t bytes) override {
    return device_.kv_.prompt_memory().take(bytes, "a prompt's activations");
  }
  float* rows(int64_t first, int64_t n, bool fresh, int64_t next) override {
    const DeviceScope on = device_.enter();
    return device_.prompt_rows_.rows(first, n, fresh, next);
  }
  void begin_layer(int layer) override;
  void append(float* k, const float* v, int64_t n, int64_t pos0) override;
  bool expands_latents(int64_t n) const override {
    return n >= kExpandedRows && device_.prompt_.expanded.size() > 0 &&
           device_.device_.limits.compute >= 80;
  }
  void attend(const PromptAttention& args) override;
  void recur(float* in, int64_t n, int64_t pos0, float* out) override;
  void fill_from(const AttentionSource& source, int64_t pos0, int64_t n) override;
  void finish_layer() override;
  TileCounts tiles() const override { return counts_; }
  uint64_t held() const override { return device_.kv_.prefill_held(); }
  void commit(const Marks& marks) override {
    device_.kv_.commit_prompt(*request_.sequence, request_.n_total, marks);
  }

 private:
  void take_memory();
  void end();
  void unpack(const PromptAttention& args, FlashPrefill& flash);
  void choose(const PromptAttention& args, FlashPrefill& flash);
  void attend_expanded(const PromptAttention& args);

  CudaDevice& device_;
  const Config& config_;
  PromptRequest request_;
  int kv_size() const { return device_.kv_.layout(at_).block_size; }  // tokens of a block
  int at_ = 0;                                                        // the current layer
  // KV in 8 bits: the layer whose KV is unpacked, and how far.
  int unpacked_layer_ = -1;
  int64_t unpacked_tokens_ = 0;
  // The layer whose expanded heads have keys and values, and for how many tokens.
  int expanded_layer_ = -1;
  int64_t expanded_tokens_ = 0;
  int64_t means_ = 0;  // key tiles of the current layer whose means are computed
  TileCounts counts_;  // set when the prompt's last layer is finished
};

std::unique_ptr<Prompt> CudaDevice::begin_prompt(const PromptRequest& request) {
  return std::make_unique<CudaPrompt>(*this, request);
}

CudaDevice::CudaPrompt::CudaPrompt(CudaDevice& device, const PromptRequest& request)
    : device_(device), config_(device.config_), request_(request) {
  const DeviceScope on = device_.enter();
  device_.kv_.begin_prompt(request.n_total);
  try {
    if (request.n > 0) take_memory();
    device_.kv_.begin_states(*request.sequence, request.n_total);
  } catch (...) {
    end();
    throw;
  }
}

CudaDevice::CudaPrompt::~CudaPrompt() { end(); }

// Takes all memory that the prompt's operations will need, so that none is allocated while it is
// read.
void CudaDevice::CudaPrompt::take_memory() {
  const BackendOptions& options = device_.options_;
  DeviceArena& memory = device_.kv_.prompt_memory();
  device_.prompt_rows_.begin(memory, request_.n, config_.dim, request_.chunk, options.rows_on_host,
                             options.options.pin);
  PromptSizes sizes;
  sizes.n = request_.n;
  sizes.n_total = request_.n_total;
  sizes.chunk = request_.chunk;
  sizes.scored = std::min(kScoreRows, request_.n);
  sizes.rows_on_host = options.rows_on_host;
  sizes.experts_on_host = options.host_expert_layers > 0;
  for (const PromptBuffer& b : prompt_buffers(device_.model_, options, sizes))
    if (b.of) b.of(device_.prompt_) = memory.take(b.bytes, b.what);
  if (options.chooses_tiles())
    cuda::check(cudaMemsetAsync(device_.prompt_.tile_counts.data(), 0, 2 * sizeof(uint64_t),
                                device_.compute_),
                "clearing counts of tiles");
}

// Throws nothing: if the device is lost, so are its blocks.
void CudaDevice::CudaPrompt::end() {
  try {
    const DeviceScope on = device_.enter();
    device_.prompt_ = {};
    device_.prompt_rows_.end();
    device_.kv_.end_prompt();
  } catch (const Error&) {  // the device is lost: the next operation reports it
  }
}

void CudaDevice::CudaPrompt::check(const Selector& selector) {
  if (!step_selections().make(*selector.rule())->needs_device() && !device_.kv_.must_pin())
    return;  // the host can take over
  const DeviceScope on = device_.enter();
  device_.kv_.try_pinning(*request_.sequence);
  device_.require_device_residency(selector);
}

void CudaDevice::CudaPrompt::begin_layer(int layer) {
  at_ = layer;
  means_ = 0;
  layer_ = device_.kv_.prefill_layer(*request_.sequence, layer, request_.n_total);
}

void CudaDevice::CudaPrompt::append(float* k, const float* v, int64_t n, int64_t pos0) {
  const DeviceScope on = device_.enter();
  const int rope = config_.layers[at_].rope;
  if (device_.kv_.shape().layout(at_).values_in_keys) v = nullptr;
  cuda::check(
      rope_append_prefill(k, v, n, config_.kv_width(at_), config_.kv_heads(at_),
                          device_.cos_sin_[rope].as<float>(), pos0, device_.rope_pairs(rope),
                          layer_.base, layer_.n_blocks, device_.kv_.layout(at_),
                          device_.key_centre(at_), device_.compute_,
                          device_.rotated_norm(device_.model_.weights.layers[at_].k_norm)),
      "appending KV");
}

// Unpacks the layer's blocks in 8 bits to f16, as prompts' attention reads them, except those that
// earlier chunks, or earlier layers with the same KV, have unpacked.
void CudaDevice::CudaPrompt::unpack(const PromptAttention& a, FlashPrefill& f) {
  const int64_t size = f.layout.block_size, end = a.pos0 + a.n;
  const int source = device_.kv_.shape().source(at_);
  UnpackQ8 args;
  args.blocks = layer_.base;
  args.n_blocks = layer_.n_blocks;
  args.first = unpacked_layer_ == source ? unpacked_tokens_ / size : 0;
  args.last = (end + size - 1) / size;
  args.n_kv_heads = config_.kv_heads(at_);
  args.layout = f.layout;
  args.out = device_.prompt_.kv_f16.as<std::byte>();
  if (unpacked_layer_ != source || unpacked_tokens_ < end) {
    cuda::check(unpack_q8(args, device_.compute_), "unpacking KV");
    unpacked_layer_ = source;
    unpacked_tokens_ = end;
  }
  f.blocks = args.out;
  f.layout.type = KvType::F16;
  const int64_t keys = size * kv_row_bytes(KvType::F16, f.layout.head_dim);
  const bool in_keys = device_.kv_.shape().layout(at_).values_in_keys;
  f.layout.value_offset = in_keys ? 0 : keys;
  f.layout.block_bytes = in_keys ? keys : 2 * keys;
}

// Computes the mean keys of the key tiles that have become complete, then chooses the key tiles
// that the queries read. Means are those of stored keys, so they do not depend on chunks.
void CudaDevice::CudaPrompt::choose(const PromptAttention& a, FlashPrefill& f) {
  TileMeans means;
  means.blocks = f.blocks;
  means.n_blocks = f.n_blocks;
  means.first = means_;
  means.last = means_ = (a.pos0 + a.n) / kKeyTile;
  means.stride = request_.n_total / kKeyTile + 1;
  means.n_kv_heads = f.n_kv_heads;
  means.layout = f.layout;
  means.out = device_.prompt_.means.data();
  cuda::check(tile_means(means, device_.compute_), "averaging tiles of keys");
  f.tiles = device_.prompt_.tiles.as<uint64_t>();
  f.tile_words = tile_words(request_.n_total);
  ChooseTiles args;
  args.means = means.out;
  args.stride = means.stride;
  args.whole_begin = a.whole_begin;
  args.whole_end = a.whole_end;
  args.share = a.share;
  args.tiles = device_.prompt_.tiles.as<uint64_t>();
  args.counts = device_.prompt_.tile_counts.as<unsigned long long>();
  cuda::check(choose_tiles(f, args, device_.device_.limits, device_.compute_),
              "choosing tiles of keys");
}

// Attention with each head's own keys and values. They are computed from the layer's latents, for
// as many heads at a time as there is memory for. If that is all of them, they are kept for later
// chunks.
void CudaDevice::CudaPrompt::attend_expanded(const PromptAttention& a) {
  const ExpandedShape shape = expanded_shape(config_, kv_size(), request_.n_total);
  const LatentConfig& l = config_.latent;
  const LayerWeights& w = device_.model_.weights.layers[at_];
  PromptBuffers& buffers = device_.prompt_;
  const int n_heads = config_.heads(at_), d = shape.head_dim;
  const bool new_layer = expanded_layer_ != at_;
  if (new_layer) {
    LatentMatrices m;
    m.k_b = device_.weights_.heads(w.k_b), m.v_b = device_.weights_.heads(w.v_b);
    m.n_heads = n_heads, m.nope_dim = l.nope_dim, m.value_dim = l.value_dim;
    m.out = buffers.latent_matrices.data();
    cuda::check(latent_matrices(m, device_.compute_), "arranging the matrices of latents");
    expanded_layer_ = at_;
    expanded_tokens_ = 0;
  }
  // FlashPrefill divides scores by the root of head_dim, but the model's scale is for kLatentDim.
  const float scale = std::sqrt(static_cast<float>(d) / static_cast<float>(kLatentDim));
  LatentQueries q;
  q.raw = a.raw, q.q = a.q, q.n = a.n, q.ldq = a.ldq, q.n_heads = n_heads;
  q.nope_dim = l.nope_dim, q.head_dim = d;
  q.scale = scale * l.query_scale;
  q.out = buffers.latent_queries.as<float>();
  cuda::check(latent_queries(q, device_.compute_), "arranging queries");
  const bool whole = shape.heads == n_heads, same = l.value_dim == d;
  FlashPrefill f;
  f.n = a.n;
  f.ldq = int64_t{n_heads} * d;
  f.pos0 = a.pos0;
  f.window = a.window;
  f.blocks = buffers.expanded.as<std::byte>();
  f.n_blocks = shape.n_blocks;
  f.layout.block_size = kv_size();
  f.layout.head_dim = d;
  f.layout.value_offset = kv_size() * kv_row_bytes(KvType::F16, d);
  f.layout.block_bytes = 2 * f.layout.value_offset;
  f.ldo = f.ldq;
  for (int head = 0; head < n_heads; head += shape.heads) {
    ExpandLatents e;
    e.latents = layer_.base;
    e.matrices = buffers.latent_matrices.as<uint16_t>() +
                 int64_t{head} * (l.nope_dim + l.value_dim) * kLatentValueDim;
    e.first = whole ? expanded_tokens_ : 0, e.last = a.pos0 + a.n;
    e.n_heads = std::min(shape.heads, n_heads - head);
    e.nope_dim = l.nope_dim, e.value_dim = l.value_dim, e.head_dim = d;
    e.block_size = kv_size(), e.n_blocks = shape.n_blocks;
    e.out = buffers.expanded.data();
    cuda::check(expand_latents(e, device_.device_.limits, device_.compute_),
                "computing keys and values from latents");
    f.q = q.out + int64_t{head} * d;
    f.n_heads = f.n_kv_heads = e.n_heads;
    f.out = (same ? a.values : a.out) + int64_t{head} * d;
    cuda::check(flash_prefill(f, device_.device_.limits, device_.compute_),
                "computing a prompt's attention");
  }
  if (whole) expanded_tokens_ = a.pos0 + a.n;
  if (same) return;
  const size_t row = l.value_dim * sizeof(float);
  cuda::check(cudaMemcpy2DAsync(a.values, row, a.out, d * sizeof(float), row, a.n * n_heads,
                                cudaMemcpyDeviceToDevice, device_.compute_),
              "moving attended values");
}

void CudaDevice::CudaPrompt::attend(const PromptAttention& a) {
  const DeviceScope on = device_.enter();
  if (a.raw) return attend_expanded(a);
  FlashPrefill f;
  f.q = a.q;
  f.n = a.n;
  f.ldq = a.ldq;
  f.pos0 = a.pos0;
  f.window = a.window;
  f.n_heads = config_.heads(at_);
  f.n_kv_heads = config_.kv_heads(at_);
  f.blocks = layer_.base;
  f.n_blocks = layer_.n_blocks;
  f.layout = device_.kv_.layout(at_);
  if (f.layout.type == KvType::Q8) unpack(a, f);
  f.sinks = device_.sinks(at_);
  f.out = a.out;
  f.ldo = a.ldo;
  if (a.share > 0) choose(a, f);
  cuda::check(flash_prefill(f, device_.device_.limits, device_.compute_),
              "computing a prompt's attention");
  device_.restore_values(at_, a.out, a.n);
}

void CudaDevice::CudaPrompt::finish_layer() {
  device_.kv_.finish_layer(*request_.sequence, at_, request_.n_total);
  if (!device_.options_.chooses_tiles() || at_ + 1 < config_.n_layers || request_.n == 0) return;
  const DeviceScope on = device_.enter();
  uint64_t counts[2];
  cuda::check(cudaMemcpyAsync(counts, device_.prompt_.tile_counts.data(), sizeof counts,
                              cudaMemcpyDeviceToHost, device_.compute_),
              "reading counts of tiles");
  device_.compute_.wait("reading counts of tiles");
  counts_ = {counts[0], counts[1]};
}

// Computes the rows, and copies the states at checkpoints among them to the host store. The states
// at the prompt's end follow when it is committed.
void CudaDevice::CudaPrompt::recur(float* in, int64_t n, int64_t pos0, float* out) {
  const DeviceScope on = device_.enter();
  SequenceKv& s = *request_.sequence;
  CudaKv& kv = device_.kv_;
  const RecurrentShape shape = device_.shape_of_recurrent(at_);
  const int64_t in_width = recurrent_in(config_), out_width = recurrent_out(config_);
  float* const next = kv.next_state(s, at_);
  RecurKeep keeps[kMostRecurKeeps];
  const StateAt* states[kMostRecurKeeps];
  auto state = s.next_states.begin();
  while (state != s.next_states.end() && state->n_tokens <= pos0) ++state;
  for (int64_t first = pos0, end; first < pos0 + n; first = end) {
    RecurPrompt args;
    args.keeps = keeps;
    end = pos0 + n;
    for (; state != s.next_states.end() && state->n_tokens < end; ++state) {
      if (args.n_keeps == kMostRecurKeeps) {
        end = state->n_tokens;
        break;
      }
      keeps[args.n_keeps] = {state->n_tokens - first, device_.prompt_.kept.as<float>() +
                                                          args.n_keeps * recurrent_state(config_)};
      states[args.n_keeps++] = &*state;
    }
    args.to = next;
    args.from = first == s.n_tokens ? kv.state(s, at_) : next;
    args.in = in + (first - pos0) * in_width;
    args.n = end - first;
    args.out = out + (first - pos0) * out_width;
    args.scratch = device_.prompt_.recurrent.data();
    const auto run = [&](const auto& of) {
      return riffle::cuda::recur_prompt(of, args, device_.compute_);
    };
    cuda::check(std::visit(run, shape), "computing a recurrent layer");
    for (int i = 0; i < args.n_keeps; ++i) kv.keep_state(at_, *states[i], keeps[i].to);
    if (state == s.next_states.end() || state->n_tokens != end || end == request_.n_total) continue;
    kv.keep_state(at_, *state++, next);
  }
}

void CudaDevice::CudaPrompt::fill_from(const AttentionSource& source, int64_t pos0, int64_t n) {
  const DeviceScope on = device_.enter();
  cuda::check(source.on_device()->keys(at_, pos0, n, config_.kv_heads(at_), layer_.base,
                                       layer_.n_blocks, device_.kv_.layout(at_), device_.compute_),
              "writing keys");
}

}  // namespace riffle::cuda
