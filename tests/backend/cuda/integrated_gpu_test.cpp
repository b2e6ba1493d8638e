// An integrated GPU: there is no pool, steps read each block in place, and the results have the
// bits that they have with a pool. The memory plan counts the GPU's memory and the KV together.
#include "tests/backend/cuda/integrated_gpu.h"

#include "backend/cuda/pinned_slabs.h"
#include "engine/plan/auto_selector.h"
#include "engine/plan/devices.h"
#include "import/load_model.h"
#include "tests/backend/cuda/gpu_models.h"
#include "tests/engine/uneven_model.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

extern "C" {
cudaError_t __real_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (pretence.integrated && attribute == cudaDevAttrIntegrated) return *value = 1, cudaSuccess;
  if (pretence.no_gpu && attribute == cudaDevAttrConcurrentManagedAccess)
    return *value = pretence.concurrent, cudaSuccess;
  return __real_cudaDeviceGetAttribute(value, attribute, device);
}
cudaError_t __real_cudaGetDevice(int* device);
cudaError_t __wrap_cudaGetDevice(int* device) {
  return pretence.no_gpu ? (*device = 0, cudaSuccess) : __real_cudaGetDevice(device);
}
cudaError_t __real_cudaMallocManaged(void** data, size_t bytes, unsigned flags);
cudaError_t __wrap_cudaMallocManaged(void** data, size_t bytes, unsigned flags) {
  if (!pretence.no_gpu) return __real_cudaMallocManaged(data, bytes, flags);
  *data = std::aligned_alloc(4096, bytes);
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
}

// find_device by the linker's names.
std::optional<cuda::DeviceInfo> real_find_device(std::string& why) __asm__(
    "__real__ZN6riffle4cuda11find_deviceERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
std::optional<cuda::DeviceInfo> wrap_find_device(std::string& why) __asm__(
    "__wrap__ZN6riffle4cuda11find_deviceERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
std::optional<cuda::DeviceInfo> wrap_find_device(std::string& why) {
  return pretence.found ? pretence.found : real_find_device(why);
}

namespace {

// Compares a run on a discrete GPU, with a pool, with a run that reads blocks in place.
template <class ModelSource>
void check_in_place(const ContextOptions& o, const ModelSource& model) {
  const auto prompt = ids(0, 400), steps = ids(400, 440);
  std::vector<std::vector<float>> want;
  {
    Runtime pooled(o, model);
    want = run(pooled, pooled.session(), prompt, steps);
    CHECK(pooled.stats().pool_slots > 0);
  }
  const SeemsIntegrated gpu;
  Runtime r(o, model);
  riffle_session* s = r.session();
  auto got = run(r, s, prompt, {steps[0]});  // the first step may load the newest blocks
  const uint64_t loaded = r.stats().loaded_bytes;
  for (size_t i = 1; i < steps.size(); ++i) {
    r.check(riffle_step(r.context, &s, &steps[i], 1));
    got.push_back(r.logits(s));
  }
  CHECK(same_bits(got, want));
  const Stats stats = r.stats();
  CHECK(stats.pool_slots == 0);
  CHECK(stats.pool_lookups == 0);
  CHECK(stats.loaded_bytes == loaded);
}

// The options as resolve_options leaves them on the fake GPU.
ResolvedOptions resolved(const Model& model, bool has_pool) {
  ContextOptions o = options();
  o.n_ctx = 4096;
  ResolvedOptions r = resolve_options(model.config, o);
  r.options.device = DeviceKind::CUDA;
  r.options.prefill_chunk = 512;
  r.device_memory = r.integrated = true;
  r.has_pool = has_pool;
  r.host_memory = uint64_t(8) << 30;
  return r;
}

MemoryPlan planned(const Model& model, ResolvedOptions r) {
  MemoryPlan plan{};
  plan_memory(model, r, plan);
  return plan;
}

}  // namespace

TEST_CASE("cuda: integrated GPU: blocks read in place give the bits of a pool",
          "[cuda][integrated]") {
  if (skip()) return;
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::SHARE, SelectorKind::AUTO, SelectorKind::PSA,
             SelectorKind::TOPK, SelectorKind::TWILIGHT, SelectorKind::TOKENSELECT}))
    for (const KvKind type : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      INFO("selector " << selector << ", KV " << type);
      check_in_place(on(DeviceKind::CUDA, selector, type), uneven_model);
    }
}

