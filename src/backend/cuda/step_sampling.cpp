#include "backend/cuda/step_sampling.h"

#include <algorithm>

namespace riffle::cuda {

void StepSampling::begin(const StepRequest& step) {
  step_ = &step;
  const auto any = [&](const auto& of) {
    return std::any_of(step.samples, step.samples + step.n, of);
  };
  here_ = step.samples != nullptr && drawable_ids_ <= kSampleMaxVocab &&
          !any([](const SampleRequest& r) { return r.n_changes > kMostChanges; });
  masked_ = here_ && any([](const SampleRequest& r) { return r.allowed != nullptr; });
  changed_ = here_ && any([](const SampleRequest& r) { return r.n_changes > 0; });
}

std::vector<StepSampling::Sized> StepSampling::buffers(int64_t n, int64_t vocab_size,
                                                       int64_t drawable_ids) {
  using S = StepSampling;
  const uint64_t params = n * sizeof(SampleParams), tokens = n * sizeof(int32_t),
                 masks = n * words_of(drawable_ids) * sizeof(uint32_t),
                 changes = n * kMostChanges * sizeof(LogitChange);
  return {{&S::params_, params, Need::ALWAYS, false},
          {&S::tokens_, tokens, Need::ALWAYS, false},
          {&S::scratch_, sample_scratch_bytes(n, vocab_size), Need::ALWAYS, false},
          {&S::host_params_, params, Need::ALWAYS, true},
          {&S::host_tokens_, tokens, Need::ALWAYS, true},
          {&S::masks_, masks, Need::MASKS, false},
          {&S::host_masks_, masks, Need::MASKS, true},
          {&S::changes_, changes, Need::CHANGES, false},
          {&S::replaced_, n * kMostChanges * sizeof(float), Need::CHANGES, false},
          {&S::host_changes_, changes, Need::CHANGES, true}};
}

std::vector<uint64_t> StepSampling::most_buffers(int64_t n, int64_t vocab_size,
                                                 int64_t drawable_ids) {
  std::vector<uint64_t> bytes;
  for (const Sized& b : buffers(n, vocab_size, drawable_ids))
    if (!b.pinned) bytes.push_back(b.bytes);
  return bytes;
}

void StepSampling::grow() {
  if (!here_) return;
  for (const Sized& b : buffers(step_->n, vocab_size_, drawable_ids_)) {
    if ((b.need == Need::MASKS && !masked_) || (b.need == Need::CHANGES && !changed_)) continue;
    if (b.pinned) memory_->pin(this->*b.buffer, b.bytes, "a step's staging");
    else memory_->grow(this->*b.buffer, b.bytes, "sampling");
  }
}

// Copies n elements to row i of a device buffer, by way of a pinned one of the same size.
template <class T>
const T* StepSampling::upload_row(Buffer& to, Buffer& pinned, int64_t i, int64_t row, const T* from,
                                  int64_t n) {
  T *const host = pinned.as<T>() + i * row, *const device = to.as<T>() + i * row;
  std::copy_n(from, n, host);
  check(cudaMemcpyAsync(device, host, n * sizeof(T), cudaMemcpyHostToDevice, *compute_),
        "a step's inputs");
  return device;
}

void StepSampling::upload() {
  if (!here_) return;
  auto* params = host_params_.as<SampleParams>();
  for (int64_t i = 0; i < step_->n; ++i) {
    const SampleRequest& r = step_->samples[i];
    params[i] = {r.temperature, r.top_p, r.min_p, r.top_k, r.random};
    params[i].xtc_threshold = r.xtc_threshold;
    if (r.allowed) params[i].allowed = masks_.as<uint32_t>() + i * mask_words();
    if (r.n_changes == 0) continue;
    params[i].changes =
        upload_row(changes_, host_changes_, i, kMostChanges, r.changes, r.n_changes);
    params[i].n_changes = r.n_changes;
    params[i].replaced = replaced_.as<float>() + i * kMostChanges;
  }
  check(cudaMemcpyAsync(params_.data(), params, step_->n * sizeof(SampleParams),
                        cudaMemcpyHostToDevice, *compute_),
        "a step's inputs");
}

void StepSampling::draw(const StepLogits& logits) {
  check(sample(logits.rows(), step_->n, vocab_size_, drawable_ids_, params_.as<SampleParams>(),
               changed_, tokens_.as<int32_t>(), scratch_.data(), *compute_),
        "sampling");
  check(cudaMemcpyAsync(host_tokens_.data(), tokens_.data(), step_->n * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, *compute_),
        "reading tokens");
}

void StepSampling::find_masks() {
  for (int64_t i = 0; step_->samples && i < step_->n; ++i)
    if (step_->samples[i].allowed) step_->find_mask(i);
}

void StepSampling::draw_masked(const StepLogits& logits) {
  if (!masked_) return;
  for (int64_t i = 0; i < step_->n; ++i)
    if (const uint32_t* const allowed = step_->samples[i].allowed)
      upload_row(masks_, host_masks_, i, mask_words(), allowed, mask_words());
  draw(logits);
}

void StepSampling::give(int32_t* tokens) const {
  if (here_) std::copy_n(host_tokens_.as<int32_t>(), step_->n, tokens);
  else if (step_->samples) std::fill_n(tokens, step_->n, kNotSampled);
}

}  // namespace riffle::cuda
