// Blocks in a file's mapping: the store counts their holders, and refuses those that overlap
// others.
#include "kv/host_store.h"

#include <catch2/catch.hpp>
#include <vector>

#include "util/error.h"

using namespace riffle;

TEST_CASE("adopted blocks may come again, but never overlap others", "[kv][session_file]") {
  constexpr int64_t kBytes = 256;
  HostStore store(make_system_slabs());
  std::byte* const own = store.take(kBytes);
  const auto map = std::make_shared<std::vector<std::byte>>(40 * kBytes);
  std::byte* const at = map->data();
  store.adopt(at + 10 * kBytes, kBytes, 10, map);
  store.adopt(at + 10 * kBytes, kBytes, 10, map);
  CHECK(map.use_count() == 2);
  store.share(at + 19 * kBytes);
  for (const auto& [first, n] :
       {std::pair{10, 11}, {10, 9}, {9, 2}, {9, 20}, {11, 1}, {19, 1}, {19, 5}}) {
    INFO("blocks from " << first << ": " << n);
    CHECK_THROWS_AS(store.adopt(at + first * kBytes, kBytes, n, map), Error);
  }
  CHECK_THROWS_AS(store.adopt(own, kBytes, 1, map), Error);
  store.adopt(at + 20 * kBytes, kBytes, 20, map);
  store.adopt(at, kBytes, 10, map);
  store.share(at + 39 * kBytes);
  CHECK(store.held_once(at + 39 * kBytes));
  store.drop_unheld();
  CHECK(map.use_count() == 3);
  store.give_back(at + 19 * kBytes);
  store.give_back(at + 39 * kBytes);
  CHECK(map.use_count() == 1);
  store.give_back(own);
}
