#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

#include "tests/isa_limit.h"

// Says first, on standard error, which instruction sets the tests use.
int main(int argc, char** argv) {
  if (!riffle::test::isa_limit_valid()) {
    std::fprintf(stderr,
                 "RIFFLE_TEST_ISA=%s: expected scalar, avx2, avx512 or amx, and a machine that has "
                 "it\n",
                 std::getenv("RIFFLE_TEST_ISA"));
    return 2;
  }
  std::fputs("instruction sets:", stderr);
  for (const auto* kernels : riffle::test::usable_isas())
    std::fprintf(stderr, " %s", kernels->name);
  std::fputs("\n", stderr);
  return Catch::Session().run(argc, argv);
}
