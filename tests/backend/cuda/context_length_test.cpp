// The default context length on a GPU: what fits of the trained one in gpu_mem and, page-locked, in
// host memory.
#include "tests/engine/plan/context_length.h"

#include "engine/plan/memory_plan.h"
#include "import/load_model.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions cuda_options() {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  return o;
}

}  // namespace

TEST_CASE("cuda: a default context is the longest that fits gpu_mem", "[cuda][context]") {
  if (skip()) return;
  ContextOptions o = cuda_options();
  check_default_length_in_budget(o);
  for (const ResidencyKind host : residencies_here({ResidencyKind::HOST})) {
    o.residency = host;
    o.selection.selector = psa_or_share();  // the default needs the GPU to decide
    check_default_length_in_budget(o);
  }
  o.residency = ResidencyKind::AUTO;
  o.selection.selector = first_here({SelectorKind::TWILIGHT, SelectorKind::SHARE});
  check_default_length_in_budget(o);
}

TEST_CASE("cuda: a default context is the longest whose KV fits host memory", "[cuda][context]") {
  if (skip()) return;
  const auto model = load_model(shipped_model(), {});
  ContextOptions o = cuda_options();
  o.gpu_mem = uint64_t(1) << 30;
  MemoryPlan plan;
  const auto planned = [&](int n_ctx, uint64_t memory) {
    o.n_ctx = n_ctx;
    ResolvedOptions r = resolve_options(model->config, o);
    r.host_memory = memory;
    plan_memory(*model, r, plan);
    return r.context_note;
  };
  CHECK(planned(5000, uint64_t(1) << 50).empty());
  const uint64_t memory = plan.host_kv * 8 / 7 + 8;
  CHECK_THAT(planned(0, memory), Catch::Contains("holds 4096 of the 32768") &&
                                     Catch::Contains("this machine's memory"));
  CHECK(plan.n_ctx == 4096);
  // Given: kept up to all of memory, with a notice, and refused beyond it.
  CHECK_THAT(planned(5200, memory), Catch::Contains("5200 tokens take"));
  CHECK(plan.n_ctx == 5200);
  CHECK_THROWS_WITH(planned(32768, memory),
                    Catch::Contains("of host memory, but this machine has"));
}

TEST_CASE("cuda: a default context is the longest that fits what is free", "[cuda][context]") {
  if (skip()) return;
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  // All but about 1 GiB is taken: 512 MiB of it are left to the driver, and 4M tokens of digests do
  // not fit the rest.
  if (free < size_t(3) << 30) {
    WARN("SKIPPED: less than 3 GiB of GPU memory are free");
    return;
  }
  const auto model = load_model(shipped_model(), {});
  model->config.n_ctx = 1 << 22;
  const DeviceArray<char> taken(free - (size_t(1) << 30));
  ResolvedOptions r = resolve_options(model->config, cuda_options());
  r.host_memory = uint64_t(1) << 50;
  MemoryPlan plan;
  plan_memory(*model, r, plan);
  INFO(r.context_note);
  CHECK(plan.n_ctx < 1 << 22);
  CHECK(plan.n_ctx % 1024 == 0);
  CHECK(plan.n_ctx >= 1024);
  CHECK_THAT(r.context_note, Catch::Contains("the GPU's free memory"));
}
