// Owned, 64-byte aligned memory; running out is Error RIFFLE_OUT_OF_MEMORY.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace riffle {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);  // contents undefined
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <class T>
  T* as() const { return static_cast<T*>(data_); }

  // At least bytes; contents are lost when it grows.
  void reserve(size_t bytes) {
    if (bytes > bytes_) *this = Buffer(bytes);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace riffle
