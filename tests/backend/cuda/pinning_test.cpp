// Behaviour on a system that does not pin host memory. The driver's call is replaced in this
// program (ld --wrap), so that it can refuse on a machine that pins anything.
#include <atomic>
#include <climits>

#include "tests/backend/cuda/integrated_gpu.h"
#include "tests/engine/steps.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::atomic<int> allowed{INT_MAX};  // slabs that can still be locked

// Lets n slabs be locked for the time of a test.
struct Allow {
  explicit Allow(int n) { allowed = n; }
  ~Allow() { allowed = INT_MAX; }
};

}  // namespace

extern "C" cudaError_t __real_cudaHostRegister(void* data, size_t bytes, unsigned flags);
extern "C" cudaError_t __wrap_cudaHostRegister(void* data, size_t bytes, unsigned flags) {
  return allowed-- > 0 ? __real_cudaHostRegister(data, bytes, flags) : cudaErrorMemoryAllocation;
}

namespace {

ContextOptions cuda_options(SelectorKind selector) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.selection.selector = selector;
  return o;
}

struct Prefill {
  riffle_status status = RIFFLE_OK;
  double done = 0;  // part of the prompt, as last reported
  std::string error;
};

Prefill prefill(Runtime& r, riffle_session* s, const std::vector<int32_t>& prompt) {
  Prefill p;
  const auto progress = [](void* user, const riffle_progress* now) {
    static_cast<Prefill*>(user)->done = now->done / now->total;
    return true;
  };
  p.status = riffle_prefill(s, prompt.data(), prompt.size(), progress, &p);
  p.error = riffle_context_error(r.context);
  return p;
}

}  // namespace

TEST_CASE("cuda: selectors that need pinned memory are refused before the prompt is read",
          "[cuda][pin]") {
  if (skip()) return;
  const auto prompt = some_tokens(2000, 3);
  for (const SelectorKind selector :
       {SelectorKind::SHARE, SelectorKind::TWILIGHT, SelectorKind::TOKENSELECT}) {
    INFO("selector " << selector);
    const Allow none(0);
    Runtime r(cuda_options(selector));
    riffle_session* s = r.session();
    for (int i = 0; i < 2; ++i) {  // the second time the host decides residency already
      const Prefill p = prefill(r, s, prompt);
      CHECK(p.status == RIFFLE_UNSUPPORTED);
      CHECK(p.done == 0);
      CHECK_THAT(p.error,
                 Catch::Contains(
                     "needs the GPU to decide residency: the system does not let riffle pin") &&
                     Catch::Contains("selector psa"));
      CHECK(riffle_session_length(s) == 0);
    }
    // The advice in the error works.
    const Selection psa = cuda_options(SelectorKind::PSA).selection;
    r.check(set_selection(r.context, &psa));
    CHECK(prefill(r, s, prompt).status == RIFFLE_OK);
    const int32_t token = 400;
    r.check(riffle_step(r.context, &s, &token, 1));
  }
}

TEST_CASE("cuda: residency device without pinned memory is refused before the prompt is read",
          "[cuda][pin]") {
  if (skip()) return;
  const Allow none(0);
  ContextOptions o = cuda_options(SelectorKind::DENSE);
  o.residency = ResidencyKind::DEVICE;
  Runtime r(o);
  const Prefill p = prefill(r, r.session(), some_tokens(2000, 3));
  CHECK(p.status == RIFFLE_OUT_OF_MEMORY);
  CHECK(p.done == 0);
  CHECK_THAT(p.error, Catch::Contains("but residency device needs pinned memory"));
}

TEST_CASE("cuda: an integrated GPU needs no memory that the system locks",
          "[cuda][pin][integrated]") {
  if (skip()) return;
  const Allow none(0);
  const SeemsIntegrated gpu;
  Runtime r(cuda_options(SelectorKind::SHARE));
  riffle_session* s = r.session();
  CHECK(prefill(r, s, some_tokens(2000, 3)).status == RIFFLE_OK);
  const int32_t token = 400;
  r.check(riffle_step(r.context, &s, &token, 1));
}

TEST_CASE("cuda: pinning that is refused later ends a prompt that needs it", "[cuda][pin]") {
  if (skip()) return;
  const Allow one(1);  // slab of four
  ContextOptions o = cuda_options(SelectorKind::SHARE);
  o.kv_type = KvKind::F32;
  o.n_ctx = 32768;
  Runtime r(o);
  riffle_session* s = r.session();
  Prefill p = prefill(r, s, some_tokens(32000, 4));
  if (p.status == RIFFLE_OK) {  // the prompt was read before the system had refused
    const int32_t token = 400;
    p.status = riffle_step(r.context, &s, &token, 1);
    p.error = riffle_context_error(r.context);
  }
  CHECK(p.status == RIFFLE_UNSUPPORTED);
  CHECK_THAT(p.error, Catch::Contains("needs the GPU to decide residency"));
}
