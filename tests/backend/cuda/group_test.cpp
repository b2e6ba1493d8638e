// Models with more than 8 query heads per KV head on a GPU. Their logits are close to the CPU's,
// and their bits do not depend on the pool, the batch and the session's history.
#include "tests/backend/cuda/gpu_models.h"
#include "tests/engine/group_model.h"
#include "tests/engine/window_histories.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Grouped {
  int heads;  // query heads per KV head
  std::unique_ptr<Model> (*make)();
};
constexpr Grouped kModels[] = {
    {12, twelve_model}, {16, sixteen_model}, {20, twenty_model}, {24, twenty_four_model}};

}  // namespace

TEST_CASE("cuda: many query heads per KV head give the CPU's logits", "[cuda][parts]") {
  if (skip()) return;
  const auto prompt = ids(0, 300), steps = ids(300, 340);
  for (const auto& [heads, model] : kModels)
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      Runtime cpu(on(DeviceKind::CPU, SelectorKind::DENSE, type), model);
      const auto want = run(cpu, cpu.session(), prompt, steps);
      // Auto reads whole what fits the pool, with the bits of dense.
      for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::AUTO}) {
        INFO(heads << " query heads per KV head, KV " << type << ", selector " << selector);
        Runtime r(on(DeviceKind::CUDA, selector, type), model);
        const auto got = run(r, r.session(), prompt, steps);
        check_close(got, want, type);
      }
    }
}

TEST_CASE("cuda: many query heads per KV head give the same bits from any pool", "[cuda][parts]") {
  if (skip()) return;
  for (const auto& [heads, model] : kModels)
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE})
      for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
        INFO(heads << " query heads per KV head, selector " << selector << ", KV " << type);
        check_any_pool(on(DeviceKind::CUDA, selector, type), model);
      }
}

TEST_CASE("cuda: many query heads per KV head: sequences, cuts and forks change no bit",
          "[cuda][parts][fork]") {
  if (skip()) return;
  uint32_t seed = 0;
  for (const auto& [heads, model] : kModels)
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
      INFO(heads << " query heads per KV head, selector " << selector);
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
    check_working_sets(on(DeviceKind::CUDA, selector), *model);
  }
}

TEST_CASE("cuda: many query heads per KV head: the memory plan is enough",
          "[cuda][parts][memory]") {
  if (skip()) return;
  check_planned_memory(on(DeviceKind::CUDA, SelectorKind::SHARE), sixteen_model,
                       [](const MemoryPlan&) {});
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
        "query heads per KV head (at most 8)");
  for (const SelectorKind selector :
       here({SelectorKind::PSA, SelectorKind::TWILIGHT, SelectorKind::TOKENSELECT}))
    CHECK(refusal(on(DeviceKind::CUDA, selector))
              .find("but the model has 16 query heads per KV head (at most 8): on a GPU use") !=
          std::string::npos);
}
