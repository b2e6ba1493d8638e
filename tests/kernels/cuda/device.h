// Helpers of the CUDA tests: a check for a device, and device memory that frees itself.
#pragma once
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/types.h"

namespace riffle::test {

// A device is present and usable.
inline bool cuda_ready() {
  int n = 0;
  const bool found =
      cudaGetDeviceCount(&n) == cudaSuccess && n > 0 && cudaFree(nullptr) == cudaSuccess;
  if (!found) (void)cudaGetLastError();  // or the next launch would report it
  return found;
}

// For the beginning of a test: no device, and the test has said so.
inline bool skip() {
  if (cuda_ready()) return false;
  WARN("SKIPPED: no CUDA device");
  return true;
}

inline void check_cuda(cudaError_t status, const char* what = "CUDA") {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

inline cuda::DeviceLimits device_limits() {
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  const auto get = [&](cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
  };
  cuda::DeviceLimits limits;
  limits.n_sm = get(cudaDevAttrMultiProcessorCount);
  limits.smem_per_block = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  limits.smem_per_sm = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  limits.compute =
      10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor);
  return limits;
}

// Device memory of `size` T. Every upload and download waits for the whole device, so a kernel's
// error surfaces there.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t size) : size_(size) {
    if (size)
      check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    upload(values);
  }
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    DeviceArray taken(std::move(other));
    swap(taken);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_) (void)cudaFree(data_);
  }

  T* get() const { return data_; }
  size_t size() const { return size_; }

  void upload(std::span<const T> values, size_t at = 0) {
    if (at + values.size() > size_) throw std::out_of_range("DeviceArray::upload");
    wait();
    if (values.empty()) return;
    check_cuda(cudaMemcpy(data_ + at, values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
               "upload");
  }
  void upload(const std::vector<T>& values) { upload(std::span<const T>(values)); }
  std::vector<T> download() const {
    wait();
    std::vector<T> values(size_);
    if (size_)
      check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
                 "download");
    return values;
  }
  // Every byte: 0xff makes NaN of f16, bf16, f32 and f64.
  void poison(int byte = 0xff) {
    wait();
    if (size_) check_cuda(cudaMemset(data_, byte, size_ * sizeof(T)), "poison");
    wait();
  }

 private:
  void swap(DeviceArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  static void wait() { check_cuda(cudaDeviceSynchronize(), "a kernel before"); }

  T* data_ = nullptr;
  size_t size_ = 0;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace riffle::test
