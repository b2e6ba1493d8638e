#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

#include "tests/isa_limit.h"

// Says last, on standard error, how many cases checked nothing: those that were skipped. A case
// that skips one instruction set or device of several has checked the others.
struct SkippedCases : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (stats.totals.assertions.total() == 0) ++n_;
  }
  void testRunEnded(const Catch::TestRunStats&) override {
    std::fprintf(stderr, "skipped cases: %d\n", n_);
  }

 private:
  int n_ = 0;
};
CATCH_REGISTER_LISTENER(SkippedCases)

// Says first, on standard error, which instruction sets the tests use.
int main(int argc, char** argv) {
  if (!riffle::test::isa_limit_valid()) {
    std::fprintf(stderr, "RIFFLE_TEST_ISA=%s: this machine lacks that set, expected one of",
                 std::getenv("RIFFLE_TEST_ISA"));
    for (const auto* kernels : riffle::test::machine_isas())
      std::fprintf(stderr, " %s", kernels->name);
    std::fputs("\n", stderr);
    return 2;
  }
  std::fputs("instruction sets:", stderr);
  for (const auto* kernels : riffle::test::usable_isas())
    std::fprintf(stderr, " %s", kernels->name);
  std::fputs("\n", stderr);
  return Catch::Session().run(argc, argv);
}
