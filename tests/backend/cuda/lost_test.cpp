// A GPU that stops working in the middle: an error that says so, and a process that goes on. It
// takes the process's CUDA context with it, so tests/run.sh runs this case alone: riffle_tests
// "[lost]".
#include "kernels/cuda/layer/layer.h"
#include "tests/engine/test_model.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("cuda: a device that is lost is an error, and the CPU goes on", "[.][lost]") {
  if (skip()) return;
  ContextOptions o = options();
  o.n_ctx = 512;
  o.device = DeviceKind::CUDA;
  Runtime gpu(o);
  riffle_session* s = gpu.session();
  const auto prompt = some_tokens(100, 1);
  gpu.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  const int32_t token = 500;
  gpu.check(riffle_step(gpu.context, &s, &token, 1));
  // A kernel that reads what it may not.
  const auto* nowhere = reinterpret_cast<const float*>(uintptr_t(16));
  DeviceArray<float> out(1024);
  REQUIRE(riffle::cuda::convert(nowhere, 1024, out.get(), riffle::cuda::WType::F32, nullptr) ==
          cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);

  CHECK(riffle_step(gpu.context, &s, &token, 1) == RIFFLE_DEVICE_LOST);
  const std::string text = riffle_context_error(gpu.context);
  INFO(text);
  CHECK(text.find("GPU") != std::string::npos);
  CHECK(riffle_step(gpu.context, &s, &token, 1) != RIFFLE_OK);

  o.device = DeviceKind::CPU;
  Runtime cpu(o);
  riffle_session* on_cpu = cpu.session(prompt);
  cpu.check(riffle_step(cpu.context, &on_cpu, &token, 1));
}
