// Owned, 64-byte aligned memory. A failed allocation throws RIFFLE_OUT_OF_MEMORY. Host memory, or
// memory that an owner (a GPU's heap) hands out and takes back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace riffle {

class Buffer {
 public:
  Buffer() = default;
  using Release = void (*)(void* owner, void* data, size_t bytes);

  explicit Buffer(size_t bytes);  // contents undefined
  Buffer(void* data, size_t bytes, Release release, void* owner)
      : data_(data), bytes_(bytes), release_(release), owner_(owner) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

  // Makes room for at least `bytes`. Contents are lost when it grows; after a failure the
  // buffer is empty.
  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    *this = Buffer();  // first, so that the old memory and the new do not add up
    *this = Buffer(bytes);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;  // null: std::free
  void* owner_ = nullptr;
};

}  // namespace riffle
