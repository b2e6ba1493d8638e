// Resources of the CUDA backend on a device, each with one owner: memory within a budget, pinned
// memory, streams, events; and the one place where a CUDA status becomes an Error.
#pragma once
#include <optional>
#include <source_location>
#include <string>

#include "kernels/cuda/types.h"
#include "util/buffer.h"

namespace riffle::cuda {

// Throws Error unless status is cudaSuccess: RIFFLE_OUT_OF_MEMORY, RIFFLE_DEVICE_LOST (the context
// is gone: nothing will work on it again) or RIFFLE_INTERNAL, with the status's name, the operation
// and the place.
void check(cudaError_t status, const char* what,
           std::source_location where = std::source_location::current());

// Makes a device current for this thread while it lives, then restores the caller's choice.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;  // -1: nothing to restore
};

struct DeviceInfo {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200, compute 9.0, 139.8 GiB"
  DeviceLimits limits;
  uint64_t total = 0, free = 0;  // bytes, now
  // An integrated GPU uses the host's memory (Jetson, DGX Spark). False on Grace Hopper: its GPU
  // reads the host's memory at the host's addresses, but has faster memory of its own.
  bool integrated = false;
};
// Returns the bytes that an integrated GPU can take. available: MemoryLimits::available, which also
// counts pages that the system would drop, such as those of a model file, and a control group's
// limit. reported: CUDA's number, which leaves both out; it counts if available is not known.
uint64_t integrated_free(uint64_t reported, uint64_t total, uint64_t available);
// Returns the version of the NVIDIA driver, as CUDA numbers it; 0: none is installed. Does not
// throw.
int driver_version();
// The first device (CUDA_VISIBLE_DEVICES chooses which that is), if this build's kernels can run on
// it; else `why` names the missing part. Does not throw.
std::optional<DeviceInfo> find_device(std::string& why);

// Device memory of one context, within a limit (0: none). Must outlive the buffers it gave.
class DeviceHeap {
 public:
  explicit DeviceHeap(uint64_t limit) : limit_(limit) {}
  // The bytes that a buffer takes of the device.
  static constexpr uint64_t rounded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
  // Throws RIFFLE_OUT_OF_MEMORY, which names the purpose. Contents undefined.
  Buffer take(size_t bytes, const char* what);
  uint64_t used() const { return used_; }
  uint64_t peak() const { return peak_; }
  uint64_t limit() const { return limit_; }

 private:
  uint64_t limit_, used_ = 0, peak_ = 0;
};

// Returns page-locked host memory that the device reads at the same address. If the system refuses
// page-locked memory, an integrated GPU may get managed memory, which does not move there. Throws
// RIFFLE_OUT_OF_MEMORY.
Buffer pinned(size_t bytes, const char* what);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait(const char* what) const {
    ++waits_;
    check(cudaStreamSynchronize(stream_), what);
  }
  uint64_t waits() const { return waits_; }  // times that the host has waited

 private:
  cudaStream_t stream_ = nullptr;
  mutable uint64_t waits_ = 0;
};

class Event {
 public:
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }
  void record(cudaStream_t stream) const {
    check(cudaEventRecord(event_, stream), "recording an event");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Returns the fewest milliseconds that the device takes for what `launch` puts on the stream, of
// five runs after one that does not count.
template <class F>
float fewest_ms(const Stream& stream, const char* what, F&& launch) {
  const Event begin(true), end(true);
  float best = 0;
  for (int i = 0; i < 6; ++i) {
    begin.record(stream);
    launch();
    end.record(stream);
    stream.wait(what);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), what);
    if (i > 0 && (best == 0 || ms < best)) best = ms;
  }
  return best;
}

class Graph {
 public:
  Graph() = default;
  explicit Graph(cudaGraph_t graph);  // takes ownership, even if it throws
  ~Graph();
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  explicit operator bool() const { return exec_ != nullptr; }
  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(exec_, stream), "launching a step");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace riffle::cuda
