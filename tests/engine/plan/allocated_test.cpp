// The memory plan against the buffers that prompts and steps take.
#include <map>
#include <mutex>
#include <optional>

#include "tests/engine/test_model.h"
#include "tests/engine/uneven_model.h"
#include "util/buffer.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Bytes of host Buffers, now and at most.
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
    if (at == buffers.end()) return;  // a GPU's
    now -= at->second;
    buffers.erase(at);
  }
};

Taken& taken() {
  static Taken all;
  return all;
}

}  // namespace

// Buffer::Buffer(size_t) and its destructor by the linker's names (the Makefile has WRAPPED).
extern "C" void __real__ZN6riffle6BufferC1Em(Buffer* self, size_t bytes);
extern "C" void __wrap__ZN6riffle6BufferC1Em(Buffer* self, size_t bytes);
extern "C" void __real__ZN6riffle6BufferD1Ev(Buffer* self);
extern "C" void __wrap__ZN6riffle6BufferD1Ev(Buffer* self);
void __wrap__ZN6riffle6BufferC1Em(Buffer* self, size_t bytes) {
  __real__ZN6riffle6BufferC1Em(self, bytes);
  taken().take(self->data(), self->size());
}
void __wrap__ZN6riffle6BufferD1Ev(Buffer* self) {
  taken().give_back(self->data());
  __real__ZN6riffle6BufferD1Ev(self);
}

// Tokens of any of these models.
static std::vector<int32_t> low_tokens(int n, uint32_t seed) {
  std::vector<int32_t> tokens = some_tokens(n, seed);
  for (int32_t& t : tokens) t %= kUnevenVocab;
  return tokens;
}

TEST_CASE("buffers of prompts and steps take what the plan says", "[plan]") {
  struct Case {
    DeviceKind device;
    KvKind kv;
    int chunk;
    bool uneven = false;  // layers differ in KV heads and head size
  };
  for (const auto& [device, kv, chunk, uneven] : {Case{DeviceKind::CPU, KvKind::F16, 512},
                                                  {DeviceKind::CPU, KvKind::F32, 128},
                                                  {DeviceKind::EMU, KvKind::Q8, 512},
                                                  {DeviceKind::EMU, KvKind::F16, 512, true}}) {
    ContextOptions o = options();
    o.device = device;
    o.kv_type = kv;
    o.n_ctx = 4096;
    o.n_threads = 2;
    o.n_sessions = 3;
    o.prefill_chunk = chunk;
    INFO(device << " " << kv << ", chunks of " << chunk << ", uneven " << uneven);
    size_t before = taken().now;
    std::optional<Runtime> runtime;
    if (uneven) runtime.emplace(o, uneven_model);
    else runtime.emplace(o);
    Runtime& r = *runtime;
    for (const Buffer& weights : r.model->model->generated) before += weights.size();
    MemoryPlan plan;
    REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
    taken().most = taken().now;
    riffle_session* sessions[] = {r.session(low_tokens(4000, 1)), r.session(low_tokens(70, 2)),
                                  r.session(low_tokens(80, 3))};
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
}
