#include "backend/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "backend/cuda/split_rows.h"
#include "backend/cuda/tensor_source.h"
#include "kernels/cuda/layer/layer.h"
#include "util/error.h"

namespace riffle::cuda {

static constexpr size_t kStagingBytes = size_t(32) << 20;  // one of two buffers
uint64_t weight_staging_bytes() { return 2 * kStagingBytes; }

static uint64_t device_bytes(const Tensor& t, int64_t rows) {
  return static_cast<uint64_t>(matrix_bytes(t.type, rows, t.cols));
}
uint64_t device_bytes(const Tensor& t) { return device_bytes(t, t.rows); }

static constexpr Tensor ExpertWeights::*kOfExpert[] = {&ExpertWeights::w1, &ExpertWeights::w3,
                                                       &ExpertWeights::w2, &ExpertWeights::b1,
                                                       &ExpertWeights::b3, &ExpertWeights::b2};
static constexpr int kMatricesOfExpert = 3;  // the first of these
static bool has(const LayerWeights& l, Tensor ExpertWeights::*which) {
  return !l.experts.empty() && (l.experts[0].*which).rows > 0;
}
// Matrices of the heads (multi-head latent attention) lie in one, as experts do.
static constexpr std::vector<Tensor> LayerWeights::*kOfHeads[] = {&LayerWeights::k_b,
                                                                  &LayerWeights::v_b};
static uint64_t device_bytes_of_heads(const std::vector<Tensor>& heads) {
  return device_bytes(heads[0], heads[0].rows * static_cast<int64_t>(heads.size()));
}
static uint64_t device_bytes_of_experts(const LayerWeights& l, Tensor ExpertWeights::*which) {
  const Tensor& t = l.experts[0].*which;
  return device_bytes(t, t.rows * static_cast<int64_t>(l.experts.size()));
}

// Tells whether two tensors have the same elements in the same place.
static bool same_elements(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.source == b.source && a.seed == b.seed && a.type == b.type;
}

template <class F>
static void for_each_weight(const Weights& w, F&& f) {
  for (const LayerWeights& l : w.layers)
    for (const Tensor* t :
         {&l.wq_a, &l.wq, &l.wk, &l.wv, &l.wgate, &l.wo, &l.w1, &l.w3, &l.w2, &l.router,
          &l.shared.w1, &l.shared.w3, &l.shared.w2, &l.embedding_gate, &l.embedding_out})
      if (t->rows > 0) f(*t);
  for (const LayerWeights& l : w.layers)
    for (const Tensor& t : l.mix) f(t);
  for (const LayerWeights& l : w.layers)
    for (const Tensor* t : {&l.attn_norm,
                            &l.ffn_norm,
                            &l.post_attn_norm,
                            &l.post_ffn_norm,
                            &l.q_norm,
                            &l.k_norm,
                            &l.v_norm,
                            &l.q_a_norm,
                            &l.kv_a_norm,
                            &l.bq,
                            &l.bk,
                            &l.bv,
                            &l.bo,
                            &l.b1,
                            &l.b3,
                            &l.b2,
                            &l.router_bias,
                            &l.choice_bias,
                            &l.shared_gate,
                            &l.sinks,
                            &l.embedding_norm,
                            &l.router_norm,
                            &l.expert_norm,
                            &l.ffn_out_norm,
                            &l.expert_out_norm,
                            &l.expert_scales})
      if (t->data) f(*t);
  if (w.embedding_norm.data) f(w.embedding_norm);
  if (w.layer_projection.rows > 0) {
    f(w.layer_projection);
    f(w.layer_projection_norm);
    if (!same_elements(w.embedding, w.output)) f(w.embedding);
  }
  f(w.final_norm);
  f(w.output);
}

uint64_t device_bytes(const Model& model) {
  uint64_t sum = 0;
  for_each_weight(model.weights, [&](const Tensor& t) { sum += device_bytes(t); });
  for (const LayerWeights& l : model.weights.layers) {
    for (const auto which : kOfExpert)
      if (has(l, which)) sum += device_bytes_of_experts(l, which);
    for (const auto which : kOfHeads)
      if (!(l.*which).empty()) sum += device_bytes_of_heads(l.*which);
  }
  return sum;
}

uint64_t expert_bytes(const LayerWeights& layer) {
  uint64_t sum = 0;
  for (int i = 0; i < kMatricesOfExpert; ++i)
    if (has(layer, kOfExpert[i])) sum += device_bytes_of_experts(layer, kOfExpert[i]);
  return sum;
}

DeviceWeights::DeviceWeights(const Model& model, DeviceHeap& heap, const Stream& stream,
                             ThreadPool* threads, int host_expert_layers,
                             const LoadProgress& progress)
    : heap_(heap), stream_(stream), threads_(threads) {
  take_staging();
  for (const LayerWeights& l : model.weights.layers)
    if (has(l, &ExpertWeights::w1) && l.experts[0].w1.type != l.experts[0].w3.type)
      fail(RIFFLE_UNSUPPORTED,
           "the experts' gate and up matrices have types %s and %s, but a GPU needs one type; "
           "convert them with `weights`",
           dtype_info(l.experts[0].w1.type).name, dtype_info(l.experts[0].w3.type).name);
  double done = 0;
  const double total = static_cast<double>(device_bytes(model));
  const auto tell = [&](uint64_t bytes) {
    done += static_cast<double>(bytes);
    if (progress && !progress(done, total)) {
      stream_.wait("uploading the weights");
      fail(RIFFLE_ABORTED, "uploading the weights was cancelled");
    }
  };
  // Goes in the order of the file, so that pages are touched as they are read ahead.
  struct Item {
    const void* data;
    uint64_t bytes;
    std::function<void()> add;
  };
  std::vector<Item> items;
  for_each_weight(model.weights, [&](const Tensor& t) {
    items.push_back({t.data, device_bytes(t), [this, &t] { add(t); }});
  });
  const std::vector<LayerWeights>& layers = model.weights.layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& l = layers[i];
    for (const auto which : kOfExpert)
      if (has(l, which)) {
        const bool matrix = std::find(kOfExpert, kOfExpert + kMatricesOfExpert, which) !=
                            kOfExpert + kMatricesOfExpert;
        const bool on_host = matrix && i + host_expert_layers >= layers.size();
        items.push_back({(l.experts[0].*which).data, device_bytes_of_experts(l, which),
                         [this, &l, which, on_host] { add_experts(l, which, on_host); }});
      }
    for (const auto which : kOfHeads)
      if (const std::vector<Tensor>& heads = l.*which; !heads.empty())
        items.push_back(
            {heads[0].data, device_bytes_of_heads(heads), [this, &heads] { add_heads(heads); }});
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return std::less<>()(a.data, b.data); });
  for (const Item& item : items) {
    item.add();
    tell(item.bytes);
  }
  const Weights& w = model.weights;
  if (w.layer_projection.rows > 0 && same_elements(w.embedding, w.output))
    matrices_[&w.embedding] = matrix(w.output);
  end_upload();
}

