// The slot pool's invariants on the device after many steps of rows that stop early.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "tests/kernels/cuda/papers/ranked.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE(
    "the pool after many steps: words and page tables agree, slots hold their blocks, the oldest "
    "went",
    "[cuda]") {
  if (skip()) return;
  SceneShape shape;
  shape.d = 64, shape.block_size = 16, shape.g = 2,
  shape.tokens = {16 * 90 + 2, 16 * 40, 16 * 64 + 9};
  Ranked ranked;
  ranked.progressive = true;
  ranked.microbatch = 4;
  ranked.slack = std::log(0.1 / 0.9);
  const Scene scene(shape, ranked);
  for (int64_t n_slots : {3, 40, 120, 400}) {
    INFO("slots " << n_slots);
    SceneDevice device(scene, n_slots);
    const std::vector<std::byte> fresh = device.slots.download();
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    std::vector<float> q = device.q.download();
    for (uint32_t turn = 1; turn <= 40; ++turn) {
      for (float& x : q) x += 0.7f * normal(random);
      device.q.upload(q);
      const std::vector<unsigned long long> before = device.words.download();
      device.run();
      const std::vector<unsigned long long> words = device.words.download();
      const std::vector<std::byte> slots = device.slots.download();
      const std::vector<int32_t> order = device.order.download();
      const std::vector<cuda::RowResult> results = device.results.download();
      REQUIRE(device.now.download()[0] == turn);

      // Blocks that this step attended to, except the tail.
      std::set<std::pair<int, int64_t>> attended;
      int lookups = 0, misses = 0;
      for (int r = 0; r < device.rows(); ++r) {
        const int i = r / shape.n_kv_heads, head = r % shape.n_kv_heads;
        const SceneSequence& s = scene.sequences[i];
        lookups += results[r].lookups, misses += results[r].misses;
        for (int p = 0; p < results[r].n_read; ++p) {
          const int b = order[r * scene.max_blocks + p];
          if (b != s.n_blocks - 1) attended.insert({5 + 3 * i, scene.entry(s, head, b)});
        }
      }
      REQUIRE(lookups == int(attended.size()));
      int held_before = 0;
      for (unsigned long long w : before)
        held_before +=
            attended.count({int(w >> 54), int64_t(w >> 24 & ((1ull << 30) - 1))}) ? 1 : 0;
      // A block held before is a hit unless somebody took its slot before it was claimed; the
      // others are misses.
      REQUIRE(misses >= lookups - held_before);

      // Nothing is written between the end of a block and the next slot.
      for (int64_t slot = 0; slot < n_slots; ++slot) {
        const int64_t gap = slot * scene.slot_bytes() + scene.layout.block_bytes;
        REQUIRE(std::equal(slots.begin() + gap, slots.begin() + (slot + 1) * scene.slot_bytes(),
                           fresh.begin() + gap));
      }
      // Words and page tables are a bijection; slots hold their blocks' bytes.
      std::map<std::pair<int, int64_t>, int> owner;
      for (int64_t slot = 0; slot < n_slots; ++slot) {
        if (words[slot] == cuda::kFreeWord) continue;
        const std::pair<int, int64_t> key(int(words[slot] >> 54),
                                          int64_t(words[slot] >> 24 & ((1ull << 30) - 1)));
        REQUIRE(owner.emplace(key, int(slot)).second);
        const uint32_t stamp = uint32_t(words[slot] & cuda::kMaxStamp);
        REQUIRE(stamp >= 1);
        REQUIRE(stamp <= turn);
        const SceneSequence& s = scene.sequences[(key.first - 5) / 3];
        const int head = int(key.second / s.max_blocks) - shape.layer * shape.n_kv_heads,
                  b = int(key.second % s.max_blocks);
        REQUIRE(head >= 0);
        REQUIRE(head < shape.n_kv_heads);
        REQUIRE(b < s.n_blocks - 1);
        REQUIRE(std::memcmp(slots.data() + slot * scene.slot_bytes(), scene.block(s, head, b),
                            2 * scene.layout.value_offset) == 0);
      }
      size_t entries = 0;
      for (size_t i = 0; i < scene.sequences.size(); ++i) {
        const std::vector<int32_t> table = scene.sequences[i].page_table.download();
        for (size_t e = 0; e < table.size(); ++e) {
          if (table[e] < 0) continue;
          ++entries;
          const auto it = owner.find({int(5 + 3 * i), int64_t(e)});
          REQUIRE(it != owner.end());
          REQUIRE(it->second == table[e]);
        }
      }
      REQUIRE(entries == owner.size());
      // All that was attended is held, or the pool is full of this step's blocks (and of those
      // requested ahead of a test).
      size_t held = 0, stamped = 0;
      for (const auto& key : attended) held += owner.count(key);
      for (unsigned long long w : words) stamped += (w & cuda::kMaxStamp) == turn;
      REQUIRE((held == attended.size() || stamped == size_t(n_slots)));
      // Nobody younger went while somebody older stayed, up to those claimed back meanwhile.
      uint32_t youngest_gone = 0, oldest_kept = turn;
      for (int64_t slot = 0; slot < n_slots; ++slot) {
        const bool gone = words[slot] >> cuda::kStampBits != before[slot] >> cuda::kStampBits;
        const bool was_free = before[slot] == cuda::kFreeWord;
        const uint32_t stamp = was_free ? 0 : uint32_t(before[slot] & cuda::kMaxStamp);
        if (gone) youngest_gone = std::max(youngest_gone, stamp);
        else if ((words[slot] & cuda::kMaxStamp) != turn)
          oldest_kept = std::min(oldest_kept, was_free ? 0 : stamp);
      }
      REQUIRE(youngest_gone <= oldest_kept);
    }
  }
}
