// The slot pool against a plain model of it: property 10 of src/select/README.md.
#include "kv/slot_pool.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <list>
#include <map>
#include <random>
#include <set>

using riffle::EvictPolicy;
using riffle::SlotPool;

namespace {

// A slow twin: lists and maps, no cleverness.
struct Model {
  struct Entry {
    int pins;
    bool filling;
  };
  int64_t slots;
  EvictPolicy policy;
  std::map<uint64_t, Entry> entries;
  std::list<uint64_t> order;  // oldest first; all keys

  // The key that must go to make room, or none.
  bool victim(uint64_t& key) const {
    for (uint64_t k : order)
      if (entries.at(k).pins == 0) {
        key = k;
        return true;
      }
    return false;
  }
  void erase(uint64_t key) {
    entries.erase(key);
    order.remove(key);
  }
};

}  // namespace

TEST_CASE("a slot pool behaves as its plain model, for LRU and FIFO", "[pool]") {
  for (EvictPolicy policy : {EvictPolicy::Lru, EvictPolicy::Fifo})
    for (int64_t n : {1, 2, 7, 64}) {
      std::mt19937 random(static_cast<unsigned>(n) * 31 + (policy == EvictPolicy::Lru));
      SlotPool pool(n, policy, 1);
      Model model{n, policy, {}, {}};
      std::vector<uint64_t> pinned;  // one entry for each pin we hold
      for (int step = 0; step < 20000; ++step) {
        const int op = static_cast<int>(random() % 8);
        const uint64_t key = 1 + random() % (2 * n + 3);
        if (op < 5) {
          const auto it = model.entries.find(key);
          if (it != model.entries.end() && it->second.filling) continue;
          uint64_t victim = 0;
          const bool room = static_cast<int64_t>(model.entries.size()) < n;
          const bool expect_hit = it != model.entries.end();
          const bool expect_slot = expect_hit || room || model.victim(victim);
          const bool fill = !expect_hit && op == 4;
          const SlotPool::Grant g = fill ? pool.fill(key, 0) : pool.acquire(key, 0);
          REQUIRE((g.slot != SlotPool::kNone) == expect_slot);
          REQUIRE(g.hit == expect_hit);
          if (!expect_slot) continue;
          REQUIRE(g.evicted == (!expect_hit && !room));
          if (g.evicted) {
            REQUIRE(pool.find(victim) == SlotPool::kNone);
            model.erase(victim);
          }
          REQUIRE(pool.key(g.slot) == key);
          if (expect_hit) {
            ++it->second.pins;
          } else {
            model.entries[key] = {1, fill};
            model.order.push_back(key);
            if (!fill) {
              REQUIRE(pool.state(g.slot) == SlotPool::State::Loading);
              pool.loaded(g.slot);
            }
          }
          pinned.push_back(key);
        } else if (op < 7 && !pinned.empty()) {
          const size_t i = random() % pinned.size();
          const uint64_t k = pinned[i];
          pinned.erase(pinned.begin() + static_cast<long>(i));
          const int32_t slot = pool.find(k);
          REQUIRE(slot != SlotPool::kNone);
          if (model.entries[k].filling) {
            pool.seal(slot);
            REQUIRE(pool.state(slot) == SlotPool::State::Flushing);
            pool.flushed(slot);
            model.entries[k].filling = false;
          }
          pool.unpin(slot);
          if (--model.entries[k].pins == 0 && policy == EvictPolicy::Lru) {
            model.order.remove(k);
            model.order.push_back(k);
          }
        } else if (op == 7 && model.entries.count(key) && model.entries[key].pins == 0) {
          pool.drop(key);
          model.erase(key);
        }
        // used + free = slots; key <-> slot is a bijection.
        REQUIRE(pool.used() == static_cast<int64_t>(model.entries.size()));
        std::set<int32_t> slots;
        for (const auto& [k, e] : model.entries) {
          const int32_t slot = pool.find(k);
          REQUIRE(slot != SlotPool::kNone);
          REQUIRE(pool.key(slot) == k);
          REQUIRE(pool.pins(slot) == e.pins);
          slots.insert(slot);
        }
        REQUIRE(slots.size() == model.entries.size());
      }
    }
}

TEST_CASE("a pinned or dirty slot is never evicted", "[pool]") {
  SlotPool pool(2, EvictPolicy::Lru, 1);
  const auto a = pool.acquire(1, 0), b = pool.fill(2, 0);
  REQUIRE(a.slot != b.slot);
  CHECK(pool.acquire(3, 0).slot == SlotPool::kNone);
  pool.loaded(a.slot);
  CHECK(pool.acquire(3, 0).slot == SlotPool::kNone);  // still pinned
  pool.unpin(a.slot);
  CHECK(pool.acquire(3, 0).slot == a.slot);
  CHECK(pool.find(1) == SlotPool::kNone);
  CHECK(pool.find(2) == b.slot);
}

TEST_CASE("partitions keep to their own slots", "[pool]") {
  SlotPool pool(7, EvictPolicy::Lru, 3);  // 3 + 2 + 2
  CHECK(pool.partition_size(0) == 3);
  CHECK(pool.partition_size(1) == 2);
  CHECK(pool.partition_size(2) == 2);
  std::map<int32_t, int> owner;
  for (int p = 0; p < 3; ++p)
    for (int64_t i = 0; i < pool.partition_size(p); ++i) {
      const auto g = pool.acquire(static_cast<uint64_t>(p * 100 + i), p);
      REQUIRE(g.slot != SlotPool::kNone);
      CHECK(owner.emplace(g.slot, p).second);
      pool.loaded(g.slot);
      pool.unpin(g.slot);
    }
  for (int p = 0; p < 3; ++p) {
    const auto g = pool.acquire(static_cast<uint64_t>(p * 100 + 50), p);
    CHECK(g.evicted);
    CHECK(owner[g.slot] == p);
  }
}

TEST_CASE("LRU keeps what was released last, FIFO what came last", "[pool]") {
  for (EvictPolicy policy : {EvictPolicy::Lru, EvictPolicy::Fifo}) {
    SlotPool pool(3, policy, 1);
    for (uint64_t k : {1, 2, 3}) {
      const auto g = pool.acquire(k, 0);
      pool.loaded(g.slot);
      pool.unpin(g.slot);
    }
    pool.unpin(pool.acquire(1, 0).slot);  // use the oldest again
    const auto g = pool.acquire(4, 0);
    CHECK(g.evicted);
    CHECK((pool.find(1) == SlotPool::kNone) == (policy == EvictPolicy::Fifo));
    CHECK((pool.find(2) == SlotPool::kNone) == (policy == EvictPolicy::Lru));
  }
}