void DeviceWeights::take_staging() {
  for (int i = 0; i < 2; ++i) {
    if (staging_[i].size() == 0) staging_[i] = pinned(kStagingBytes, "staging for the weights");
    if (!copied_[i]) copied_[i] = std::make_unique<Event>();
  }
}

void DeviceWeights::end_upload() {
  stream_.wait("uploading the weights");
  if (!on_host_.empty()) return;  // stage() still needs the staging buffers
  for (Buffer& b : staging_) b = Buffer();
}

// The output is there once if it is the model's.
template <class F>
static void for_each_of_drafts(const Weights& whole, const Weights& head, F&& f) {
  for_each_weight(head, [&](const Tensor& t) {
    if (&t != &head.output || !same_elements(t, whole.output)) f(t);
  });
  for (const Tensor* t : {&whole.draft.proj, &whole.draft.embed_norm, &whole.draft.hidden_norm})
    f(*t);
}

uint64_t draft_bytes(const Model& model) {
  const DraftWeights& draft = model.weights.draft;
  const auto& experts = draft.layer.experts;
  if (model.config.gated_ffn() && !experts.empty() && experts[0].w1.type != experts[0].w3.type)
    fail(
        RIFFLE_UNSUPPORTED,
        "the gate and up matrices of the MTP layer's experts have types %s and %s, but a GPU needs "
        "one type: set `draft` to off, or convert them with `weights`",
        dtype_info(experts[0].w1.type).name, dtype_info(experts[0].w3.type).name);
  Weights head;
  head.layers = {draft.layer};
  head.final_norm = draft.final_norm;
  head.output = draft.output;
  uint64_t sum = 0;
  for_each_of_drafts(model.weights, head, [&](const Tensor& t) { sum += device_bytes(t); });
  for (const auto which : kOfExpert)
    if (has(draft.layer, which)) sum += device_bytes_of_experts(draft.layer, which);
  return sum;
}

void DeviceWeights::add_drafts(const Weights& whole, const Weights& head) {
  take_staging();
  for_each_of_drafts(whole, head, [&](const Tensor& t) { add(t); });
  for (const LayerWeights& l : head.layers)
    for (const auto which : kOfExpert)
      if (has(l, which)) add_experts(l, which, false);
  if (same_elements(head.output, whole.output)) matrices_[&head.output] = matrix(whole.output);
  end_upload();
}

void DeviceWeights::add(const Tensor& t) {
  const Matrix m = place(t, t.rows);
  fill(t, m);
  matrices_[&t] = m;
}

