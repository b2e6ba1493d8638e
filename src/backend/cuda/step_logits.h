// The logits of steps. They stay on the device until a caller asks for them.
#pragma once
#include <vector>

#include "backend/cuda/step_memory.h"

namespace riffle::cuda {

class StepLogits {
 public:
  StepLogits(StepMemory* memory, const Stream* compute, int64_t vocab_size)
      : memory_(memory), compute_(compute), vocab_size_(vocab_size) {}

  // Returns the bytes of each of its buffers on the device, for steps of n rows.
  static std::vector<uint64_t> buffers(int64_t n, int64_t vocab_size) {
    const uint64_t bytes = n * vocab_size * sizeof(float);
    return {bytes, bytes};
  }
  // Returns memory for n rows, where a recorded step finds them.
  float* reserve(int64_t n);
  float* rows() const { return rows_.as<float>(); }  // rows of the current step
  // Makes room for the rows that `keep` keeps of n. Rows that a caller may ask for are in host
  // memory before theirs is given up.
  void grow_kept(int64_t n);
  // A step of n rows has ended without an error. A step that fails has lost the contents of rows(),
  // so a copy of the last step's rows is kept.
  void keep(int64_t n);
  // Returns row i of those kept, in host memory.
  const float* fetch(int64_t i);

 private:
  StepMemory* memory_;
  const Stream* compute_;
  int64_t vocab_size_;
  Buffer rows_, kept_, host_;     // [rows][vocab_size]; host_ is pinned
  std::vector<uint8_t> fetched_;  // by row of kept_: it is in host_
};

}  // namespace riffle::cuda
