// Tokens that the device draws.
#include "tests/engine/padding.h"

#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("the device never draws pieces that are padding", "[cuda]") {
  if (skip()) return;
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  check_padding_is_not_drawn(o);
}
