#include "backend/cuda/device.h"

#include <algorithm>
#include <cstring>

#include "util/error.h"
#include "util/memory_limits.h"

namespace riffle::cuda {

// Tells whether every further call on the device fails in the same way.
static bool device_is_lost(cudaError_t status) {
  if (static_cast<int>(status) == 226)
    return true;  // cudaErrorContained, which older toolkits do not name
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
    case cudaErrorContextIsDestroyed: return true;
    default: return false;
  }
}

void check(cudaError_t status, const char* what, std::source_location where) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it again
  const char* file = std::strrchr(where.file_name(), '/');
  file = file ? file + 1 : where.file_name();
  if (status == cudaErrorMemoryAllocation)
    fail(RIFFLE_OUT_OF_MEMORY, "the GPU is out of memory: %s (%s:%u)", what, file, where.line());
  if (device_is_lost(status))
    fail(RIFFLE_DEVICE_LOST,
         "the GPU stopped working: %s (%s) while %s (%s:%u); free this context and restart "
         "the program",
         cudaGetErrorName(status), cudaGetErrorString(status), what, file, where.line());
  fail(RIFFLE_INTERNAL, "CUDA error %s (%s) while %s (%s:%u)", cudaGetErrorName(status),
       cudaGetErrorString(status), what, file, where.line());
}

DeviceScope::DeviceScope(int ordinal) {
  int now = 0;
  check(cudaGetDevice(&now), "querying the current GPU");
  if (now == ordinal) return;
  check(cudaSetDevice(ordinal), "selecting the GPU");
  before_ = now;
}
DeviceScope::~DeviceScope() {
  if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
}

static std::string version_text(int version) {
  return format("%d.%d", version / 1000, version % 1000 / 10);
}

int driver_version() {
  int version = 0;
  cudaDriverGetVersion(&version);
  if (version == 0) cudaGetLastError();
  return version;
}

uint64_t integrated_free(uint64_t reported, uint64_t total, uint64_t available) {
  if (available == UINT64_MAX) return reported;
  return std::min(total, available);
}

std::optional<DeviceInfo> find_device(std::string& why) {
  const int driver = driver_version();
  int count = 0;
  if (driver == 0) {
    why = "no NVIDIA driver was found";
    return {};
  }
  const cudaError_t counted = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (counted == cudaErrorInsufficientDriver) {
    why = format("the NVIDIA driver is too old: it supports CUDA %s, riffle was built with CUDA %s",
                 version_text(driver).c_str(), version_text(CUDART_VERSION).c_str());
    return {};
  }
  if (counted != cudaSuccess || count == 0) {
    why = counted == cudaSuccess || counted == cudaErrorNoDevice
              ? std::string("no NVIDIA GPU was found")
              : format("the NVIDIA driver reported %s (%s)", cudaGetErrorName(counted),
                       cudaGetErrorString(counted));
    return {};
  }
  // The caller's own choice is restored at the end, whatever happens.
  struct Restore {
    int device = -1;
    ~Restore() {
      if (device > 0) cudaSetDevice(device);
      cudaGetLastError();
    }
  } restore;
  if (cudaGetDevice(&restore.device) != cudaSuccess) restore.device = -1;
  DeviceInfo info;
  cudaDeviceProp p{};
  size_t free = 0, total = 0;
  const auto tried = [&](cudaError_t status, const char* what) {
    if (status == cudaSuccess) return true;
    cudaGetLastError();
    why = format("%s failed: %s (%s)", what, cudaGetErrorName(status), cudaGetErrorString(status));
    return false;
  };
  if (!tried(cudaSetDevice(0), "selecting the GPU") ||
      !tried(cudaGetDeviceProperties(&p, 0), "querying the GPU's properties"))
    return {};
  info.limits.compute = 10 * p.major + p.minor;
  if (info.limits.compute < 75) {
    why = format("%s is too old: compute capability %d.%d, at least 7.5 is needed", p.name, p.major,
                 p.minor);
    return {};
  }
  // The Makefile says for which GPUs it compiles.
  constexpr int kOldest = RIFFLE_CUDA_OLDEST;
  if (info.limits.compute < kOldest) {
    why = format(
        "%s has compute capability %d.%d, riffle was built for %d.%d and later: build it with make "
        "CUARCH=%d",
        p.name, p.major, p.minor, kOldest / 10, kOldest % 10, info.limits.compute);
    return {};
  }
  int integrated = 0, same_pointers = 0, cooperative = 0;
  cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, 0);
  cudaDeviceGetAttribute(&same_pointers, cudaDevAttrCanUseHostPointerForRegisteredMem, 0);
  cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0);
  info.integrated = integrated != 0;
  // For an integrated GPU riffle registers no memory (PinnedSlabs). Memory that the driver
  // allocates always has one address.
  if ((!same_pointers && !info.integrated) || !cooperative) {
    why =
        format("%s cannot read pinned memory at the host's addresses or lacks cooperative launches",
               p.name);
    return {};
  }
  if (!tried(cudaMemGetInfo(&free, &total), "querying the GPU's memory")) return {};
  info.limits.n_sm = p.multiProcessorCount;
  info.limits.smem_per_block = static_cast<int>(p.sharedMemPerBlockOptin);
  info.limits.smem_per_sm = static_cast<int>(p.sharedMemPerMultiprocessor);
  info.total = total;
  info.free = info.integrated ? integrated_free(free, total, MemoryLimits().available()) : free;
  info.name = format("%s, compute %d.%d, %.1f GiB%s", p.name, p.major, p.minor,
                     double(total) / (1 << 30), info.integrated ? " shared with the CPU" : "");
  return info;
}

