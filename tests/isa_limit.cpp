#include "tests/isa_limit.h"

#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

using riffle::cpu::Isa;

// The Makefile links calls of riffle::cpu::isa_available to the first of these (--wrap).
extern "C" bool __wrap__ZN6riffle3cpu13isa_availableENS0_3IsaE(Isa isa);
extern "C" bool __real__ZN6riffle3cpu13isa_availableENS0_3IsaE(Isa isa);

namespace riffle::test {
namespace {

constexpr std::string_view kNames[] = {"scalar", "avx2",    "avx512", "amx",
                                       "neon",   "dotprod", "i8mm"};  // in the order of Isa

const char* asked() {
  const char* name = std::getenv("RIFFLE_TEST_ISA");
  return name && *name ? name : nullptr;
}

std::optional<Isa> limit() {
  for (size_t i = 0; asked() && i < std::size(kNames); ++i)
    if (kNames[i] == asked()) return static_cast<Isa>(i);
  return std::nullopt;
}

}  // namespace

std::vector<Isa> arch_isas() {
  std::vector<Isa> all = {Isa::Scalar};
  for (const cpu::VectorSet& set : cpu::vector_sets()) all.push_back(set.isa);
  return all;
}

std::vector<const cpu::Kernels*> usable_isas() {
  std::vector<const cpu::Kernels*> usable;
  for (const Isa isa : arch_isas())
    if (cpu::isa_available(isa)) usable.push_back(cpu::kernels(isa));
  return usable;
}

std::vector<const cpu::Kernels*> machine_isas() {
  std::vector<const cpu::Kernels*> all;
  for (const Isa isa : arch_isas())
    if (__real__ZN6riffle3cpu13isa_availableENS0_3IsaE(isa)) all.push_back(cpu::kernels(isa));
  return all;
}

bool isa_limit_valid() {
  return !asked() || (limit() && __real__ZN6riffle3cpu13isa_availableENS0_3IsaE(*limit()));
}

}  // namespace riffle::test

extern "C" bool __wrap__ZN6riffle3cpu13isa_availableENS0_3IsaE(Isa isa) {
  const auto most = riffle::test::limit();
  return (!most || isa <= *most) && __real__ZN6riffle3cpu13isa_availableENS0_3IsaE(isa);
}
