// Makes a discrete GPU look integrated, or fakes an integrated GPU on a machine without a GPU. The
// linker replaces find_device and functions of the CUDA runtime in this program (ld --wrap): see
// integrated_gpu_test.cpp and no_memory_test.cpp.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "backend/cuda/device.h"

namespace riffle::test {

// The answers of the replaced functions.
struct Pretence {
  std::atomic<bool> integrated{false};  // the GPU is integrated
  std::atomic<bool> concurrent{false};  // the CPU may use managed memory while kernels run
  std::atomic<bool> no_gpu{false};      // device 0 is there, and the driver's memory is the host's
  std::atomic<cudaError_t> host_alloc{cudaSuccess};  // the status of cudaHostAlloc
  std::optional<cuda::DeviceInfo> found{};           // the answer of find_device
  // Pinned memory of a fake GPU: pieces that adjoin each other, which are not freed one by one.
  std::unique_ptr<std::byte[]> pinned{};
  size_t pinned_used = 0;
  static constexpr size_t kPinned = size_t{64} << 20;
  void* take_pinned(size_t bytes) {
    if (!pinned || bytes > kPinned - pinned_used) return nullptr;
    return pinned.get() + std::exchange(pinned_used, pinned_used + bytes);
  }
};
inline Pretence pretence;

// While it lives, the GPU seems integrated. A discrete GPU then reads blocks over the bus.
struct SeemsIntegrated {
  SeemsIntegrated() { pretence.integrated = true; }
  ~SeemsIntegrated() { pretence.integrated = false; }
};

// While it lives, a machine without a GPU seems to have an integrated one. It runs no kernels.
struct FakeGpu : SeemsIntegrated {
  FakeGpu() {
    pretence.no_gpu = true;
    pretence.pinned.reset(new std::byte[Pretence::kPinned]);  // most of it is not touched
    pretence.pinned_used = 0;
    cuda::DeviceInfo info;
    info.name = "fake GPU";
    info.limits = {16, 163 << 10, 164 << 10, 87};
    info.total = uint64_t(8) << 30;
    info.free = uint64_t(6) << 30;
    info.integrated = true;
    pretence.found = info;
  }
  ~FakeGpu() {
    pretence.found.reset();
    pretence.pinned.reset();
    pretence.host_alloc = cudaSuccess;
    pretence.concurrent = pretence.no_gpu = false;
  }
};

}  // namespace riffle::test
