#include "tests/isa_limit.h"

#include <cstdlib>
#include <optional>
#include <string_view>

using riffle::cpu::Isa;

// The Makefile links calls of riffle::cpu::isa_available to the first of these (--wrap).
extern "C" bool __wrap__ZN6riffle3cpu13isa_availableENS0_3IsaE(Isa isa);
extern "C" bool __real__ZN6riffle3cpu13isa_availableENS0_3IsaE(Isa isa);

namespace riffle::test {
namespace {

constexpr Isa kIsas[] = {Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx};
constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "amx"};

const char* asked() {
  const char* name = std::getenv("RIFFLE_TEST_ISA");
  return name && *name ? name : nullptr;
}

std::optional<Isa> limit() {
  for (size_t i = 0; asked() && i < std::size(kIsas); ++i)
    if (kNames[i] == asked()) return kIsas[i];
  return std::nullopt;
}

}  // namespace

std::vector<const cpu::Kernels*> usable_isas() {
  std::vector<const cpu::Kernels*> usable;
  for (const Isa isa : kIsas)
    if (cpu::isa_available(isa)) usable.push_back(cpu::kernels(isa));
  return usable;
}

bool isa_limit_valid() {
  return !asked() || (limit() && __real__ZN6riffle3cpu13isa_availableENS0_3IsaE(*limit()));
}

}  // namespace riffle::test

extern "C" bool __wrap__ZN6riffle3cpu13isa_availableENS0_3IsaE(Isa isa) {
  const auto most = riffle::test::limit();
  return (!most || isa <= *most) && __real__ZN6riffle3cpu13isa_availableENS0_3IsaE(isa);
}
