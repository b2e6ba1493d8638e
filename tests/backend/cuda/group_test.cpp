// Models with more than 8 query heads per KV head on a GPU. Their logits are close to the CPU's,
// and their bits do not depend on the pool, the batch and the session's history.
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/group_model.h"
#include "tests/engine/window_histories.h"
#include "tests/engine/working_sets.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions on(DeviceKind device, SelectorKind selector, KvKind type = KvKind::F16) {
  ContextOptions o = sparse(selector);
  o.device = device;
  o.kv_type = type;
  o.block_size = type == KvKind::Q8 ? 32 : 16;
  return o;
}

constexpr std::unique_ptr<Model> (*kModels[])() = {sixteen_model, twelve_model};

}  // namespace

TEST_CASE("cuda: many query heads per KV head give the CPU's logits", "[cuda][parts]") {
  if (skip()) return;
  const auto prompt = ids(0, 300), steps = ids(300, 340);
  for (const auto model : kModels)
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      Runtime cpu(on(DeviceKind::CPU, SelectorKind::DENSE, type), model);
      const auto want = run(cpu, cpu.session(), prompt, steps);
      // Auto reads whole what fits the pool, with the bits of dense.
      for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::AUTO}) {
        INFO("model " << (model == twelve_model) << ", KV " << type << ", selector " << selector);
        Runtime r(on(DeviceKind::CUDA, selector, type), model);
        const auto got = run(r, r.session(), prompt, steps);
        TinyDifference worst;
        for (size_t i = 0; i < want.size(); ++i)
          worst += tiny_difference(got[i], want[i], "step " + std::to_string(i));
        INFO("worst " << worst.relative << " at " << worst.where);
        // If the last bits of a key or value differ, it may get another 8-bit code.
        CHECK(worst.relative <= (type == KvKind::F32 ? 1e-4 : type == KvKind::F16 ? 2e-2 : 5e-2));
      }
    }
}

TEST_CASE("cuda: many query heads per KV head give the same bits from any pool", "[cuda][parts]") {
  if (skip()) return;
  const auto prompt = ids(0, 400), steps = ids(400, 440);
  for (const auto model : kModels)
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE})
      for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
        INFO("model " << (model == twelve_model) << ", selector " << selector << ", KV " << type);
        ContextOptions o = on(DeviceKind::CUDA, selector, type);
        std::vector<std::vector<float>> want;
        for (const int slots : {0, 4, 20, 200}) {
          INFO(slots << " slots");
          o.slots = slots;
          Runtime r(o, model);
          const auto got = run(r, r.session(), prompt, steps);
          if (slots == 0) want = got;
          CHECK(same_bits(got, want));
        }
      }
}

TEST_CASE("cuda: many query heads per KV head: sequences, cuts and forks change no bit",
          "[cuda][parts][fork]") {
  if (skip()) return;
  uint32_t seed = 0;
  for (const auto model : kModels)
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
      INFO("model " << (model == twelve_model) << ", selector " << selector);
      ContextOptions o = on(DeviceKind::CUDA, selector);
      const ContextOptions alone = o;
      o.n_sessions = 5;
      for (const int slots : {40, 1000}) {
        o.slots = slots;
        if (slots == 40) check_together(alone, o, model);
        WindowHistories(o, alone, model, true, ++seed).play(60);
      }
    }
}

TEST_CASE("cuda: many query heads per KV head: working sets are what the rows read",
          "[cuda][parts]") {
  if (skip()) return;
  const auto model = twelve_model();
  for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
    INFO("selector " << selector);
    WorkingSetPlay p;
    p.options = on(DeviceKind::CUDA, selector);
    p.options.n_sessions = 3;
    p.options.slots = 60;
    const auto want = play(*model, p);
    p.reports = false;
    CHECK(play(*model, p) == want);
  }
}

TEST_CASE("cuda: many query heads per KV head: the memory plan is enough",
          "[cuda][parts][memory]") {
  if (skip()) return;
  ContextOptions o = on(DeviceKind::CUDA, SelectorKind::SHARE);
  o.n_ctx = 1024;
  o.n_sessions = 3;
  {
    Runtime r(on(DeviceKind::CPU, SelectorKind::SHARE), sixteen_model);
    o.gpu_mem = plan_of_least_memory(r.model, o).min_gpu_mem;
  }
  Runtime r(o, sixteen_model);
  std::vector<riffle_session*> s;
  const auto prompt = ids(0, 1000);
  for (int i = 0; i < 3; ++i) s.push_back(r.session(prompt));
  const int32_t tokens[3] = {40, 50, 60};
  for (int i = 0; i < 20; ++i) r.check(riffle_step(r.context, s.data(), tokens, 3));
  CHECK(r.stats().peak_device_bytes <= static_cast<uint64_t>(o.gpu_mem));
}

TEST_CASE("cuda: what many query heads per KV head cannot have is refused by name",
          "[cuda][parts]") {
  if (skip()) return;
  Runtime r(on(DeviceKind::CPU, SelectorKind::DENSE), sixteen_model);
  const auto refusal = [&](const ContextOptions& o) {
    riffle_context* c = nullptr;
    char err[512] = "";
    CHECK(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
    return std::string(err);
  };
  ContextOptions o = on(DeviceKind::CUDA, SelectorKind::DENSE);
  o.residency = ResidencyKind::HOST;
  CHECK(refusal(o) ==
        "`residency` is host, expected that the GPU decides residency, since the model has 16 "
        "query heads per KV head (more than 8)");
  for (const SelectorKind selector :
       here({SelectorKind::PSA, SelectorKind::TWILIGHT, SelectorKind::TOKENSELECT}))
    CHECK(refusal(on(DeviceKind::CUDA, selector))
              .find("takes up to 8 query heads per KV head on a GPU, but the model has 16") !=
          std::string::npos);
}
