#include "engine/schedule/batch_control.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace riffle {

// A step weighs half as much after 140 steps, since sequences last for hundreds of steps.
static constexpr double kKeep = 0.995;
// Weight of the assumed costs of a row and of a block, in steps.
static constexpr double kPriorSteps = 1;
// Bytes a second over the link until steps are measured: a PCIe 4 link of 16 lanes. An H200 with
// PCIe 5 has 55e9 (tools/bench/results/gpu.md).
static constexpr double kLink = 25e9;
// Factor by which the rate of a smaller batch must exceed the best rate before it.
static constexpr double kGain = 1.02;

StepTime::StepTime(double load) : prior_load_(load), load_(load) {}

void StepTime::observe(double rows, double blocks_loaded, double seconds) {
  if (seconds <= 0) return;
  // Divided by the seconds, so that errors of short and long steps are relative to their time.
  const double x[3] = {1 / seconds, rows / seconds, blocks_loaded / seconds};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) xx_[i][j] = kKeep * xx_[i][j] + x[i] * x[j];
    x_[i] = kKeep * x_[i] + x[i];
  }
  seconds_ = seconds_ == 0 ? seconds : kKeep * seconds_ + (1 - kKeep) * seconds;
  fit();
}

// Least squares. Steps of one batch size cannot tell the fixed cost from the cost of a row. Assumed
// costs decide then: a row takes a twentieth of a step, a block takes kLink.
void StepTime::fit() {
  double a[3][4];
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) a[i][j] = xx_[i][j];
    a[i][3] = x_[i];
  }
  a[2][2] += kPriorSteps / (prior_load_ * prior_load_);
  a[2][3] += kPriorSteps / prior_load_;
  const double row = seconds_ / 20;
  a[1][1] += kPriorSteps / (row * row);
  a[1][3] += kPriorSteps / row;
  for (int i = 0; i < 3; ++i)  // positive definite: no pivoting
    for (int k = 0; k < 3; ++k) {
      if (k == i) continue;
      const double f = a[k][i] / a[i][i];
      for (int j = i; j < 4; ++j) a[k][j] -= f * a[i][j];
    }
  // Noise can make a cost negative.
  fixed_ = std::max(a[0][3] / a[0][0], 0.0);
  row_ = std::max(a[1][3] / a[1][1], 0.0);
  load_ = std::max(a[2][3] / a[2][2], 0.0);
}

double StepTime::seconds(double rows, double blocks_loaded) const {
  return fixed_ + row_ * rows + load_ * blocks_loaded;
}

BatchControl::BatchControl(int window, bool fixed, double block_bytes)
    : window_(window), fixed_(fixed), time_(block_bytes / kLink) {}

// Estimates the blocks that a step of the batch loads, from the longest window whose blocks the
// pool holds.
double BatchControl::loads(std::span<const WindowSets> sets, Batch& batch, const Room& room) const {
  WindowSets sum{};
  for (const size_t member : batch.members)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += sets[member][i];
  for (size_t i = 0; i < sum.size(); ++i) {
    batch.working_set = sum[i];
    if (sum[i] > room(batch.members.size())) continue;
    // The growth from this window to the next longer one; for the longest, from the next shorter
    // one.
    const size_t longer = i == 0 ? 0 : i - 1, shorter = longer + 1;
    const int between = steps(longer) - steps(shorter);
    return between > 0 ? static_cast<double>(sum[longer] - sum[shorter]) / between : 0;
  }
  return static_cast<double>(batch.working_set);  // no block stays until the next step
}

Batch BatchControl::choose(std::span<const WindowSets> sets, size_t most, const Room& room) const {
  const auto propose = [&](size_t window, bool limited) {
    Batch batch;
    int64_t sum = 0;
    for (size_t i = 0; i < sets.size() && batch.members.size() < most; ++i) {
      const int64_t need = sets[i][window];
      if (limited && !batch.members.empty() && sum + need > room(batch.members.size() + 1))
        continue;
      sum += need;
      batch.members.push_back(i);
    }
    batch.working_set = sum;
    return batch;
  };
  if (fixed_) return propose(0, true);
  const auto rate = [&](Batch& batch) {
    const auto rows = static_cast<double>(batch.members.size());
    return rows / std::max(time_.seconds(rows, loads(sets, batch, room)), 1e-9);
  };
  // From the largest batch down: a smaller one has to be worth it.
  Batch best = propose(kWindows - 1, false);
  double best_rate = rate(best);
  for (size_t i = sets.empty() ? 0 : kWindows; i-- > 0;) {
    Batch batch = propose(i, true);
    if (batch.members.size() >= best.members.size()) continue;
    if (const double r = rate(batch); r > kGain * best_rate) best = std::move(batch), best_rate = r;
  }
  return best;
}

}  // namespace riffle
