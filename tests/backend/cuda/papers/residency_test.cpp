// Settings of GPU memory that only a full build has names for.
#include <string>

#include "tests/backend/cuda/gpu_sessions.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("residency and pin are refused where they mean nothing", "[memory]") {
  for (DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
    for (int which : {0, 1}) {
      ContextOptions o = options();
      o.device = device;
      o.n_ctx = 512;
      if (which == 0) o.pin = false;
      else o.residency = ResidencyKind::HOST;
      riffle_model* model = nullptr;
      REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
      MemoryPlan plan{};
      char err[1024] = "";
      CHECK(plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_BAD_ARGUMENT);
      CHECK(std::string(err).find("residency and pin") != std::string::npos);
      riffle_model_free(model);
    }
}
