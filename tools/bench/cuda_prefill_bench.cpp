// Speed of prefill attention and of block gather on the GPU. Times are medians; a line each. Build:
// make cuda-bench.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/pool/pool.h"
#include "kernels/cuda/prefill/prefill.h"

using namespace riffle::cuda;

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

struct Device {
  explicit Device(size_t bytes) { check(cudaMalloc(&p, bytes), "cudaMalloc"); }
  ~Device() { (void)cudaFree(p); }
  Device(const Device&) = delete;
  void* p = nullptr;
};

struct Pinned {
  explicit Pinned(size_t bytes) {
    check(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), "cudaHostAlloc");
  }
  ~Pinned() { (void)cudaFreeHost(p); }
  Pinned(const Pinned&) = delete;
  void* p = nullptr;
};

struct Timer {
  Timer() {
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
  }
  ~Timer() {
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
  }
  Timer(const Timer&) = delete;
  // Median seconds of `call` over `times` runs after one that does not count.
  template <class F>
  double median(int times, F call) {
    std::vector<double> seconds;
    for (int i = -1; i < times; i++) {
      check(cudaEventRecord(begin, nullptr), "cudaEventRecord");
      call();
      check(cudaEventRecord(end, nullptr), "cudaEventRecord");
      check(cudaEventSynchronize(end), "kernel");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      if (i >= 0) seconds.push_back(ms / 1e3);
    }
    std::nth_element(seconds.begin(), seconds.begin() + times / 2, seconds.end());
    return seconds[static_cast<size_t>(times) / 2];
  }
  cudaEvent_t begin, end;
};

// ---- prefill ----

// n tokens in chunks (0: whole). FLOPs: 4 d for each visible (query, key) of each head.
void bench_prefill(Timer& timer, const DeviceLimits& limits, KvType type, int d, int block_size,
                   int64_t n, int64_t chunk, int n_heads, int n_kv_heads) {
  const int64_t element = type == KvType::F16 ? 2 : 4, block_bytes = 2 * block_size * d * element;
  const int64_t n_blocks = (n + block_size - 1) / block_size,
                width = static_cast<int64_t>(n_heads) * d;
  const size_t kv_bytes = static_cast<size_t>(n_kv_heads * n_blocks * block_bytes);
  Device q(static_cast<size_t>(n * width) * 4), out(static_cast<size_t>(n * width) * 2),
      blocks(kv_bytes);
  // Random numbers in [-2, 2), repeated: zeros would flatter (less power drawn, higher clocks).
  std::mt19937 random(1);
  std::vector<float> floats(1 << 22);
  for (float& x : floats) x = static_cast<float>(random()) * 0x1p-30f - 2;
  std::vector<uint16_t> halves(1 << 22);  // sign, exponent of [0.5, 2), fraction
  for (uint16_t& h : halves) h = static_cast<uint16_t>((random() & 0x87ff) + 0x3800);
  const auto fill = [](void* to, size_t bytes, const void* from, size_t from_bytes) {
    for (size_t at = 0; at < bytes; at += from_bytes) {
      check(cudaMemcpy(static_cast<char*>(to) + at, from, std::min(from_bytes, bytes - at),
                       cudaMemcpyHostToDevice),
            "fill");
    }
  };
  fill(q.p, static_cast<size_t>(n * width) * 4, floats.data(), floats.size() * 4);
  if (type == KvType::F16) fill(blocks.p, kv_bytes, halves.data(), halves.size() * 2);
  else fill(blocks.p, kv_bytes, floats.data(), floats.size() * 4);

  const int64_t step = chunk > 0 ? chunk : n;
  const double seconds = timer.median(type == KvType::F16 ? 7 : 1, [&] {
    for (int64_t pos = 0; pos < n; pos += step) {
      FlashPrefill args;
      args.q = static_cast<const float*>(q.p) + pos * width, args.n = std::min(step, n - pos),
      args.ldq = width;
      args.pos0 = pos, args.n_heads = n_heads, args.n_kv_heads = n_kv_heads;
      args.blocks = static_cast<const std::byte*>(blocks.p), args.n_blocks = n_blocks;
      args.layout = {type, block_size, d, block_bytes, block_bytes / 2};
      args.out = static_cast<uint16_t*>(out.p) + pos * width, args.ldo = width,
      args.out_type = WType::BF16;
      check(flash_prefill(args, limits, nullptr), "flash_prefill");
    }
  });
  const double pairs = 0.5 * static_cast<double>(n) * static_cast<double>(n + 1),
               flops = 4 * pairs * d * n_heads;
  std::printf("prefill  %s  d %3d  %d/%d heads  B %d  n %6lld in %5lld  %8.3f ms  %6.1f TFLOP/s\n",
              type == KvType::F16 ? "f16" : "f32", d, n_heads, n_kv_heads, block_size,
              static_cast<long long>(n), static_cast<long long>(step), seconds * 1e3,
              flops / seconds / 1e12);
}

