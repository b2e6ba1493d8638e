#include "backend/cuda/step_logits.h"

namespace riffle::cuda {

float* StepLogits::reserve(int64_t n) {
  return memory_->grow(rows_, buffers(n, vocab_size_)[0], "logits").as<float>();
}

void StepLogits::grow_kept(int64_t n) {
  const uint64_t bytes = buffers(n, vocab_size_)[1];
  if (kept_.size() >= bytes) return;
  for (size_t i = 0; i < fetched_.size(); ++i) fetch(static_cast<int64_t>(i));
  memory_->grow(kept_, bytes, "logits");
}

void StepLogits::keep(int64_t n) {
  check(cudaMemcpyAsync(kept_.data(), rows_.data(), n * vocab_size_ * sizeof(float),
                        cudaMemcpyDeviceToDevice, *compute_),
        "keeping logits");
  fetched_.assign(n, 0);
}

const float* StepLogits::fetch(int64_t i) {
  const size_t row_bytes = vocab_size_ * sizeof(float);
  if (host_.size() < fetched_.size() * row_bytes) {  // none of these rows was fetched yet
    host_ = Buffer();
    host_ = pinned(kept_.size(), "logits");
  }
  float* const row = host_.as<float>() + i * vocab_size_;
  if (fetched_[i]) return row;
  check(cudaMemcpyAsync(row, kept_.as<float>() + i * vocab_size_, row_bytes, cudaMemcpyDeviceToHost,
                        *compute_),
        "reading logits");
  compute_->wait("reading logits");
  fetched_[i] = 1;
  return row;
}

}  // namespace riffle::cuda
