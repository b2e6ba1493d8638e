// Kernels of recurrent layers against plain loops in double.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/cpu/recurrent/gated_delta.h"
#include "kernels/cpu/recurrent/short_conv.h"
#include "tests/kernels/cpu/recurrent_layers.h"

using namespace riffle::cpu;
using namespace riffle::cpu::test;
using riffle::GatedDelta;

namespace {

// A whole layer in double, token by token.
struct Layer {
  int k_heads, v_heads, k_dim, v_dim, n_taps;
  bool tiled;
  Floats taps, decay, bias, norm;
  int64_t keys() const { return int64_t(k_heads) * k_dim; }
  int64_t values() const { return int64_t(v_heads) * v_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t width() const { return channels() + values() + 2 * v_heads; }
  int64_t state() const { return (n_taps - 1) * channels() + values() * k_dim; }

  Layer(std::mt19937& random, int k_heads, int v_heads, int k_dim, int v_dim, int n_taps,
        bool tiled)
      : k_heads(k_heads),
        v_heads(v_heads),
        k_dim(k_dim),
        v_dim(v_dim),
        n_taps(n_taps),
        tiled(tiled),
        taps(draw(random, channels() * n_taps, 0.6)),
        decay(draw(random, v_heads)),
        bias(draw(random, v_heads)),
        norm(draw(random, v_dim)) {
    for (float& x : decay) x = -std::fabs(x);
  }
  GatedDelta kernel() const {
    return {k_heads, v_heads, k_dim,       v_dim,        n_taps,      tiled,      false,
            false,   1e-5f,   taps.data(), decay.data(), bias.data(), norm.data()};
  }

  // Advances the state by one token, and returns its output.
  Doubles step(Doubles& state, const float* in) const {
    Doubles mixed(channels());
    for (int64_t c = 0; c < channels(); ++c) {
      double sum = taps[c * n_taps + n_taps - 1] * double(in[c]);
      for (int t = 0; t < n_taps - 1; ++t) sum += taps[c * n_taps + t] * state[t * channels() + c];
      mixed[c] = sum / (1 + std::exp(-sum));
    }
    for (int64_t i = 0; i < (n_taps - 2) * channels(); ++i) state[i] = state[i + channels()];
    for (int64_t c = 0; c < channels(); ++c) state[(n_taps - 2) * channels() + c] = in[c];
    Doubles out(values());
    for (int h = 0; h < v_heads; ++h) {
      const int of_key = tiled ? h % k_heads : h / (v_heads / k_heads);
      Doubles q(k_dim), k(k_dim), o(v_dim);
      double qq = 1e-6, kk = 1e-6;
      for (int j = 0; j < k_dim; ++j) {
        q[j] = mixed[of_key * k_dim + j];
        k[j] = mixed[keys() + of_key * k_dim + j];
        qq += q[j] * q[j];
        kk += k[j] * k[j];
      }
      const double x = in[channels() + values() + v_heads + h] + bias[h];
      const double fade = std::exp(decay[h] * std::log1p(std::exp(x))),
                   beta = 1 / (1 + std::exp(-double(in[channels() + values() + h])));
      double squares = 0;
      for (int i = 0; i < v_dim; ++i) {
        double* row = &state[(n_taps - 1) * channels() + (int64_t(h) * v_dim + i) * k_dim];
        double along = 0;
        for (int j = 0; j < k_dim; ++j) along += (row[j] *= fade) * k[j] / std::sqrt(kk);
        const double change = beta * (mixed[2 * keys() + h * v_dim + i] - along);
        for (int j = 0; j < k_dim; ++j) {
          row[j] += change * k[j] / std::sqrt(kk);
          o[i] += row[j] * q[j] / std::sqrt(qq * k_dim);
        }
        squares += o[i] * o[i];
      }
      for (int i = 0; i < v_dim; ++i) {
        const double z = in[channels() + h * v_dim + i];
        out[h * v_dim + i] =
            o[i] / std::sqrt(squares / v_dim + 1e-5) * norm[i] * z / (1 + std::exp(-z));
      }
    }
    return out;
  }
};

}  // namespace

TEST_CASE("delta rule: every instruction set agrees with double", "[kernels][states]") {
  std::mt19937 random(1);
  for (const auto& [v_dim, k_dim] : {std::pair{128, 128}, {40, 24}, {1, 1}, {7, 33}, {16, 256}}) {
    const Floats from = draw(random, v_dim * k_dim), q = draw(random, k_dim, 0.1),
                 k = draw(random, k_dim, 0.1), v = draw(random, v_dim);
    Doubles to, out;
    for (int i = 0; i < v_dim; ++i) {
      double along = 0, sum = 0;
      for (int j = 0; j < k_dim; ++j) along += double(from[i * k_dim + j]) * k[j];
      for (int j = 0; j < k_dim; ++j) {
        to.push_back(0.9 * from[i * k_dim + j] + 0.7 * (v[i] - 0.9 * along) * k[j]);
        sum += to.back() * q[j];
      }
      out.push_back(sum);
    }
    for (const Kernels* set : usable()) {
      INFO(set->name << ", " << v_dim << " by " << k_dim);
      Floats found(to.size()), o(v_dim);
      set->recurrent.delta_rule(from.data(), found.data(), v_dim, k_dim, q.data(), k.data(),
                                v.data(), 0.9f, 0.7f, o.data());
      CHECK(worst(found, to) < 1e-6);
      CHECK(worst(o, out) < 2e-6);
      // The state may be changed in place.
      Floats in_place = from, again(v_dim);
      set->recurrent.delta_rule(in_place.data(), in_place.data(), v_dim, k_dim, q.data(), k.data(),
                                v.data(), 0.9f, 0.7f, again.data());
      CHECK(in_place == found);
      CHECK(again == o);
    }
  }
}

TEST_CASE("gated delta rule: a layer agrees with double, however its rows are divided",
          "[kernels][states]") {
  std::mt19937 random(2);
  struct Shape {
    int k_heads, v_heads, k_dim, v_dim, n_taps;
    bool tiled;
  };
  for (const Shape& s : {Shape{2, 6, 16, 16, 4, false},
                         {2, 6, 16, 16, 4, true},
                         {3, 3, 24, 40, 3, false},
                         {1, 3, 128, 128, 4, true},
                         {2, 2, 5, 7, 2, true},
                         {1, 2, 8, 8, 8, false}}) {
    const Layer layer(random, s.k_heads, s.v_heads, s.k_dim, s.v_dim, s.n_taps, s.tiled);
    INFO(s.k_heads << " and " << s.v_heads << " heads of " << s.k_dim << " and " << s.v_dim << ", "
                   << s.n_taps << " taps");
    const auto stages = [&](const Kernels& set, float* at, int n, const float* from,
                            float* const* to, float* y) {
      for (int head = 0; head < 2 * s.k_heads + s.v_heads; ++head)
        gated_delta_mix(set, layer.kernel(), at, n, from, to, head);
      for (int head = 0; head < s.v_heads; ++head)
        gated_delta(set, layer.kernel(), at, n, from, to, y, head);
    };
    check_pieces(random, layer, layer.values(), stages);
  }
}

TEST_CASE("short convolution: a layer agrees with double, however its rows are divided",
          "[kernels][states]") {
  std::mt19937 random(3);
  for (const int n_taps : {2, 3, 4, 8})
    for (const int dim : {1, 60, 64, 130}) {
      constexpr int kTokens = 25;
      const Floats in = draw(random, kTokens * 3 * dim), taps = draw(random, dim * n_taps);
      Doubles want(kTokens * dim);
      const auto u = [&](int t, int c) {
        return t < 0 ? 0 : double(in[t * 3 * dim + c]) * in[t * 3 * dim + 2 * dim + c];
      };
      for (int t = 0; t < kTokens; ++t)
        for (int c = 0; c < dim; ++c) {
          double sum = 0;
          for (int k = 0; k < n_taps; ++k) sum += taps[c * n_taps + k] * u(t - n_taps + 1 + k, c);
          want[t * dim + c] = in[t * 3 * dim + dim + c] * sum;
        }
      Floats whole;
      for (const int pieces : {kTokens, 1, 2, 7}) {
        Floats out(kTokens * dim), state((n_taps - 1) * dim);
        for (int first = 0; first < kTokens; first += pieces)
          for (int c = 0; c < dim; c += kConvChannels)
            short_conv(&in[first * 3 * dim], std::min(pieces, kTokens - first), dim, taps.data(),
                       n_taps, first == 0 ? nullptr : state.data(), state.data(), &out[first * dim],
                       c, std::min(dim, c + kConvChannels));
        CHECK(worst(out, want) < 1e-6);
        if (whole.empty()) whole = out;
        CHECK(out == whole);
        for (int k = 0; k < n_taps - 1; ++k)
          for (int c = 0; c < dim; ++c)
            CHECK(state[k * dim + c] == Approx(u(kTokens - n_taps + 1 + k, c)).margin(1e-6));
      }
    }
}