// Heads of several sizes and in parts, windows, recurrent layers, experts.
TEST_CASE("cuda: integrated GPU: every family reads blocks in place",
          "[cuda][integrated][families]") {
  if (skip()) return;
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (!c.runs_on_gpu() || c.wide()) continue;
    INFO(c.name);
    ContextOptions o = tiny_options(c, options(), KvKind::F16);
    o.n_ctx = std::max(o.n_ctx, 512);
    o.device = DeviceKind::CUDA;
    check_in_place(o, tiny_folder(c, temp));
  }
}

TEST_CASE("cuda: integrated GPU: forks and batches read blocks in place", "[cuda][integrated]") {
  if (skip()) return;
  const auto prompt = ids(0, 300), steps = ids(300, 340);
  const auto play = [&] {
    ContextOptions o = on(DeviceKind::CUDA, SelectorKind::SHARE);
    o.n_sessions = 3;
    Runtime r(o, uneven_model);
    riffle_session* s[3] = {r.session(prompt), r.session(ids(50, 120)), nullptr};
    r.check(riffle_session_fork(s[0], 250, &s[2]));
    std::vector<std::vector<float>> out;
    for (const int32_t token : steps) {
      const int32_t tokens[3] = {token, 40, 50};
      r.check(riffle_step(r.context, s, tokens, 3));
      for (const riffle_session* one : s) out.push_back(r.logits(one));
    }
    riffle_session_free(s[2]);
    return out;
  };
  const auto want = play();
  const SeemsIntegrated gpu;
  CHECK(same_bits(play(), want));
}

TEST_CASE("cuda: integrated GPU: a pool is there if slots are given", "[cuda][integrated]") {
  if (skip()) return;
  const SeemsIntegrated gpu;
  ContextOptions o = on(DeviceKind::CUDA, SelectorKind::SHARE);
  o.slots = 20;
  Runtime r(o, uneven_model);
  run(r, r.session(), ids(0, 300), ids(300, 310));
  CHECK(r.stats().pool_slots == 20);
  CHECK(r.stats().pool_lookups > 0);
}

TEST_CASE("cuda: integrated GPU: the planned memory is enough", "[cuda][integrated]") {
  if (skip()) return;
  const SeemsIntegrated gpu;
  check_planned_memory(on(DeviceKind::CUDA, SelectorKind::SHARE), shipped_model(),
                       [](const MemoryPlan& plan) { CHECK(plan.slots == 0); });
}

TEST_CASE("an integrated GPU has a pool only if the options ask for it", "[integrated]") {
  ContextOptions o = options();
  CHECK_FALSE(asks_for_pool(o));
  o.residency = ResidencyKind::DEVICE;
  o.gpu_mem = 1 << 30;
  CHECK_FALSE(asks_for_pool(o));
  o.slots = 1;
  CHECK(asks_for_pool(o));
  o = options();
  o.residency = ResidencyKind::HOST;
  CHECK(asks_for_pool(o));
  o = options();
  o.pin = false;
  CHECK(asks_for_pool(o));
}

TEST_CASE("for an integrated GPU the driver allocates slabs", "[integrated]") {
  cuda::DeviceInfo device;
  CHECK(cuda::pinning_of(device, true) == cuda::Pinning::LOCK);
  CHECK(cuda::pinning_of(device, false) == cuda::Pinning::REFUSE);
  device.integrated = true;
  CHECK(cuda::pinning_of(device, true) == cuda::Pinning::ALLOCATE);
  CHECK(cuda::pinning_of(device, false) == cuda::Pinning::REFUSE);
}

TEST_CASE("an integrated GPU's free memory includes pages that the system would drop",
          "[integrated]") {
  CHECK(cuda::integrated_free(3, 8, 5) == 5);
  CHECK(cuda::integrated_free(6, 8, 5) == 5);
  CHECK(cuda::integrated_free(3, 8, 9) == 8);
  CHECK(cuda::integrated_free(3, 8, UINT64_MAX) == 3);
}

