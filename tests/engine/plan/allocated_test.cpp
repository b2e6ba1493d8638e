// Compares the memory plan with the buffers that prompts and steps take.
#include "backend/cpu/fastest_kernels.h"
#include "tests/engine/plan/taken_buffers.h"
#include "tests/engine/tiny_checkpoint.h"
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

// Other work on the machine may change which kernels are the fastest.
TEST_CASE("a plan counts all kernels that isa auto may choose", "[plan]") {
  ContextOptions o = options();
  o.n_ctx = 4096;
  const Runtime r(o);
  const auto activations = [&](IsaChoice isa) {
    o.isa = isa;
    MemoryPlan plan;
    REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
    return plan.activations;
  };
  const uint64_t of_auto = activations(IsaChoice::AUTO);
  uint64_t most = 0;
  for (const cpu::Kernels* kernels : kernel_choices())
    most = std::max(
        most, activations(static_cast<IsaChoice>(int(kernels->isa) + int(IsaChoice::SCALAR))));
  CHECK(of_auto >= most);
}

TEST_CASE("the plan has no per-layer embeddings, whose rows are read from the file",
          "[plan][families]") {
  const TempDir temp;
  const std::string folder = tiny_folder(tiny_checkpoint("gemma4_e2b"), temp);
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    ContextOptions o = options();
    o.device = device;
    const Runtime r(o, folder);
    const Model& model = *r.model->model;
    MemoryPlan plan{};
    REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
    const Tensor& table = model.weights.layer_embedding;
    CHECK(table.bytes() == int64_t{320} * model.config.n_layers * 48 * 2);
    CHECK(plan.weights + static_cast<uint64_t>(table.bytes()) == model.weight_bytes);
  }
}
