#include "util/checksum.h"

// Compiles all of xxHash into this file: no library is linked, and the compiler sees the loops.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace riffle {

struct Checksum::State {
  XXH3_state_t xxh;
};

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Checksum::~Checksum() = default;
void Checksum::add(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(&state_->xxh, data, bytes);
}
uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace riffle
