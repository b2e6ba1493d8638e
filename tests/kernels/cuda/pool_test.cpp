// The slot pool on the device: victims in order of last use, and slots that are lent. After many
// steps: papers/ranked_pool_test.cpp.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/kernels/cuda/decode_scene.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Age as select_victims sees it: free slots before all others, what is older than its bins equal.
uint32_t rank_of(unsigned long long word, uint32_t now) {
  if (word >> cuda::kStampBits == cuda::kFreeWord >> cuda::kStampBits) return 0;
  const uint32_t age = now - static_cast<uint32_t>(word & cuda::kMaxStamp);
  return age >= cuda::kVictimBins ? 1 : cuda::kVictimBins + 1 - age;
}

}  // namespace

TEST_CASE("victims come oldest first, each slot once", "[cuda]") {
  if (skip()) return;
  std::mt19937 random(1);
  for (int64_t n : {1, 31, 1000, 4096, 4097, 300001})
    for (uint32_t now : {1u, 50u, 3000u, 100000u}) {
      INFO("slots " << n << " now " << now);
      std::vector<unsigned long long> words(n);
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t stamp = random() % 3 == 0 ? now : 1 + random() % now;
        words[i] = random() % 8 == 0 ? cuda::kFreeWord : cuda::pool_key(random() % 1024, i) | stamp;
      }
      DeviceArray<unsigned long long> device_words(words);
      // The last ones may be lent: these are no victims.
      const int64_t usable = n - (now % 100 == 50 ? n / 3 : 0);
      DeviceArray<int32_t> victims(n), cursors(2),
          n_usable(std::vector<int32_t>{static_cast<int32_t>(usable)});
      victims.poison(), cursors.poison();
      DeviceArray<uint32_t> device_now(std::vector<uint32_t>{now});
      DeviceArray<std::byte> scratch(cuda::victims_scratch_bytes());
      scratch.poison();
      cuda::Pool pool;
      pool.n_slots = n;
      pool.words = device_words.get();
      pool.victims = victims.get();
      pool.n_victims = cursors.get();
      pool.next_victim = cursors.get() + 1;
      pool.now = device_now.get();
      pool.n_usable = n_usable.get();
      check_cuda(cuda::select_victims(pool, scratch.get(), nullptr));
      CHECK(device_now.download()[0] == now + 1);
      CHECK(cursors.download() == std::vector<int32_t>{int32_t(usable), 0});
      std::vector<int32_t> got = victims.download();
      got.resize(usable);
      std::vector<char> seen(n, 0);
      bool each_once = true, in_order = true;
      uint32_t before = 0;
      for (int32_t slot : got) {
        if (slot < 0 || slot >= usable || seen[slot]++) {
          each_once = false;
          break;
        }
        const uint32_t rank = rank_of(words[slot], now + 1);
        in_order = in_order && rank >= before;
        before = rank;
      }
      CHECK(each_once);
      CHECK(in_order);
    }
}

TEST_CASE(
    "lent slots: their blocks leave the pool, no step takes them, and what is read is the same",
    "[cuda]") {
  if (skip()) return;
  SceneShape shape;
  shape.d = 64, shape.block_size = 16, shape.g = 2, shape.tokens = {16 * 90 + 2, 16 * 40};
  const SceneOf scene(shape, everything());
  const int64_t n_slots = 200;
  SceneDeviceOf device(scene, n_slots);
  device.run();
  device.run();
  const std::vector<float> want = device.out.download();
  const auto owned = [&](int64_t from, int64_t to) {
    const std::vector<unsigned long long> words = device.words.download();
    return std::count_if(words.begin() + from, words.begin() + to, [](unsigned long long word) {
      return word >> cuda::kStampBits != cuda::kFreeWord >> cuda::kStampBits;
    });
  };
  REQUIRE(owned(0, n_slots) == n_slots);
  for (const int64_t first : {int64_t(70), int64_t(0), int64_t(130), n_slots}) {
    INFO("lent from " << first);
    check_cuda(cuda::lend_slots(device.step.pool, first, nullptr));
    CHECK(owned(first, n_slots) == 0);
    // Whatever is written there reaches no result.
    const std::vector<std::byte> noise((n_slots - first) * scene.slot_bytes(), std::byte(0xff));
    if (!noise.empty())
      check_cuda(cudaMemcpy(device.slots.get() + first * scene.slot_bytes(), noise.data(),
                            noise.size(), cudaMemcpyHostToDevice));
    for (int turn = 0; turn < 3; ++turn) {
      device.run();
      CHECK(device.out.download() == want);
      CHECK(owned(first, n_slots) == 0);
    }
    CHECK(owned(0, first) == first);
  }
}
