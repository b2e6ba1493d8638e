#include "util/buffer.h"

#include <cstdlib>

#include "util/error.h"

namespace riffle {

// Aligned by hand: aligned_alloc of glibc before 2.38 does not reuse freed blocks of the same size,
// so the heap of a process that makes and frees sequences for hours would grow without end.
Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  constexpr size_t kAlign = 64;
  if (bytes == 0) return;
  if (bytes < SIZE_MAX - 2 * kAlign)
    owner_ = std::malloc((bytes + kAlign - 1) / kAlign * kAlign + kAlign - 1);
  if (!owner_) fail(RIFFLE_OUT_OF_MEMORY, "could not allocate %zu bytes", bytes);
  const auto address = reinterpret_cast<uintptr_t>(owner_);
  data_ = static_cast<std::byte*>(owner_) + (kAlign - address % kAlign) % kAlign;
}

Buffer::~Buffer() {
  if (release_) release_(owner_, data_, bytes_);
  else std::free(owner_);
}

}  // namespace riffle
