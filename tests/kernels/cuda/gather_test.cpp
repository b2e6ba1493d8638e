// Block gather and scatter: every byte of every block, and no other byte.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/pool/pool.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle::cuda;
using riffle::test::check_cuda;
using riffle::test::DeviceArray;
using riffle::test::skip;

namespace {

constexpr size_t kGuard = 16;  // bytes between blocks, which nobody may touch

// Pinned host memory that the device reads and writes under the same address.
struct Pinned {
  explicit Pinned(size_t size) : bytes(size) {
    check_cuda(cudaHostAlloc(&data, size, cudaHostAllocMapped));
  }
  ~Pinned() { (void)cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(data); }
  void* data = nullptr;
  size_t bytes;
};

enum class Way { ToDevice, ToHost, OnDevice };

void check_gather(Way way, int64_t n, size_t block_bytes, bool pinned_copies, int n_sm) {
  CAPTURE(static_cast<int>(way), n, block_bytes, pinned_copies, n_sm);
  std::mt19937 random(static_cast<uint32_t>(n * 31 + block_bytes));
  const size_t stride = block_bytes + kGuard, places = static_cast<size_t>(n) + 3,
               size = places * stride;
  std::vector<std::byte> source(size), expected(size, std::byte{0xa5});
  for (std::byte& b : source) b = static_cast<std::byte>(random());

  DeviceArray<std::byte> device_src(source), device_dst(size);
  device_dst.upload(expected);
  Pinned host_src(size), host_dst(size);
  std::memcpy(host_src.data, source.data(), size);
  std::memcpy(host_dst.data, expected.data(), size);
  const std::byte* src = way == Way::ToDevice ? host_src.get() : device_src.get();
  std::byte* dst = way == Way::ToHost ? host_dst.get() : device_dst.get();

  std::vector<size_t> from(places), to(places);
  std::iota(from.begin(), from.end(), size_t{0});
  std::iota(to.begin(), to.end(), size_t{0});
  std::shuffle(from.begin(), from.end(), random);
  std::shuffle(to.begin(), to.end(), random);
  Pinned host_copies(static_cast<size_t>(n) * sizeof(Copy));
  Copy* copies = static_cast<Copy*>(host_copies.data);
  for (size_t i = 0; i < static_cast<size_t>(n); i++) {
    copies[i] = {src + from[i] * stride, dst + to[i] * stride};
    std::memcpy(expected.data() + to[i] * stride, source.data() + from[i] * stride, block_bytes);
  }
  DeviceArray<Copy> device_copies(std::vector<Copy>(copies, copies + n));

  REQUIRE(gather(pinned_copies ? copies : device_copies.get(), n, static_cast<int64_t>(block_bytes),
                 n_sm, nullptr) == cudaSuccess);
  check_cuda(cudaDeviceSynchronize(), "gather");
  std::vector<std::byte> result(size);
  check_cuda(cudaMemcpy(result.data(), dst, size, cudaMemcpyDefault));
  size_t wrong = 0;
  for (size_t i = 0; i < size; i++) wrong += result[i] != expected[i];
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("gather moves every block to its place, whichever side it lies on", "[cuda][gather]") {
  if (skip()) return;
  int n_sm = 0;
  check_cuda(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
  for (const Way way : {Way::ToDevice, Way::ToHost, Way::OnDevice}) {
    for (const bool pinned_copies : {false, true}) {
      for (const size_t block_bytes :
           {16, 2032, 2048, 2064, 4096, 8192, 16368, 16384, 16400, 32768, 65552}) {
        for (const int64_t n : {1, 2, 63, 300})
          check_gather(way, n, block_bytes, pinned_copies, n_sm);
      }
    }
    check_gather(way, 1000, 8192, false, 1);  // many blocks for each CTA
    check_gather(way, 4001, 1024, true, n_sm);
  }
}

TEST_CASE("gather refuses sizes that it cannot move and takes an empty list", "[cuda][gather]") {
  if (skip()) return;
  CHECK(gather(nullptr, 0, 4096, 8, nullptr) == cudaSuccess);
  DeviceArray<Copy> copies(1);
  CHECK(gather(copies.get(), 1, 0, 8, nullptr) == cudaErrorInvalidValue);
  CHECK(gather(copies.get(), 1, 24, 8, nullptr) == cudaErrorInvalidValue);
  CHECK(gather(copies.get(), -1, 4096, 8, nullptr) == cudaErrorInvalidValue);
  check_cuda(cudaDeviceSynchronize());
}