Buffer DeviceHeap::take(size_t bytes, const char* what) {
  if (bytes == 0) return {};
  const size_t whole = rounded(bytes);
  if (limit_ && used_ + whole > limit_)
    fail(RIFFLE_OUT_OF_MEMORY,
         "not enough GPU memory for %s: %.1f MiB needed; the budget is %.1f MiB, of which %.1f "
         "MiB are left",
         what, double(whole) / (1 << 20), double(limit_) / (1 << 20),
         double(limit_ - used_) / (1 << 20));
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, whole);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    fail(RIFFLE_OUT_OF_MEMORY,
         "not enough GPU memory for %s: %.1f MiB needed; %.1f of %.1f MiB are free", what,
         double(whole) / (1 << 20), double(free) / (1 << 20), double(total) / (1 << 20));
  }
  check(status, what);
  used_ += whole;
  peak_ = std::max(peak_, used_);
  return Buffer(
      data, whole,
      [](void* owner, void* p, size_t n) {
        cudaFree(p);
        static_cast<DeviceHeap*>(owner)->used_ -= n;
      },
      this);
}

// Tells whether managed memory can take the place of pinned memory on the current device. The GPU
// must be integrated, since managed memory then cannot move. The CPU must be allowed to use the
// memory while kernels run: it writes blocks of other sequences and words that kernels wait for.
static bool managed_stays() {
  int device = 0, integrated = 0, concurrent = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device) ==
          cudaSuccess;
  return known && integrated && concurrent;
}

Buffer pinned(size_t bytes, const char* what) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (status == cudaSuccess)
    return Buffer(
        data, bytes, [](void*, void* p, size_t) { cudaFreeHost(p); }, nullptr);
  if (status != cudaErrorMemoryAllocation && status != cudaErrorNotSupported) check(status, what);
  cudaGetLastError();
  if (managed_stays() && cudaMallocManaged(&data, bytes, cudaMemAttachGlobal) == cudaSuccess)
    return Buffer(
        data, bytes, [](void*, void* p, size_t) { cudaFree(p); }, nullptr);
  cudaGetLastError();
  fail(RIFFLE_OUT_OF_MEMORY,
       "no pinned host memory for %s: the system refused %.1f MiB (%s): free memory, or set "
       "`device` to cpu",
       what, double(bytes) / (1 << 20), cudaGetErrorName(status));
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}
Stream::~Stream() {
  if (stream_) cudaStreamDestroy(stream_);
}

Event::Event(bool timed) {
  check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming),
        "creating an event");
}
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}

Graph::Graph(cudaGraph_t graph) {
  const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "preparing the graph of a step");
}
Graph::~Graph() {
  if (exec_) cudaGraphExecDestroy(exec_);
}

}  // namespace riffle::cuda
