// Chooses which decoding sequences step together, for the most tokens a second, from the blocks
// that their steps read, the cost of loading a block and the measured time of steps.
//
// A sequence whose last v steps' blocks stay in the pool loads in a step the blocks that it has not
// read for v steps: (ws(2v) - ws(v)) / v blocks, with ws its working set (src/kv/README.md). A
// larger batch shares the pool among more sequences, so v falls and each of them loads more. But
// the cost of reading the weights is shared among more, too. SparseServe (section 3.3) sets one
// window by hand. [Our choice] Each counted window proposes a batch, and so do all sequences
// together. The one with the most rows a second is taken, a smaller one if it promises 2% more.
// Texts do not depend on it.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/working_set.h"

namespace riffle {

// Estimates the seconds of a step: fixed + row * rows + load * blocks loaded. The figures are
// fitted to past steps; newer ones weigh more.
class StepTime {
 public:
  // load: the assumed cost of a block until steps are measured, > 0.
  explicit StepTime(double load);
  void observe(double rows, double blocks_loaded, double seconds);
  double seconds(double rows, double blocks_loaded) const;

 private:
  void fit();

  double prior_load_, fixed_ = 0, row_ = 0, load_;
  // Weighted sums over steps, of x x^T and x, with x = (1, rows, blocks loaded) / seconds.
  double seconds_ = 0;  // weighted mean of a step
  double xx_[3][3] = {}, x_[3] = {};
};

struct Batch {
  std::vector<size_t> members;  // places in the order that was given, ascending
  int64_t working_set = 0;      // their blocks, in the window that fits the pool, else in one step
};

class BatchControl {
 public:
  // window: steps; fixed: batches fit the pool with that window, and no other is proposed.
  BatchControl(int window, bool fixed, double block_bytes);
  int window() const { return window_; }
  void observe(double rows, double blocks_loaded, double seconds) {
    time_.observe(rows, blocks_loaded, seconds);
  }
  // Returns the slots that the selections of this number of sequences may fill.
  using Room = std::function<int64_t(size_t)>;
  // sets: in the order in which sequences join; the first is always in. most: the most members.
  Batch choose(std::span<const WindowSets> sets, size_t most, const Room& room) const;

 private:
  int steps(size_t i) const { return window_steps(window_, static_cast<int>(i)); }
  double loads(std::span<const WindowSets> sets, Batch& batch, const Room& room) const;

  int window_;
  bool fixed_;
  StepTime time_;
};

}  // namespace riffle
