// Times a step part by part (riffle_profile_step).
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/device.h"
#include "util/stats.h"

namespace riffle::cuda {

class StepProfile {
 public:
  enum class Part : uint8_t { Linear, Score, Rank, Attend, Other };

  explicit StepProfile(const Stream* compute) : compute_(compute) {}
  void start();
  void finish(StepTiming& timing);
  bool running() const { return running_; }
  // Assigns everything launched since the last mark to this part.
  void mark(Part part);
  // Returns an event that others record at the end of this part; null: no profile runs.
  cudaEvent_t event(Part part);

 private:
  // Returns the bytes per second of a copy inside the device's memory (read and written), or of one
  // from pinned host memory. 0 if there is no room. The memory is taken outside the context's
  // budget and freed at once.
  double copy_rate(bool from_host);

  const Stream* compute_;
  bool running_ = false;
  std::vector<std::pair<std::unique_ptr<Event>, Part>> marks_;
  double copy_bandwidth_ = 0, link_bandwidth_ = 0;
};

}  // namespace riffle::cuda
