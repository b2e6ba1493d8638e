// Kernels of Mamba-2 against plain loops in double.
#include "kernels/cpu/recurrent/mamba2.h"

#include <catch2/catch.hpp>

#include "tests/kernels/cpu/recurrent_layers.h"

using namespace riffle::cpu;
using namespace riffle::cpu::test;
using riffle::Mamba2;

namespace {

// A whole layer in double, token by token.
struct Layer {
  int groups, heads, state_dim, head_dim, n_taps;
  Floats taps, taps_bias, decay, step_bias, skip, norm;
  int64_t inner() const { return int64_t(heads) * head_dim; }
  int64_t channels() const { return inner() + 2 * int64_t(groups) * state_dim; }
  int64_t width() const { return inner() + channels() + heads; }
  int64_t state() const { return (n_taps - 1) * channels() + inner() * state_dim; }

  Layer(std::mt19937& random, int groups, int heads, int state_dim, int head_dim, int n_taps)
      : groups(groups),
        heads(heads),
        state_dim(state_dim),
        head_dim(head_dim),
        n_taps(n_taps),
        taps(draw(random, channels() * n_taps, 0.6)),
        taps_bias(draw(random, channels(), 0.3)),
        decay(draw(random, heads)),
        step_bias(draw(random, heads)),
        skip(draw(random, heads)),
        norm(draw(random, inner())) {
    for (float& x : decay) x = -std::fabs(x);
  }
  Mamba2 kernel() const {
    return {groups,      heads,       state_dim,        head_dim,     n_taps,
            1e-5f,       taps.data(), taps_bias.data(), decay.data(), step_bias.data(),
            skip.data(), norm.data()};
  }

  // Advances the state by one token, and returns its output.
  Doubles step(Doubles& state, const float* in) const {
    Doubles mixed(channels());
    const float* const given = in + inner();
    for (int64_t c = 0; c < channels(); ++c) {
      double sum = taps_bias[c] + taps[c * n_taps + n_taps - 1] * double(given[c]);
      for (int t = 0; t < n_taps - 1; ++t) sum += taps[c * n_taps + t] * state[t * channels() + c];
      mixed[c] = sum / (1 + std::exp(-sum));
    }
    for (int64_t i = 0; i < (n_taps - 2) * channels(); ++i) state[i] = state[i + channels()];
    for (int64_t c = 0; c < channels(); ++c) state[(n_taps - 2) * channels() + c] = given[c];
    Doubles out(inner());
    for (int h = 0; h < heads; ++h) {
      const int group = h / (heads / groups);
      const double* const b = &mixed[inner() + group * state_dim];
      const double* const c = &mixed[inner() + (groups + group) * state_dim];
      const double x = given[channels() + h] + step_bias[h];
      const double step = std::log1p(std::exp(x));
      for (int i = 0; i < head_dim; ++i) {
        const int64_t at = h * head_dim + i;
        double* const row = &state[(n_taps - 1) * channels() + at * state_dim];
        double y = skip[h] * mixed[at];
        for (int j = 0; j < state_dim; ++j) {
          row[j] = std::exp(decay[h] * step) * row[j] + step * mixed[at] * b[j];
          y += row[j] * c[j];
        }
        out[at] = y * in[at] / (1 + std::exp(-double(in[at])));
      }
    }
    const int64_t part = inner() / groups;
    for (int64_t first = 0; first < inner(); first += part) {
      double squares = 0;
      for (int64_t i = first; i < first + part; ++i) squares += out[i] * out[i];
      for (int64_t i = first; i < first + part; ++i)
        out[i] *= norm[i] / std::sqrt(squares / static_cast<double>(part) + 1e-5);
    }
    return out;
  }
};

}  // namespace

TEST_CASE("outer rule: every instruction set agrees with double", "[kernels][states]") {
  std::mt19937 random(1);
  for (const auto& [v_dim, k_dim] : {std::pair{64, 128}, {40, 24}, {1, 1}, {7, 33}, {16, 256}}) {
    const Floats from = draw(random, v_dim * k_dim), c = draw(random, k_dim, 0.1),
                 b = draw(random, k_dim, 0.1), x = draw(random, v_dim);
    Doubles to, out;
    for (int i = 0; i < v_dim; ++i) {
      double sum = 0;
      for (int j = 0; j < k_dim; ++j) {
        to.push_back(0.9 * from[i * k_dim + j] + double(x[i]) * b[j]);
        sum += to.back() * c[j];
      }
      out.push_back(sum);
    }
    for (const Kernels* set : usable()) {
      INFO(set->name << ", " << v_dim << " by " << k_dim);
      Floats found(to.size()), o(v_dim);
      set->recurrent.outer_rule(from.data(), found.data(), v_dim, k_dim, c.data(), b.data(),
                                x.data(), 0.9f, o.data());
      CHECK(worst(found, to) < 1e-6);
      CHECK(worst(o, out) < 2e-6);
      // The state may be changed in place.
      Floats in_place = from, again(v_dim);
      set->recurrent.outer_rule(in_place.data(), in_place.data(), v_dim, k_dim, c.data(), b.data(),
                                x.data(), 0.9f, again.data());
      CHECK(in_place == found);
      CHECK(again == o);
    }
  }
}

TEST_CASE("Mamba-2: a layer agrees with double, however its rows are divided",
          "[kernels][states]") {
  std::mt19937 random(2);
  struct Shape {
    int groups, heads, state_dim, head_dim, n_taps;
  };
  for (const Shape& s : {Shape{2, 8, 16, 16, 4},
                         {1, 6, 24, 24, 3},
                         {3, 3, 128, 64, 4},
                         {2, 4, 5, 7, 2},
                         {1, 2, 256, 8, 8}}) {
    const Layer layer(random, s.groups, s.heads, s.state_dim, s.head_dim, s.n_taps);
    const Mamba2 m = layer.kernel();
    REQUIRE(m.channels() == layer.channels());
    REQUIRE(m.in_width() == layer.width());
    INFO(s.heads << " heads of " << s.head_dim << " in " << s.groups << " groups, states of "
                 << s.state_dim << ", " << s.n_taps << " taps");
    const auto stages = [&](const Kernels& set, float* at, int n, const float* from,
                            float* const* to, float* y) {
      for (int64_t c = 0; c < m.channels(); c += kMambaChannels)
        mamba2_mix(set, m, at, n, from, to, c, std::min(m.channels(), c + kMambaChannels));
      for (int head = 0; head < s.heads; ++head) mamba2(set, m, at, n, from, to, y, head);
      for (int t = 0; t < n; ++t) mamba2_norm(set, m, y + t * layer.inner());
    };
    check_pieces(random, layer, layer.inner(), stages);
  }
}
