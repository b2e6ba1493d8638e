// FFNs of hybrid models on a GPU, in models whose layers all attend or are only an FFN: without a
// gate, with a shared expert, with experts chosen by a sigmoid; and queries with gates.
#include <algorithm>

#include "tests/engine/ffn_model.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/engine/window_model.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

using Rows = std::vector<std::vector<float>>;

ContextOptions on(DeviceKind device, KvKind type) {
  ContextOptions o = sparse(SelectorKind::DENSE);
  o.device = device;
  o.kv_type = type;
  return o;
}

// Returns the difference that nine of ten rows do not exceed. A row may differ more: where two
// experts' scores are nearly equal, rounding decides.
double usual_difference(const Rows& got, const Rows& want) {
  std::vector<double> all;
  for (size_t i = 0; i < want.size(); ++i)
    all.push_back(tiny_difference(got[i], want[i], "").relative);
  std::sort(all.begin(), all.end());
  return all[all.size() * 9 / 10];
}

constexpr struct {
  const char* name;
  std::unique_ptr<Model> (*make)();
} kModels[] = {{"squares", squares_model}, {"gates", gates_model}};

}  // namespace

TEST_CASE("cuda: FFNs of hybrid models give the CPU's logits", "[cuda][experts]") {
  if (skip()) return;
  const auto prompt = ids(0, 300), steps = ids(300, 360);
  for (const auto& model : kModels)
    for (const KvKind type : {KvKind::F32, KvKind::F16}) {
      Runtime cpu(on(DeviceKind::CPU, type), model.make);
      const Rows want = run(cpu, cpu.session(), prompt, steps);
      // Chunks of 7 rows go through the kernels of steps.
      for (const int chunk : {0, 50, 7})
        for (const int on_host : {0, 1, 100}) {
          INFO(model.name << ", KV " << type << ", chunks of " << chunk << ", experts of "
                          << on_host << " layers on the host");
          ContextOptions o = on(DeviceKind::CUDA, type);
          o.prefill_chunk = chunk;
          o.cpu_experts = on_host;
          Runtime r(o, model.make);
          const Rows got = run(r, r.session(), prompt, steps);
          CHECK(usual_difference(got, want) <= (type == KvKind::F32 ? 2e-4 : 8e-2));
        }
    }
}

TEST_CASE("cuda: FFNs of hybrid models: sequences stepped together give what each gives alone",
          "[cuda][experts]") {
  if (skip()) return;
  for (const auto& model : kModels)
    for (const int on_host : {0, 1}) {
      INFO(model.name << ", experts of " << on_host << " layers on the host");
      ContextOptions o = on(DeviceKind::CUDA, KvKind::F16);
      o.cpu_experts = on_host;
      const ContextOptions alone = o;
      o.n_sessions = 5;
      check_together(alone, o, model.make);
    }
}
