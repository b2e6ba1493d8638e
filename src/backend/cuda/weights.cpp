#include "backend/cuda/weights.h"

#include <algorithm>
#include <cstring>

#include "util/error.h"

namespace riffle::cuda {

static constexpr size_t kStagingBytes = size_t(32) << 20;

static uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

uint64_t device_bytes(const Tensor& t) {
  if (t.type == DType::Q8_0) return aligned(t.rows * t.cols) + aligned(t.rows * t.cols / kQ8Block * 2);
  return aligned(t.bytes());
}

template <class F>
static void for_each_weight(const Weights& w, F&& f) {
  for (const LayerWeights& l : w.layers)
    for (const Tensor* t : {&l.attn_norm, &l.wq, &l.wk, &l.wv, &l.wo, &l.ffn_norm, &l.w1, &l.w3, &l.w2}) f(*t);
  for (const LayerWeights& l : w.layers)
    for (const Tensor* t : {&l.bq, &l.bk, &l.bv, &l.bo, &l.b1, &l.b3, &l.b2})
      if (t->data) f(*t);
  f(w.final_norm);
  f(w.output);
}

uint64_t device_bytes(const Model& model) {
  uint64_t sum = 0;
  for_each_weight(model.weights, [&](const Tensor& t) { sum += device_bytes(t); });
  return sum;
}

DeviceWeights::DeviceWeights(const Model& model, DeviceHeap& heap, const Stream& stream, ThreadPool* threads,
                             const LoadProgress& progress)
    : heap_(heap), stream_(stream), threads_(threads) {
  for (int i = 0; i < 2; ++i) {
    staging_[i] = pinned(kStagingBytes, "staging for the weights");
    copied_[i] = std::make_unique<Event>();
  }
  double done = 0;
  const double total = static_cast<double>(device_bytes(model));
  for_each_weight(model.weights, [&](const Tensor& t) {
    add(t);
    done += static_cast<double>(device_bytes(t));
    if (progress && !progress(done, total)) {
      stream_.wait("uploading the weights");
      fail(RIFFLE_ABORTED, "uploading the weights was cancelled");
    }
  });
  stream_.wait("uploading the weights");
  for (Buffer& b : staging_) b = Buffer();
}

void DeviceWeights::add(const Tensor& t) {
  Matrix m;
  m.type = wtype(t);
  m.rows = t.rows;
  m.cols = t.cols;
  Buffer buffer = heap_.take(device_bytes(t), "the weights");
  m.data = buffer.data();
  if (t.type == DType::Q8_0) m.scales = buffer.as<std::byte>() + aligned(t.rows * t.cols);
  if (t.data) upload(t, m);
  else check(fill_synthetic(m, t.seed, t.scale, stream_), "making synthetic weights");
  buffers_.push_back(std::move(buffer));
  matrices_[&t] = m;
}

template <class Fill>
void DeviceWeights::stream_in(int64_t n_items, size_t item_bytes, void* device, Fill&& fill) {
  const int64_t batch = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / item_bytes));
  for (int64_t first = 0; first < n_items; first += batch) {
    const int64_t n = std::min(batch, n_items - first);
    check(cudaEventSynchronize(*copied_[turn_]), "uploading the weights");
    std::byte* staging = staging_[turn_].as<std::byte>();
    const int64_t parts = std::min<int64_t>(n, threads_->size() * 4);
    threads_->parallel_for(parts, [&](int64_t p, int) {
      const int64_t begin = n * p / parts, end = n * (p + 1) / parts;
      fill(first + begin, end - begin, staging + begin * item_bytes);
    });
    check(cudaMemcpyAsync(static_cast<std::byte*>(device) + first * item_bytes, staging, n * item_bytes,
                          cudaMemcpyHostToDevice, stream_),
          "uploading the weights");
    copied_[turn_]->record(stream_);
    turn_ ^= 1;
  }
}

void DeviceWeights::upload(const Tensor& t, const Matrix& m) {
  const auto* source = static_cast<const std::byte*>(t.data);
  if (t.type != DType::Q8_0) {
    constexpr int64_t kPiece = 4096;
    const int64_t bytes = t.bytes(), whole = bytes / kPiece * kPiece;
    stream_in(whole / kPiece, kPiece, const_cast<void*>(m.data),
              [&](int64_t first, int64_t n, std::byte* out) { std::memcpy(out, source + first * kPiece, n * kPiece); });
    if (bytes > whole)
      stream_in(1, bytes - whole, static_cast<std::byte*>(const_cast<void*>(m.data)) + whole,
                [&](int64_t, int64_t, std::byte* out) { std::memcpy(out, source + whole, bytes - whole); });
    return;
  }
  const int64_t blocks = t.rows * t.cols / kQ8Block;
  stream_in(blocks, kQ8Block, const_cast<void*>(m.data), [&](int64_t first, int64_t n, std::byte* out) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * kQ8Block, source + (first + i) * kQ8BlockBytes + 2, kQ8Block);
  });
  stream_in(blocks, 2, const_cast<void*>(m.scales), [&](int64_t first, int64_t n, std::byte* out) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * 2, source + (first + i) * kQ8BlockBytes, 2);
  });
}

}  // namespace riffle::cuda
