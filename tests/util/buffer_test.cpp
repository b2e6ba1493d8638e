#include "util/buffer.h"

#include <malloc.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <vector>

using riffle::Buffer;

TEST_CASE("buffers are aligned", "[memory]") {
  for (const size_t bytes : {1U, 63U, 64U, 1000U, 300000U})
    CHECK(reinterpret_cast<uintptr_t>(Buffer(bytes).data()) % 64 == 0);
  CHECK(Buffer(0).data() == nullptr);
  CHECK_THROWS(Buffer(SIZE_MAX));
}

#ifdef __GLIBC__
// A server makes and frees the buffers of sequences without end, with small blocks between them.
TEST_CASE("the heap does not grow when buffers come and go", "[memory]") {
  constexpr size_t kLive = 8, kBytes = 300000;
  std::free(std::malloc(24 << 20));  // from now on glibc puts blocks of this size into the heap
  std::vector<Buffer> live(kLive);
  std::vector<std::unique_ptr<char[]>> small;
  const size_t before = mallinfo2().uordblks + mallinfo2().fordblks;
  for (size_t i = 0; i < 4000; ++i) {
    Buffer& one = live[i * 5 % kLive];
    one = Buffer();
    small.push_back(std::make_unique<char[]>(2000));
    if (small.size() > 50) small.erase(small.begin() + static_cast<std::ptrdiff_t>(i * 7 % 50));
    one = Buffer(kBytes);
  }
  const size_t after = mallinfo2().uordblks + mallinfo2().fordblks;
  CHECK(after < before + 2 * kLive * kBytes);
}
#endif
