// Compares the bytes of host Buffers that prompts and steps take with the memory plan.
#pragma once
#include <algorithm>
#include <map>
#include <mutex>

#include "tests/engine/test_model.h"

namespace riffle::test {

// The host Buffers that exist, with their sizes; the sum of the sizes, and the largest sum so far.
struct Taken {
  std::mutex mutex;
  std::map<const void*, size_t> buffers;
  size_t now = 0, most = 0;

  void take(const void* data, size_t bytes) {
    const std::scoped_lock lock(mutex);
    if (!data) return;
    buffers[data] = bytes;
    now += bytes;
    most = std::max(most, now);
  }
  void give_back(const void* data) {
    const std::scoped_lock lock(mutex);
    const auto at = buffers.find(data);
    if (at == buffers.end()) return;  // a GPU's Buffer
    now -= at->second;
    buffers.erase(at);
  }
};

// Returns the Buffers of this process (allocated_test.cpp).
Taken& taken();

// Reads prompts into three sessions of 4,096 tokens, decodes, and compares. before: bytes of the
// Buffers that do not belong to the context, such as weights that are in no file.
inline void check_taken(Runtime& r, const ContextOptions& o, size_t before) {
  const auto prompt = [&](int n, uint32_t seed) {
    std::vector<int32_t> tokens = some_tokens(n, seed);
    for (int32_t& t : tokens) t %= r.vocab_size();
    return tokens;
  };
  MemoryPlan plan;
  REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
  taken().most = taken().now;
  riffle_session* sessions[] = {r.session(prompt(4000, 1)), r.session(prompt(70, 2)),
                                r.session(prompt(80, 3))};
  for (int32_t token = 5; token < 13; ++token) {
    const int32_t tokens[] = {token, token, token};
    r.check(riffle_step(r.context, sessions, tokens, 3));
  }
  // Weights are in the mapped file; blocks, digests and RoPE tables are not in Buffers.
  uint64_t tables = 0;
  for (const MemoryItem& item : plan.buffers)
    if (item.name == "RoPE tables") tables += item.bytes;
  const uint64_t planned =
      plan.activations - tables + plan.prefill_kv + plan.pool + plan.selector_state;
  const uint64_t found = taken().most - before;
  INFO("planned " << planned << ", taken " << found);
  CHECK(found <= planned);
  CHECK(found >= planned - planned / 10);
}

}  // namespace riffle::test
