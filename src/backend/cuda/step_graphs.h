// Repeated steps are replayed as a graph. The first step of a kind is launched operation by
// operation, the second one is recorded, and all others replay the record.
#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "backend/cuda/device.h"

namespace riffle {
struct LayerWeights;
}

namespace riffle::cuda {

class StepGraphs {
 public:
  // Key of a recorded step, besides its program: number and capacity of its sequences, whether they
  // draw tokens (from changed logits), and whether everything is read.
  struct Kind {
    int64_t n = 0, max_blocks = 0;
    bool draws = false, changed = false, everything = false;
    auto operator<=>(const Kind&) const = default;
  };

  explicit StepGraphs(const Stream* compute) : compute_(compute) {}

  // Begins a step of this kind. growths: of the memory that steps use (StepMemory). may_replay:
  // false launches its operations one by one. Returns true if the step is running, replayed.
  bool begin(const Kind& kind, uint64_t program, uint64_t growths, bool may_replay);
  bool replaying() const { return mode_ == Mode::Replaying; }
  bool recording() const { return mode_ == Mode::Recording; }
  // Call it after all operations of the step. If they were recorded, they run now.
  void launch();
  // The step has failed.
  void abandon();
  void clear() { graphs_.clear(); }

  // Layers whose experts the CPU computes when the step calls for them, in the order of the calls.
  // While a step runs: only those not answered yet.
  std::vector<const LayerWeights*> calls;

 private:
  enum class Mode : uint8_t { Eager, Recording, Replaying };
  struct Recorded {
    Graph graph;
    int runs = 0;
    bool eager = false;  // it could not be recorded
    std::vector<const LayerWeights*> calls;
  };

  const Stream* compute_;
  Mode mode_ = Mode::Eager;
  Kind kind_;
  std::map<Kind, Recorded> graphs_;
  uint64_t program_ = ~uint64_t(0), growths_ = 0;
};

}  // namespace riffle::cuda
