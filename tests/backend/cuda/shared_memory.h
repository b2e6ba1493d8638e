// A GPU that shares the host's memory, on a machine that has none. Functions of the CUDA runtime
// and find_device are replaced in this program (ld --wrap): see shared_memory_test.cpp and
// no_memory_test.cpp.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <optional>

#include "backend/cuda/device.h"

namespace riffle::test {

// The answers of the replaced functions.
struct Pretence {
  std::atomic<bool> shares{false};      // the GPU is integrated
  std::atomic<bool> concurrent{false};  // the CPU may use managed memory while kernels run
  std::atomic<bool> no_gpu{false};      // device 0 is there, and the driver's memory is the host's
  std::atomic<cudaError_t> host_alloc{cudaSuccess};  // the status of cudaHostAlloc
  std::optional<cuda::DeviceInfo> found{};           // the answer of find_device
};
inline Pretence pretence;

// While it lives, the GPU seems to share the host's memory. A discrete GPU then reads blocks over
// the bus.
struct SharesMemory {
  SharesMemory() { pretence.shares = true; }
  ~SharesMemory() { pretence.shares = false; }
};

// While it lives, a machine without a GPU seems to have one that shares the host's memory. It runs
// no kernels.
struct PretendedGpu : SharesMemory {
  PretendedGpu() {
    pretence.no_gpu = true;
    cuda::DeviceInfo info;
    info.name = "pretended GPU";
    info.limits = {16, 163 << 10, 164 << 10, 87};
    info.total = uint64_t(8) << 30;
    info.free = uint64_t(6) << 30;
    info.shares_memory = true;
    pretence.found = info;
  }
  ~PretendedGpu() {
    pretence.found.reset();
    pretence.host_alloc = cudaSuccess;
    pretence.concurrent = pretence.no_gpu = false;
  }
};

}  // namespace riffle::test
