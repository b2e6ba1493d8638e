// Helpers of the tests of recurrent layers' kernels.
#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace riffle::cpu::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Draws normal values.
inline Floats draw(std::mt19937& random, size_t n, double scale = 1) {
  std::normal_distribution<double> normal(0, scale);
  Floats out(n);
  for (float& x : out) x = static_cast<float>(normal(random));
  return out;
}

// Returns the largest difference over the largest value.
inline double worst(const Floats& found, const Doubles& want) {
  double most = 0, largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    most = std::max(most, std::fabs(found[i] - want[i]));
    largest = std::max(largest, std::fabs(want[i]));
  }
  return most / largest;
}

// Returns the kernels of every instruction set that this CPU has.
inline std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> out;
  for (const Isa isa : {Isa::Scalar, Isa::Avx2, Isa::Avx512})
    if (isa_available(isa)) out.push_back(kernels(isa));
  return out;
}

}  // namespace riffle::cpu::test
