// Heads of 512 values and multi-head latent attention on a GPU. Their logits are
// close to the CPU's, and their bits do not depend on the pool, the batch and the session's
// history.
#include "tests/backend/cuda/gpu_models.h"
#include "tests/engine/session_files.h"
#include "tests/engine/wide_head_models.h"
#include "tests/engine/window_histories.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Wide {
  const char* name;
  std::unique_ptr<Model> (*make)();
};
constexpr Wide kModels[] = {{"heads of 512", heads_of_512},
                            {"16 heads of 512 for a KV head", sixteen_of_512},
                            {"heads of 512, shared KV", shared_of_512},
                            {"latent", latent_model},
                            {"latent, queries without one", latent_model_of_v2}};

}  // namespace

TEST_CASE("cuda: wide heads give the CPU's logits", "[cuda][wide]") {
  if (skip()) return;
  const auto prompt = ids(0, 300), steps = ids(300, 340);
  for (const Wide& model : kModels)
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      Runtime cpu(on(DeviceKind::CPU, SelectorKind::DENSE, type), model.make);
      const auto want = run(cpu, cpu.session(), prompt, steps);
      for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::AUTO}) {
        INFO(model.name << ", KV " << type << ", selector " << selector);
        Runtime r(on(DeviceKind::CUDA, selector, type), model.make);
        check_close(run(r, r.session(), prompt, steps), want, type);
      }
      ContextOptions o = on(DeviceKind::CUDA, SelectorKind::DENSE, type);
      o.prefill_chunk = 70;
      Runtime r(o, model.make);
      check_close(run(r, r.session(), prompt, steps), want, type);
    }
}

// A share of 0 reads all blocks, through the lists that the index makes.
TEST_CASE("cuda: a share of wide heads that reads all blocks gives the CPU's logits",
          "[cuda][wide]") {
  if (skip()) return;
  const auto prompt = ids(0, 900), steps = ids(900, 930);
  for (const Wide& model : kModels)
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      INFO(model.name << ", KV " << type);
      Runtime cpu(on(DeviceKind::CPU, SelectorKind::DENSE, type), model.make);
      const auto want = run(cpu, cpu.session(), prompt, steps);
      ContextOptions o = on(DeviceKind::CUDA, SelectorKind::SHARE, type);
      o.selection.share = 0;
      Runtime r(o, model.make);
      check_close(run(r, r.session(), prompt, steps), want, type);
    }
}

TEST_CASE("cuda: wide heads choose the blocks that the CPU chooses", "[cuda][wide]") {
  if (skip()) return;
  const auto prompt = ids(0, 900), steps = ids(900, 930);
  for (const Wide& model : kModels) {
    INFO(model.name);
    Runtime cpu(on(DeviceKind::CPU, SelectorKind::SHARE, KvKind::F32), model.make);
    Runtime gpu(on(DeviceKind::CUDA, SelectorKind::SHARE, KvKind::F32), model.make);
    const auto want = run(cpu, cpu.session(), prompt, steps);
    // A block whose weight is near the share may be read by one of them alone.
    const TinyDifference worst = rows_difference(run(gpu, gpu.session(), prompt, steps), want);
    INFO("worst " << worst.relative << " at " << worst.where);
    CHECK(worst.relative <= 5e-2);
  }
}

TEST_CASE("cuda: wide heads give the same bits from any pool", "[cuda][wide]") {
  if (skip()) return;
  for (const Wide& model : kModels)
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE})
      for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
        INFO(model.name << ", selector " << selector << ", KV " << type);
        check_any_pool(on(DeviceKind::CUDA, selector, type), model.make);
      }
}

TEST_CASE("cuda: wide heads: sequences, cuts and forks change no bit", "[cuda][wide][fork]") {
  if (skip()) return;
  uint32_t seed = 0;
  for (const Wide& model : kModels)
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
      INFO(model.name << ", selector " << selector);
      ContextOptions o = on(DeviceKind::CUDA, selector);
      const ContextOptions alone = o;
      o.n_sessions = 5;
      for (const int slots : {40, 1000}) {
        o.slots = slots;
        if (slots == 40) check_together(alone, o, model.make);
        WindowHistories(o, alone, model.make, true, ++seed).play(40);
      }
    }
}

// A session that a GPU saved goes on with the same bits. One that the CPU saved goes on with logits
// close to the CPU's.
TEST_CASE("cuda: saved sessions of wide heads go on", "[cuda][wide][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv";
  for (const Wide& model : kModels)
    for (const KvKind type : {KvKind::F16, KvKind::Q8}) {
      INFO(model.name << ", KV " << type);
      for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
        std::filesystem::remove(path);
        const ContextOptions o = on(DeviceKind::CUDA, selector, type);
        Runtime a(o, model.make), b(o, model.make);
        riffle_session* const s = a.session(ids(0, 300));
        a.check(riffle_session_truncate(s, 290));
        a.check(riffle_prefill(s, ids(300, 305).data(), 5, nullptr, nullptr));
        save(a, s, path);
        go_on_alike(a, s, b, load(b, path), ids(305, 325));
      }
      std::filesystem::remove(path);
      Runtime cpu(on(DeviceKind::CPU, SelectorKind::DENSE, type), model.make),
          gpu(on(DeviceKind::CUDA, SelectorKind::DENSE, type), model.make);
      riffle_session* one = cpu.session(ids(0, 300));
      save(cpu, one, path);
      riffle_session* other = load(gpu, path);
      std::vector<std::vector<float>> want, got;
      for (const int32_t t : ids(300, 310)) {
        cpu.check(riffle_step(cpu.context, &one, &t, 1));
        gpu.check(riffle_step(gpu.context, &other, &t, 1));
        want.push_back(cpu.logits(one)), got.push_back(gpu.logits(other));
      }
      check_close(got, want, type);
    }
}

TEST_CASE("cuda: wide heads: the memory plan is enough", "[cuda][wide][memory]") {
  if (skip()) return;
  for (const Wide& model : kModels) {
    INFO(model.name);
    check_planned_memory(on(DeviceKind::CUDA, SelectorKind::SHARE), model.make,
                         [](const MemoryPlan&) {});
  }
}

TEST_CASE("cuda: selectors and tiles that do not support wide heads are refused by name",
          "[cuda][wide]") {
  if (skip()) return;
  Runtime r(on(DeviceKind::CPU, SelectorKind::DENSE), heads_of_512);
  const auto refusal = [&](const ContextOptions& o) {
    riffle_context* c = nullptr;
    char err[512] = "";
    CHECK(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
    return std::string(err);
  };
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::TWILIGHT}))
    CHECK(refusal(on(DeviceKind::CUDA, selector))
              .find("but the model has heads of 512 values (at most 256): on a GPU use") !=
          std::string::npos);
  ContextOptions tiles = on(DeviceKind::CUDA, SelectorKind::DENSE);
  tiles.prefill_selector = PrefillSelector::TILES;
  CHECK(refusal(tiles).find("needs heads of at most 256 values on a GPU: found 512") !=
        std::string::npos);
}
