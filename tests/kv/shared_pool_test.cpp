// The pool of the emulated device: threads that find, claim and fill slots at once, as warps do on
// a GPU.
#include "kv/shared_pool.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>

#include "util/thread_pool.h"

using namespace riffle;

namespace {

constexpr int kHeads = 3, kTables = 4;
constexpr int64_t kBlocks = 40, kEntries = kHeads * kBlocks;
constexpr size_t kBytes = 256;

struct Tables {
  std::unique_ptr<std::atomic<int32_t>[]> of[kTables];

  explicit Tables(SharedPool& pool) {
    for (int t = 0; t < kTables; ++t) {
      of[t] = std::make_unique<std::atomic<int32_t>[]>(kEntries);
      for (int64_t e = 0; e < kEntries; ++e) of[t][e] = -1;
      pool.set_table(t, of[t].get());
    }
  }
};

std::byte pattern(int table, int64_t entry) {
  return std::byte(1 + (table * 67 + entry * 3) % 250);
}

bool holds(const std::byte* block, int table, int64_t entry) {
  for (size_t i = 0; i < kBytes; ++i)
    if (block[i] != pattern(table, entry)) return false;
  return true;
}

// Reads a block as attention does; true if its bytes are right. slot: where it is, or -1.
bool read(SharedPool& pool, int table, int64_t entry, int32_t& slot, bool& hit) {
  const SharedPool::Found found = pool.find(table, entry);
  slot = found.slot;
  hit = found.hit;
  if (slot < 0) return true;  // from the host
  if (!hit) {
    std::memset(pool.slot(slot), int(pattern(table, entry)), kBytes);
    pool.enter(table, entry, slot);
  }
  return holds(pool.slot(slot), table, entry);
}

}  // namespace

TEST_CASE("a pool that its readers manage: threads that read at once get right blocks",
          "[kv][pool]") {
  ThreadPool threads(4);
  for (const int64_t slots : {1, 7, 60, 600}) {
    INFO(slots << " slots");
    SharedPool pool(slots, kBytes);
    Tables tables(pool);
    std::mt19937 random(static_cast<uint32_t>(slots));
    int64_t hits = 0, homeless = 0;
    for (int step = 0; step < 120; ++step) {
      pool.begin_step();
      constexpr int kReads = 90;
      struct Read {
        int table;
        int64_t entry;
        int32_t slot = -1;
        bool hit = false, right = false;
      };
      std::vector<Read> reads;
      for (int i = 0; i < kReads; ++i)  // some of the same blocks: those of forks
        reads.push_back({static_cast<int>(random() % kTables),
                         static_cast<int64_t>(random() % (i % 2 ? kEntries : 20))});
      threads.parallel_for(kReads, [&](int64_t i, int) {
        Read& r = reads[i];
        r.right = read(pool, r.table, r.entry, r.slot, r.hit);
      });
      for (const Read& r : reads) {
        CHECK(r.right);
        // A slot that a step uses stays for that step.
        if (r.slot >= 0) CHECK(holds(pool.slot(r.slot), r.table, r.entry));
        hits += r.hit;
        homeless += r.slot < 0;
      }
      // Every entry names a slot that no other entry names.
      std::vector<int> named(slots);
      for (int t = 0; t < kTables; ++t)
        for (int64_t e = 0; e < kEntries; ++e)
          if (const int32_t slot = tables.of[t][e]; slot >= 0) {
            CHECK(++named[slot] == 1);
            CHECK(holds(pool.slot(slot), t, e));
          }
      if (step % 10 == 9) {
        const int table = static_cast<int>(random() % kTables);
        const auto first = static_cast<int64_t>(random() % kBlocks);
        pool.forget(table, kHeads, kBlocks, first);
        for (int h = 0; h < kHeads; ++h)
          for (int64_t b = first; b < kBlocks; ++b) CHECK(tables.of[table][h * kBlocks + b] == -1);
      }
    }
    CHECK(hits > 0);
    CHECK((homeless > 0) == (slots < 100));
    for (int t = 0; t < kTables; ++t) pool.forget(t, kHeads, kBlocks, 0);
    CHECK(pool.used() == 0);
  }
}

TEST_CASE("a pool that its readers manage: the least recently used slots go first", "[kv][pool]") {
  SharedPool pool(4, kBytes);
  Tables tables(pool);
  int32_t slot = 0;
  bool hit = false;
  for (const int64_t entry : {0, 1, 2, 3}) {
    pool.begin_step();
    CHECK(read(pool, 0, entry, slot, hit));
    CHECK_FALSE(hit);
  }
  CHECK(pool.used() == 4);
  pool.begin_step();
  CHECK(read(pool, 0, 0, slot, hit));  // the oldest is used again
  CHECK(hit);
  CHECK(read(pool, 0, 4, slot, hit));  // so the next one goes
  CHECK_FALSE(hit);
  CHECK(tables.of[0][1] == -1);
  for (const int64_t entry : {0, 2, 3, 4}) CHECK(tables.of[0][entry] >= 0);
  // All slots are used in one step: further blocks have none, and nothing is lost.
  pool.begin_step();
  for (const int64_t entry : {0, 2, 3, 4}) CHECK((read(pool, 0, entry, slot, hit) && hit));
  CHECK(read(pool, 0, 9, slot, hit));
  CHECK(slot == -1);
}
