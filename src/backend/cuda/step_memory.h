// Buffers of steps: they grow when a step needs more and never shrink. A recorded step knows where
// they are, so growths are counted.
#pragma once
#include "backend/cuda/device.h"

namespace riffle::cuda {

class StepMemory {
 public:
  StepMemory(DeviceHeap* heap, const Stream* compute) : heap_(heap), compute_(compute) {}

  // Growing loses the contents. It waits until no operation uses the old memory.
  Buffer& grow(Buffer& buffer, size_t bytes, const char* what) {
    if (buffer.size() >= bytes) return buffer;
    if (buffer.size() > 0) compute_->wait(what);
    buffer = Buffer();
    buffer = heap_->take(bytes, what);
    ++growths_;
    return buffer;
  }
  // The same in pinned host memory.
  Buffer& pin(Buffer& buffer, size_t bytes, const char* what) {
    if (buffer.size() >= bytes) return buffer;
    if (buffer.size() > 0) compute_->wait(what);
    buffer = pinned(bytes, what);
    ++growths_;
    return buffer;
  }
  // Notes that memory of steps has moved in another way.
  void moved() { ++growths_; }
  uint64_t growths() const { return growths_; }

 private:
  DeviceHeap* heap_;
  const Stream* compute_;
  uint64_t growths_ = 0;
};

}  // namespace riffle::cuda
