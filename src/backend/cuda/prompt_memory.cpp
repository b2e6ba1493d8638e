#include "backend/cuda/prompt_memory.h"

#include <algorithm>

#include "util/error.h"

namespace riffle::cuda {

Buffer DeviceArena::take(size_t bytes, const char* what) {
  if (bytes == 0) return {};
  const uint64_t whole = rounded(bytes);
  if (used_ + whole > bytes_)
    fail(RIFFLE_INTERNAL,
         "not enough memory for %s: %.1f MiB needed; prompts have %.1f MiB, of which %.1f MiB are "
         "left",
         what, double(whole) / (1 << 20), double(bytes_) / (1 << 20),
         double(bytes_ - used_) / (1 << 20));
  std::byte* data = data_ + used_;
  used_ += whole;
  return Buffer(
      data, whole, [](void*, void*, size_t) {}, nullptr);
}

std::vector<uint64_t> PromptRows::buffer_bytes(int64_t n, int64_t dim, int64_t chunk,
                                               bool on_host) {
  const uint64_t row = uint64_t(dim) * sizeof(float);
  if (on_host && n > 2 * chunk) return {chunk * row, chunk * row};
  return {n * row};
}

void PromptRows::begin(DeviceArena& arena, int64_t n, int64_t dim, int64_t chunk, bool on_host,
                       bool may_pin) {
  n_ = n, dim_ = dim, chunk_ = chunk;
  here_ = coming_ = {};
  staged_ = on_host && n > 2 * chunk;
  if (!staged_) {
    all_ = arena.take(bytes_of(n), "a prompt's residual stream");
    return;
  }
  for (Buffer& stage : stage_) stage = arena.take(bytes_of(chunk), "a prompt's residual stream");
  if (host_.size() < bytes_of(n)) {
    host_ = Buffer();
    try {
      if (may_pin) host_ = pinned(bytes_of(n), "a prompt's residual stream");
    } catch (const Error& e) {
      if (e.status() != RIFFLE_OUT_OF_MEMORY) throw;
    }
    if (host_.size() == 0) host_ = Buffer(bytes_of(n));
  }
  // Earlier work may still use the memory of the stages.
  computed_.record(*compute_);
  check(cudaStreamWaitEvent(copy_, computed_), "beginning a prompt");
}

void PromptRows::load(Piece piece, int slot) {
  check(cudaMemcpyAsync(stage_[slot].data(), host_.as<float>() + piece.first * dim_,
                        bytes_of(piece.n), cudaMemcpyHostToDevice, copy_),
        "loading a prompt's rows");
  loaded_[slot].record(copy_);
}

// Copies the current rows back to the host once the operations on them are done.
void PromptRows::store() {
  if (here_.n == 0) return;
  computed_.record(*compute_);
  check(cudaStreamWaitEvent(copy_, computed_), "storing a prompt's rows");
  check(cudaMemcpyAsync(host_.as<float>() + here_.first * dim_, stage_[at_].data(),
                        bytes_of(here_.n), cudaMemcpyDeviceToHost, copy_),
        "storing a prompt's rows");
  here_ = {};
}

float* PromptRows::rows(int64_t first, int64_t n, bool fresh, int64_t next) {
  if (!staged_) return all_.as<float>() + first * dim_;
  if (here_.n >= n && here_.first == first) return stage_[at_].as<float>();
  store();
  const int slot = at_ ^ 1;
  // All copies are on one stream in the order of these calls. So rows are stored before they are
  // loaded again, and before their stage is filled again.
  if (!fresh && !(coming_.first == first && coming_.n >= n)) load({first, n}, slot);
  if (fresh) loaded_[slot].record(copy_);  // the slot's last rows are on the host
  check(cudaStreamWaitEvent(*compute_, loaded_[slot]), "waiting for a prompt's rows");
  at_ = slot;
  here_ = {first, n};
  coming_ = {};
  if (next >= 0) {
    coming_ = {next, std::min(chunk_, n_ - next)};
    load(coming_, at_ ^ 1);
  }
  return stage_[at_].as<float>();
}

void PromptRows::end() {
  here_ = coming_ = {};
  all_ = Buffer();
  for (Buffer& stage : stage_) stage = Buffer();
  if (!staged_) return;
  copied_.record(copy_);
  check(cudaStreamWaitEvent(*compute_, copied_), "ending a prompt");
}

}  // namespace riffle::cuda
