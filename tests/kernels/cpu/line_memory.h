// Memory of whole cache lines, as the kernels of key codes need it, filled with a pattern.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace riffle::test {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<uint8_t, Free>;
inline Memory memory(size_t bytes) {
  const size_t whole = (bytes + 63) / 64 * 64;
  Memory m(static_cast<uint8_t*>(std::aligned_alloc(64, whole)));
  std::memset(m.get(), 0xee, whole);
  return m;
}

}  // namespace riffle::test
