// A model whose layers differ in KV heads and head size, on a GPU. Its logits are close to the
// CPU's, and their bits do not depend on the pool, the batch and the session's history.
// tests/engine/uneven_test.cpp compares the CPU with float64.
#include "tests/backend/cuda/gpu_models.h"
#include "tests/engine/session_files.h"
#include "tests/engine/uneven_model.h"
#include "tests/engine/window_histories.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

const std::vector<SelectorKind> kDeviceSelectors =
    here({SelectorKind::DENSE, SelectorKind::TOPK, SelectorKind::PSA, SelectorKind::TWILIGHT,
          SelectorKind::TOKENSELECT, SelectorKind::SHARE});

}  // namespace

// There are 60 steps. From the third on a graph is replayed, while the windows move past whole
// blocks.
TEST_CASE("cuda: uneven layers give the CPU's logits", "[cuda][uneven]") {
  if (skip()) return;
  const auto prompt = ids(0, 300), steps = ids(300, 360);
  for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
    Runtime cpu(on(DeviceKind::CPU, SelectorKind::DENSE, type), uneven_model);
    const auto want = run(cpu, cpu.session(), prompt, steps);
    for (const int chunk : {0, 50}) {
      INFO("KV " << type << ", chunks of " << chunk);
      ContextOptions o = on(DeviceKind::CUDA, SelectorKind::DENSE, type);
      o.prefill_chunk = chunk;
      Runtime r(o, uneven_model);
      const auto got = run(r, r.session(), prompt, steps);
      check_close(got, want, type);
    }
  }
}

TEST_CASE("cuda: uneven layers give the same bits from any pool", "[cuda][uneven]") {
  if (skip()) return;
  for (const SelectorKind selector : kDeviceSelectors)
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      INFO("selector " << selector << ", KV " << type);
      check_any_pool(on(DeviceKind::CUDA, selector, type), uneven_model);
    }
}

TEST_CASE("cuda: uneven layers: sequences stepped together give what each gives alone",
          "[cuda][uneven]") {
  if (skip()) return;
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::SHARE})) {
    ContextOptions o = on(DeviceKind::CUDA, selector);
    const ContextOptions alone = o;
    o.slots = 40;
    o.n_sessions = 5;
    check_together(alone, o, uneven_model);
  }
}

TEST_CASE("cuda: cuts, forks and ends of uneven layers change no bit", "[cuda][uneven][fork]") {
  if (skip()) return;
  uint32_t seed = 0;
  int refused = 0;
  for (const SelectorKind selector :
       here({SelectorKind::PSA, SelectorKind::SHARE, SelectorKind::TOKENSELECT}))
    for (const int slots : {60, 1000, 0}) {
      INFO("selector " << selector << ", " << slots << " slots");
      ContextOptions o = on(DeviceKind::CUDA, selector);
      o.slots = slots;
      o.n_sessions = 5;
      ContextOptions alone = o;
      alone.slots = 0;
      refused += WindowHistories(o, alone, uneven_model, true, ++seed).play(60);
    }
  // None of the core's three histories meets a cut that is refused.
  if (host_decides_here()) CHECK(refused > 0);
}

// A session that a GPU saved goes on with the same bits. One that device emu saved goes on with
// logits close to those of emu.
TEST_CASE("cuda: saved sessions of uneven layers go on", "[cuda][uneven][session_file]") {
  if (skip()) return;
  const TempDir temp;
  Runtime a(on(DeviceKind::CUDA, SelectorKind::SHARE), uneven_model),
      b(on(DeviceKind::CUDA, SelectorKind::SHARE), uneven_model);
  riffle_session* const s = a.session(ids(0, 300));
  save(a, s, temp / "a.kv");
  go_on_alike(a, s, b, load(b, temp / "a.kv"), ids(300, 320));

  Runtime emu(on(DeviceKind::EMU, SelectorKind::DENSE), uneven_model),
      gpu(on(DeviceKind::CUDA, SelectorKind::DENSE), uneven_model);
  riffle_session* const from = emu.session(ids(0, 300));
  save(emu, from, temp / "emu.kv");
  riffle_session* const loaded = load(gpu, temp / "emu.kv");
  for (const int32_t t : ids(300, 320)) {
    riffle_session* one = from;
    emu.check(riffle_step(emu.context, &one, &t, 1));
    one = loaded;
    gpu.check(riffle_step(gpu.context, &one, &t, 1));
    CHECK(tiny_difference(gpu.logits(loaded), emu.logits(from), "step").relative <= 2e-2);
  }
}

TEST_CASE("cuda: working sets of uneven layers are what their rows read", "[cuda][uneven]") {
  if (skip()) return;
  const auto model = uneven_model();
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::SHARE})) {
    INFO("selector " << selector);
    check_working_sets(on(DeviceKind::CUDA, selector), *model);
  }
}

TEST_CASE("cuda: the memory plan of uneven layers is enough", "[cuda][uneven][memory]") {
  if (skip()) return;
  for (const KvKind type : {KvKind::F16, KvKind::Q8}) {
    check_planned_memory(on(DeviceKind::CUDA, SelectorKind::SHARE, type), uneven_model,
                         [&](const MemoryPlan& plan) {
                           CHECK(plan.slot_bytes == (type == KvKind::F16 ? 8192 : 32 * 2 * 132));
                         });
  }
}

TEST_CASE("cuda: uneven layers need the GPU to decide residency", "[cuda][uneven]") {
  if (skip()) return;
  Runtime r(on(DeviceKind::CPU, SelectorKind::DENSE), uneven_model);
  ContextOptions o = on(DeviceKind::CUDA, SelectorKind::DENSE);
  o.residency = ResidencyKind::HOST;
  riffle_context* c = nullptr;
  char err[512];
  CHECK(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(err) ==
        "`residency` is host, expected that the GPU decides residency, since layers differ (layer "
        "2 has 2 KV heads of size 128, layer 0 has 4 of size 64)");
}
