// A GPU stores 8-bit keys without their centre, as the CPU does (model/key_centre.h): logits of the
// shipped model with a large key bias are close to the CPU's, for any pool, and hardly less exact
// than with a small bias.
#include "import/load_model.h"
#include "tests/backend/cuda/gpu_models.h"
#include "tests/kernels/cuda/device.h"
#include "tests/model/made_model.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::unique_ptr<Model> small_bias() { return with_key_bias(load_model(shipped_model(), {}), 0.1f); }
std::unique_ptr<Model> large_bias() { return with_key_bias(load_model(shipped_model(), {}), 40); }

using Rows = std::vector<std::vector<float>>;

// A prompt, steps, a second prompt, a fork that is cut, and steps.
Rows logits_of(std::unique_ptr<Model> (*make)(), const ContextOptions& o) {
  Runtime r(o, make);
  riffle_session* s = r.session(some_tokens(300, 1));
  Rows out = {r.logits(s)};
  for (const int32_t token : some_tokens(20, 2)) step(r, s, token, out);
  prefill(r, s, some_tokens(50, 3));
  riffle_session* fork = nullptr;
  r.check(riffle_session_fork(s, 340, &fork));
  r.sessions.push_back(fork);
  for (const int32_t token : some_tokens(20, 4)) step(r, fork, token, out);
  return out;
}

}  // namespace

TEST_CASE("cuda: 8-bit keys are stored without their centre", "[cuda][q8]") {
  if (!cuda_ready()) return;
  ContextOptions o = on(DeviceKind::CUDA, SelectorKind::DENSE, KvKind::Q8), cpu = o, f16 = o;
  cpu.device = DeviceKind::CPU;
  f16.kv_type = KvKind::F16;
  const Rows here = logits_of(large_bias, cpu), found = logits_of(large_bias, o);
  check_close(found, here, KvKind::Q8);
  for (const int64_t slots : {20, 200}) {
    INFO(slots << " slots");
    o.slots = slots;
    CHECK(same_bits(logits_of(large_bias, o), found));
  }
  o.slots = 0;
  const double small =
                   rows_difference(logits_of(small_bias, o), logits_of(small_bias, f16)).relative,
               large = rows_difference(found, logits_of(large_bias, f16)).relative;
  INFO("with a small bias " << small << ", with a large one " << large);
  CHECK(large < 2 * small + 0.02);
}
