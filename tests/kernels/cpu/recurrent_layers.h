// Helpers of the tests of recurrent layers' kernels.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/isa_limit.h"

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

// Returns the kernels of every instruction set that this CPU has, except AMX, which has no
// recurrent kernels of its own.
inline std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> out;
  for (const Isa isa : riffle::test::arch_isas())
    if (isa != Isa::Amx && isa_available(isa)) out.push_back(kernels(isa));
  return out;
}

// Runs random tokens through a layer in double, one by one, and compares what `stages` make of them
// with every instruction set, in any pieces. stages: kernels, n rows of `in`, the state before them
// (or null), places for the states after each (or null), rows of the output.
template <class Layer, class Stages>
void check_pieces(std::mt19937& random, const Layer& layer, int64_t out_width,
                  const Stages& stages) {
  constexpr int kTokens = 40;
  const Floats in = draw(random, kTokens * layer.width());
  Doubles state(layer.state()), want;
  std::vector<Doubles> states;
  for (int t = 0; t < kTokens; ++t) {
    const Doubles row = layer.step(state, &in[t * layer.width()]);
    want.insert(want.end(), row.begin(), row.end());
    states.push_back(state);
  }
  for (const Kernels* set : usable()) {
    INFO(set->name);
    // pieces: of how many tokens; copies: after every `copies` tokens the state is kept elsewhere.
    const auto run = [&](int pieces, int copies) {
      Floats rows = in, out(kTokens * out_width), carried(layer.state());
      std::vector<Floats> kept(kTokens);
      const float* from = nullptr;
      for (int first = 0; first < kTokens; first += pieces) {
        const int n = std::min(pieces, kTokens - first);
        std::vector<float*> to(n);
        to[n - 1] = carried.data();
        for (int t = first; t < first + n; ++t)
          if ((t + 1) % copies == 0) {
            kept[t].resize(layer.state());
            to[t - first] = kept[t].data();
          }
        stages(*set, &rows[first * layer.width()], n, from, to.data(), &out[first * out_width]);
        from = to[n - 1];
      }
      return std::pair{out, kept};
    };
    const auto [out, kept] = run(kTokens, kTokens + 1);
    CHECK(worst(out, want) < 2e-5);
    for (const int pieces : {1, 2, 3, 7, 16})
      for (const int copies : {1, 5, 1000}) {
        const auto [same, states_there] = run(pieces, copies);
        CHECK(same == out);
        for (int t = 0; t < kTokens; ++t)
          if (!states_there[t].empty()) CHECK(worst(states_there[t], states[t]) < 1e-5);
      }
  }
}

}  // namespace riffle::cpu::test