// ---- gather ----

void bench_gather(Timer& timer, const DeviceLimits& limits, const Pinned& host, size_t host_bytes,
                  const Device& device, bool to_host, size_t block_bytes, int64_t n) {
  const size_t places = host_bytes / block_bytes, bytes = static_cast<size_t>(n) * block_bytes;
  std::vector<uint32_t> place(places);
  std::iota(place.begin(), place.end(), 0u);
  std::mt19937 random(static_cast<uint32_t>(n));
  std::shuffle(place.begin(), place.end(), random);
  std::vector<Copy> copies(static_cast<size_t>(n));
  for (size_t i = 0; i < copies.size(); i++) {
    std::byte* far = static_cast<std::byte*>(host.p) + place[i] * block_bytes;
    std::byte* near = static_cast<std::byte*>(device.p) + i * block_bytes;
    copies[i] = to_host ? Copy{near, far} : Copy{far, near};
  }
  Device list(copies.size() * sizeof(Copy));
  check(cudaMemcpy(list.p, copies.data(), copies.size() * sizeof(Copy), cudaMemcpyHostToDevice),
        "copies");
  const double gathered = timer.median(15, [&] {
    check(gather(static_cast<const Copy*>(list.p), n, static_cast<int64_t>(block_bytes),
                 limits.n_sm, nullptr),
          "gather");
  });
  const cudaMemcpyKind kind = to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  const double one = timer.median(15, [&] {
    check(cudaMemcpyAsync(to_host ? host.p : device.p, to_host ? device.p : host.p, bytes, kind,
                          nullptr),
          "copy");
  });
  const double each = timer.median(n > 4096 ? 3 : 7, [&] {
    for (const Copy& c : copies)
      check(cudaMemcpyAsync(c.dst, c.src, block_bytes, kind, nullptr), "copy");
  });
  std::printf("gather   %s  %5zu B x %5lld  %6.1f GB/s   one big copy %6.1f   a copy each %6.1f\n",
              to_host ? "D2H" : "H2D", block_bytes, static_cast<long long>(n),
              static_cast<double>(bytes) / gathered / 1e9, static_cast<double>(bytes) / one / 1e9,
              static_cast<double>(bytes) / each / 1e9);
}

DeviceLimits device_limits() {
  DeviceLimits limits;
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&limits.n_sm, cudaDevAttrMultiProcessorCount, 0), "device");
  check(cudaDeviceGetAttribute(&limits.smem_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
        "device");
  check(cudaDeviceGetAttribute(&limits.smem_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0),
        "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "device");
  limits.compute = 10 * major + minor;
  return limits;
}

}  // namespace

int main() {
  const DeviceLimits limits = device_limits();
  Timer timer;
  for (const int d : {128, 64}) {
    bench_prefill(timer, limits, KvType::F16, d, 32, 8192, 0, 32, 8);
    bench_prefill(timer, limits, KvType::F16, d, 32, 8192, 2048, 32, 8);
    bench_prefill(timer, limits, KvType::F16, d, 32, 32768, 0, 32, 8);
    bench_prefill(timer, limits, KvType::F16, d, 32, 32768, 2048, 32, 8);
  }
  bench_prefill(timer, limits, KvType::F16, 128, 16, 8192, 0, 32, 8);
  bench_prefill(timer, limits, KvType::F16, 128, 64, 8192, 0, 32, 8);
  for (const int d : {80, 96, 256})
    bench_prefill(timer, limits, KvType::F16, d, 32, 8192, 0, 32, 8);
  bench_prefill(timer, limits, KvType::F32, 128, 32, 8192, 0, 32, 8);

  constexpr size_t kHostBytes = size_t{2} << 30, kMost = 16384;
  Pinned host(kHostBytes);
  std::memset(host.p, 1, kHostBytes);
  Device device(kMost * 16384);
  for (const bool to_host : {false, true}) {
    for (const size_t block_bytes : {size_t{16384}, size_t{8192}}) {
      for (const int64_t n : {int64_t{64}, int64_t{256}, int64_t{2048}, int64_t{kMost}}) {
        bench_gather(timer, limits, host, kHostBytes, device, to_host, block_bytes, n);
      }
    }
  }
}
