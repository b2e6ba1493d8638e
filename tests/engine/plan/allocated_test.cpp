// Compares the memory plan with the buffers that prompts and steps take.
#include "tests/engine/plan/taken_buffers.h"
#include "util/buffer.h"

using namespace riffle;
using namespace riffle::test;

Taken& riffle::test::taken() {
  static Taken all;
  return all;
}

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

TEST_CASE("buffers of prompts and steps take what the plan says", "[plan]") {
  struct Case {
    DeviceKind device;
    KvKind kv;
    int chunk;
  };
  for (const auto& [device, kv, chunk] : {Case{DeviceKind::CPU, KvKind::F16, 512},
                                          {DeviceKind::CPU, KvKind::F32, 128},
                                          {DeviceKind::EMU, KvKind::Q8, 512}}) {
    ContextOptions o = options();
    o.device = device;
    o.kv_type = kv;
    o.n_ctx = 4096;
    o.n_threads = 2;
    o.n_sessions = 3;
    o.prefill_chunk = chunk;
    INFO(device << " " << kv << ", chunks of " << chunk);
    const size_t before = taken().now;
    Runtime r(o);
    check_taken(r, o, before);
  }
}