TEST_CASE("slabs that the driver allocates are zeroed, pinned and apart from each other",
          "[integrated]") {
  const FakeGpu gpu;
  cuda::PinnedSlabs slabs(0, cuda::Pinning::ALLOCATE);
  const size_t bytes = 1 << 20;
  slabs.lock_ahead(bytes, 4);  // does nothing
  CHECK(slabs.pinned_bytes() == 0);
  std::vector<std::byte*> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(slabs.take(bytes));
  for (const std::byte* a : taken) {
    REQUIRE(a);
    CHECK(std::count(a, a + bytes, std::byte{0}) == static_cast<int64_t>(bytes));
    for (const std::byte* b : taken) CHECK(a + bytes != b);
  }
  CHECK(slabs.taken_bytes() == 6 * bytes);
  CHECK(slabs.pinned_bytes() == 6 * bytes);
  std::vector<std::byte*> some;
  const std::byte* const blocks[] = {taken[1], taken[4] + bytes - 1};
  slabs.add_unlocked(blocks, 2, some);
  CHECK(some.empty());
  CHECK(slabs.wait(some));
  slabs.wait_all();
  slabs.give_back(taken[2], bytes);
  CHECK(slabs.pinned_bytes() == 5 * bytes);
  taken.erase(taken.begin() + 2);
  for (std::byte* a : taken) slabs.give_back(a, bytes);
  CHECK(slabs.taken_bytes() == 0);
}

TEST_CASE("if pinning is refused, slabs are managed memory that the CPU may always use",
          "[integrated]") {
  const FakeGpu gpu;
  for (const cudaError_t refusal : {cudaErrorNotSupported, cudaErrorMemoryAllocation}) {
    INFO(cudaGetErrorName(refusal));
    pretence.host_alloc = refusal;
    pretence.concurrent = true;
    {
      cuda::PinnedSlabs slabs(0, cuda::Pinning::ALLOCATE);
      std::byte* const slab = slabs.take(1 << 20);
      REQUIRE(slab);
      CHECK(slabs.failed().empty());
      slabs.give_back(slab, 1 << 20);
    }
    pretence.concurrent = false;
    cuda::PinnedSlabs slabs(0, cuda::Pinning::ALLOCATE);
    try {
      slabs.take(1 << 20);
      FAIL("the slab was taken");
    } catch (const Error& e) {
      CHECK(e.status() == RIFFLE_OUT_OF_MEMORY);
      CHECK_THAT(e.what(), Catch::Contains("no pinned host memory for KV") &&
                               Catch::Contains(cudaGetErrorName(refusal)) &&
                               Catch::Contains("set device to cpu"));
    }
    CHECK(slabs.taken_bytes() == 0);
  }
}

TEST_CASE("the plan of an integrated GPU has no pool", "[integrated][plan]") {
  const FakeGpu gpu;
  const auto model = load_model(shipped_model(), {});
  const MemoryPlan in_place = planned(*model, resolved(*model, false)),
                   pooled = planned(*model, resolved(*model, true));
  CHECK(pooled.slots > 0);
  CHECK(in_place.slots == 0);
  CHECK(in_place.min_slots == 0);
  CHECK(in_place.pool == 0);
  CHECK(in_place.lent == 0);
  CHECK(in_place.total == in_place.weights + in_place.activations + in_place.digests +
                              in_place.prompt + in_place.prefill_kv);
  CHECK(in_place.total < pooled.total);
  ResolvedOptions least = resolved(*model, false);
  least.options.gpu_mem = in_place.min_gpu_mem;
  CHECK(planned(*model, least).total <= in_place.min_gpu_mem);
  --least.options.gpu_mem;
  CHECK_THROWS_WITH(planned(*model, least), Catch::Contains("context need at least"));
}

TEST_CASE("the plan counts an integrated GPU's part and the KV together", "[integrated][plan]") {
  const FakeGpu gpu;
  const auto model = load_model(shipped_model(), {});
  for (const bool has_pool : {false, true}) {
    ResolvedOptions r = resolved(*model, has_pool);
    const MemoryPlan plan = planned(*model, r);
    r.host_memory = plan.total + plan.host_kv;
    CHECK(planned(*model, r).host_kv == plan.host_kv);
    CHECK(!planned(*model, r).context_note.empty());  // above 7/8 of the memory
    --r.host_memory;
    CHECK_THROWS_WITH(planned(*model, r),
                      Catch::Contains("left after the GPU's weights and buffers"));
    r.integrated = false;
    r.host_memory = plan.host_kv;
    CHECK(planned(*model, r).host_kv == plan.host_kv);
  }
}

TEST_CASE("in place, selector auto reads as many tokens whole as with a pool for all blocks",
          "[integrated][auto]") {
  const FakeGpu gpu;
  const auto model = load_model(shipped_model(), {});
  const ResolvedOptions r = resolved(*model, false);
  CHECK(everything_below(model->config, r) == dense_is_better_below(model->config, r));
}
