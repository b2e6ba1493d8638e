#include "util/buffer.h"

#include <cstdlib>

#include "util/error.h"

namespace riffle {

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (bytes < SIZE_MAX - 63) data_ = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!data_) fail(RIFFLE_OUT_OF_MEMORY, "could not allocate %zu bytes", bytes);
}

Buffer::~Buffer() {
  if (release_) release_(owner_, data_, bytes_);
  else std::free(data_);
}

}  // namespace riffle
