// The instruction sets of this machine. This is a separate file so that riffle_tests can replace
// isa_available and act as an older processor (tests/isa_limit.cpp).
#include "kernels/cpu/kernels.h"

namespace riffle::cpu {

bool isa_available(Isa isa) {
  if (isa == Isa::Scalar) return true;
  for (const VectorSet& set : vector_sets())
    if (set.isa == isa) return set.available();
  return false;
}

}  // namespace riffle::cpu
