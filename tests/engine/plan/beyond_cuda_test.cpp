// Models that the CUDA kernels lack something for.
#include "tests/engine/tiny_checkpoint.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("device cuda refuses models for which it has no kernels, by what they need",
          "[families]") {
  const TempDir temp;
  struct Case {
    const char *checkpoint, *needs;
  };
  for (const auto& [name, needs] : {Case{"deepseek2", "multi-head latent attention"},
                                    {"glm4_lite", "multi-head latent attention"}}) {
    INFO(name);
    riffle_model* model = nullptr;
    const std::string folder = tiny_folder(tiny_checkpoint(name), temp);
    REQUIRE(riffle_model_load(folder.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
    const auto plan = [&](DeviceKind device) {
      ContextOptions o = options();
      o.device = device;
      MemoryPlan needed{};
      char err[1024] = "";
      const riffle_status status = plan_memory(model, &o, &needed, err, sizeof err);
      return std::pair(status, std::string(err));
    };
    const auto [status, text] = plan(DeviceKind::CUDA);
    CHECK(status == RIFFLE_UNSUPPORTED);
    INFO(text);
    CHECK(text.find("device cuda: the model has " + std::string(needs) +
                    ", for which riffle has no CUDA kernels") != std::string::npos);
    CHECK(plan(DeviceKind::EMU).first == RIFFLE_OK);
    riffle_model_free(model);
  }
}
