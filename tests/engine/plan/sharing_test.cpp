// Number of sessions that share a context: as many as plans of every smaller number allow.
#include "engine/plan/sharing.h"

#include "import/load_model.h"
#include "tests/engine/test_model.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("sessions share a context as far as each keeps its length and the pool", "[plan]") {
  const auto model = load_model(shipped_model(), {});
  int fewest = 8, most = 1;
  for (const double budget : {1.0, 1.01, 1.05, 1.2, 8.0}) {  // multiple of one session's least
    ContextOptions o = options();
    o.device = DeviceKind::EMU;
    o.n_ctx = 16384;
    o.gpu_mem = 1;
    const auto planned = [&](int n, MemoryPlan& plan) {
      ContextOptions some = o;
      some.n_sessions = n;
      ResolvedOptions r = resolve_options(model->config, some);
      try {
        plan_memory(*model, r, plan);
      } catch (const std::exception&) {
        return false;
      }
      return true;
    };
    MemoryPlan one, eight, many;
    CHECK_FALSE(planned(1, one));
    o.gpu_mem = static_cast<uint64_t>(budget * static_cast<double>(one.min_gpu_mem));
    REQUIRE(planned(1, one));
    const Sharing alone = plan_sharing(*model, o, one);
    CHECK(alone.sessions == 1);
    planned(8, eight);
    o.n_sessions = 8;
    const Sharing sharing = plan_sharing(*model, o, eight);
    CHECK(sharing.host_mem == alone.host_mem);
    const auto fits = [&](int n) {
      return planned(n, many) && many.n_ctx == one.n_ctx && many.slots >= one.slots / 4 * 3;
    };
    int n = 8;
    while (n > 1 && !fits(n)) n /= 2;
    INFO(budget << " of the least budget");
    CHECK(sharing.sessions == n);
    fewest = std::min(fewest, n), most = std::max(most, n);
  }
  CHECK((fewest < 8 && most == 8));
}