void DeviceWeights::add_experts(const LayerWeights& layer, Tensor ExpertWeights::*which,
                                bool on_host) {
  const Tensor& first = layer.experts[0].*which;
  const auto n = static_cast<int64_t>(layer.experts.size());
  if (on_host) {
    matrices_[&first] = Matrix{first.type, n * first.rows, first.cols};
    on_host_.insert(&layer);
    return;
  }
  const Matrix m = place(first, n * first.rows);
  for (int64_t e = 0; e < n; ++e)
    fill(layer.experts[e].*which, rows_of(m, e * first.rows, first.rows));
  matrices_[&first] = m;
}

void DeviceWeights::add_heads(const std::vector<Tensor>& heads) {
  const Tensor& first = heads[0];
  const Matrix m = place(first, first.rows * static_cast<int64_t>(heads.size()));
  for (size_t h = 0; h < heads.size(); ++h)
    fill(heads[h], rows_of(m, static_cast<int64_t>(h) * first.rows, first.rows));
  matrices_[&first] = m;
}

void DeviceWeights::fill(const Tensor& t, const Matrix& m) {
  if (t.data) upload(t, m);
  else check(t.source->on_device()->fill(t, m, stream_), "generating weights");
}

// Takes memory for `rows` rows in a tensor's form.
Matrix DeviceWeights::place(const Tensor& t, int64_t rows) {
  Buffer buffer = heap_.take(device_bytes(t, rows), "the weights");
  const Matrix m = matrix_at(t.type, rows, t.cols, buffer.data());
  buffers_.push_back(std::move(buffer));
  return m;
}

// Copies items of several parts to the device, batch by batch: part p of item i is bytes[p] long
// and goes to device[p] + i * bytes[p]. fill(item, destination of each part) writes the parts, in
// pinned memory, for several items at a time.
template <class Fill>
void DeviceWeights::stream_in(int64_t n_items, const Parts<int64_t>& bytes,
                              const Parts<std::byte*>& device, Fill&& fill) {
  const auto fill_in = [&](int64_t first, int64_t n, const Parts<std::byte*>& to) {
    const int64_t tasks = std::min<int64_t>(n, threads_->size() * 4);
    threads_->parallel_for(tasks, [&](int64_t task, int) {
      for (int64_t i = n * task / tasks; i < n * (task + 1) / tasks; ++i) {
        Parts<std::byte*> item;
        for (size_t p = 0; p < item.size(); ++p) item[p] = to[p] + i * bytes[p];
        fill(first + i, item);
      }
    });
  };
  int64_t item_bytes = 0;
  for (const int64_t b : bytes) item_bytes += b;
  const int64_t batch = static_cast<int64_t>(kStagingBytes) / item_bytes;
  if (batch < 1)
    fail(RIFFLE_UNSUPPORTED, "weights of %lld bytes a row are too wide for the device",
         static_cast<long long>(item_bytes));
  for (int64_t first = 0; first < n_items; first += batch) {
    const int64_t n = std::min(batch, n_items - first);
    check(cudaEventSynchronize(*copied_[turn_]), "uploading the weights");
    Parts<std::byte*> staging;
    std::byte* at = staging_[turn_].as<std::byte>();
    for (size_t p = 0; p < staging.size(); ++p) staging[p] = at, at += n * bytes[p];
    fill_in(first, n, staging);
    for (size_t p = 0; p < staging.size(); ++p)
      if (bytes[p] > 0)
        check(cudaMemcpyAsync(device[p] + first * bytes[p], staging[p], n * bytes[p],
                              cudaMemcpyHostToDevice, stream_),
              "uploading the weights");
    copied_[turn_]->record(stream_);
    turn_ ^= 1;
  }
}

static std::byte* writable(const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); }

// source(i): row i in the file's form.
template <class Source>
void DeviceWeights::upload_rows(const Matrix& m, Source&& source) {
  const RowParts row = row_parts(m.type, m.cols);
  stream_in(m.rows, {row.data, row.scales, row.high, row.blocks},
            {writable(m.data), writable(m.scales), writable(m.high), writable(m.blocks)},
            [&](int64_t i, const Parts<std::byte*>& to) {
              if (is_quantised(m.type))
                split_row(m.type, m.cols, source(i), {to[0], to[1], to[2], to[3]});
              else std::memcpy(to[0], source(i), row.data);
            });
}

void DeviceWeights::stage(const LayerWeights& layer, Tensor ExpertWeights::*which, int64_t first,
                          const Matrix& to) {
  const Tensor& one = layer.experts[first].*which;
  const int64_t row_size = row_bytes(one.type, one.cols);
  upload_rows(to, [&](int64_t i) {
    const Tensor& t = layer.experts[first + i / one.rows].*which;
    return static_cast<const std::byte*>(t.data) + i % one.rows * row_size;
  });
}

void DeviceWeights::upload(const Tensor& t, const Matrix& m) {
  const auto* source = static_cast<const std::byte*>(t.data);
  const int64_t row_size = row_bytes(t.type, t.cols);
  upload_rows(m, [&](int64_t i) { return source + i * row_size; });
}

}  // namespace riffle::cuda
