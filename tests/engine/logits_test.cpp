// Logits stay on the device until somebody asks for them.
#include "tests/engine/late_logits.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("logits may be asked for late, and those given stay", "[engine]") {
  ContextOptions o = options();
  o.n_ctx = 1024;
  o.n_sessions = 4;
  SECTION("cpu") { check_late_logits(o); }
  SECTION("emu, steps in groups") {
    o.device = DeviceKind::EMU;
    o.slots = 40;
    check_late_logits(o);
  }
}

TEST_CASE("a step that fails leaves the logits of the one before", "[engine]") {
  ContextOptions o = options();
  o.n_ctx = 1024;
  check_logits_of_failed_step(o);
}
