// XXH3, 64 bits (xxHash). It finds damage, not forgery.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace riffle {

uint64_t checksum(const void* data, size_t bytes);

// The same checksum of bytes that come in pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(const void* data, size_t bytes);
  template <class T>
  void add_value(const T& value) {
    add(&value, sizeof value);
  }
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace riffle
