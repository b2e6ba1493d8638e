#include "backend/cuda/step_profile.h"

#include <algorithm>

#include "util/error.h"
#include "util/stats.h"

namespace riffle::cuda {

void StepProfile::mark(Part part) {
  if (!running_) return;
  marks_.emplace_back(std::make_unique<Event>(true), part);
  marks_.back().first->record(*compute_);
}

cudaEvent_t StepProfile::event(Part part) {
  if (!running_) return nullptr;
  marks_.emplace_back(std::make_unique<Event>(true), part);
  return *marks_.back().first;
}

void StepProfile::start() {
  if (copy_bandwidth_ == 0) copy_bandwidth_ = copy_rate(false);
  if (link_bandwidth_ == 0) link_bandwidth_ = copy_rate(true);
  marks_.clear();
  running_ = true;
}

void StepProfile::finish(StepTiming& t) {
  running_ = false;
  compute_->wait("running a profiled step");
  t = {};
  for (size_t i = 1; i < marks_.size(); ++i) {
    float ms = 0;
    // An event that was never recorded (a step without ranking) has no time: the next part counts
    // from the event before.
    if (cudaEventElapsedTime(&ms, *marks_[i - 1].first, *marks_[i].first) != cudaSuccess) {
      cudaGetLastError();
      if (i + 1 < marks_.size()) std::swap(marks_[i - 1], marks_[i]);
      continue;
    }
    double& part = marks_[i].second == Part::Linear   ? t.linear
                   : marks_[i].second == Part::Score  ? t.attention_score
                   : marks_[i].second == Part::Rank   ? t.attention_rank
                   : marks_[i].second == Part::Attend ? t.attention_attend
                                                      : t.other;
    part += ms * 1e-3;
    t.total += ms * 1e-3;
  }
  marks_.clear();
  t.copy_bandwidth = copy_bandwidth_;
  t.link_bandwidth = link_bandwidth_;
}

double StepProfile::copy_rate(bool from_host) {
  const size_t bytes = from_host ? size_t(64) << 20 : size_t(512) << 20;
  DeviceHeap heap(0);
  Buffer from, to;
  try {
    to = heap.take(bytes, "measuring bandwidth");
    from =
        from_host ? pinned(bytes, "measuring the link") : heap.take(bytes, "measuring bandwidth");
  } catch (const Error& e) {
    if (e.status() != RIFFLE_OUT_OF_MEMORY) throw;
    return 0;
  }
  const float best = fewest_ms(*compute_, "measuring bandwidth", [&] {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, *compute_),
          "measuring bandwidth");
  });
  return best > 0 ? (from_host ? 1.0 : 2.0) * static_cast<double>(bytes) / (best * 1e-3) : 0;
}

}  // namespace riffle::cuda
