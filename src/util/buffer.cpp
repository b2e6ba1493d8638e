#include "util/buffer.h"

#include <mimalloc.h>

#include "util/error.h"

namespace riffle {

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = mi_malloc_aligned(bytes, 64);
  if (!data_) fail(RIFFLE_OUT_OF_MEMORY, "could not allocate %zu bytes", bytes);
}

Buffer::~Buffer() { mi_free(data_); }

}  // namespace riffle
