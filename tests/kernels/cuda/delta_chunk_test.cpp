// Prompts of the gated delta rule in chunks, against double.
#include "tests/kernels/cuda/recurrent_layers.h"

using namespace riffle::cuda;
using namespace riffle::test;
using riffle::GatedDelta;

namespace {

// The gated delta rule in double: the output, and the state after each of `rows`.
Floats run_exactly(const DeltaLayer& layer, const Floats& in, const Floats& from,
                   const std::vector<int64_t>& rows, std::vector<Floats>& states) {
  const GatedDelta& s = layer.here;
  const int64_t n = static_cast<int64_t>(in.size()) / layer.in_width, held = s.n_taps - 1;
  std::vector<int64_t> at;  // each channel's place in a row
  const auto place = [&](int64_t first, int width) {
    for (int i = 0; i < width; i++) at.push_back(first + i);
  };
  for (int key = 0; key < s.k_heads; key++) place(s.q_at(key), s.k_dim);
  for (int key = 0; key < s.k_heads; key++) place(s.k_at(key), s.k_dim);
  for (int head = 0; head < s.v_heads; head++) place(s.v_at(head), s.v_dim);
  const auto input = [&](int64_t t, int64_t c) -> double {
    if (t >= 0) return in[t * layer.in_width + at[c]];
    return from.empty() ? 0 : from[(held + t) * s.channels() + c];
  };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  std::vector<double> matrices(layer.state - layer.held), x(s.channels()), o(s.v_dim);
  if (!from.empty()) std::copy(from.begin() + layer.held, from.end(), matrices.begin());
  Floats out(n * layer.out_width);
  for (int64_t t = 0; t < n; t++) {
    for (int64_t c = 0; c < s.channels(); c++) {
      double sum = 0;
      for (int k = 0; k < s.n_taps; k++)
        sum += double(s.taps[c * s.n_taps + k]) * input(t - held + k, c);
      x[c] = silu(sum);
    }
    for (int i = 0; i < 2 * s.k_heads; i++) {
      double* const v = &x[i * s.k_dim];
      double squares = 1e-6;
      for (int c = 0; c < s.k_dim; c++) squares += v[c] * v[c];
      const double length = std::sqrt(squares * (i < s.k_heads ? s.k_dim : 1));
      for (int c = 0; c < s.k_dim; c++) v[c] /= length;
    }
    const float* const row = &in[t * layer.in_width];
    for (int head = 0; head < s.v_heads; head++) {
      const double step = std::log1p(std::exp(double(row[s.alpha_at(head)]) + s.bias[head]));
      const double decay = std::exp(s.decay[head] * step);
      const double beta = 1 / (1 + std::exp(-double(row[s.beta_at(head)])));
      const double* const q = &x[s.key_of(head) * s.k_dim];
      const double* const k = q + s.keys();
      double squares = 0;
      for (int r = 0; r < s.v_dim; r++) {
        double* const m = &matrices[(int64_t{head} * s.v_dim + r) * s.k_dim];
        double found = 0;
        for (int c = 0; c < s.k_dim; c++) found += m[c] * k[c];
        const double change = beta * (x[2 * s.keys() + head * s.v_dim + r] - decay * found);
        o[r] = 0;
        for (int c = 0; c < s.k_dim; c++) m[c] = decay * m[c] + change * k[c], o[r] += m[c] * q[c];
        squares += o[r] * o[r];
      }
      const double rms = std::sqrt(squares / s.v_dim + s.eps);
      for (int r = 0; r < s.v_dim; r++)
        out[t * layer.out_width + head * s.v_dim + r] =
            float(o[r] / rms * s.norm[r] * silu(row[s.z_at(head) + r]));
    }
    if (std::find(rows.begin(), rows.end(), t + 1) == rows.end()) continue;
    Floats state(layer.held);
    for (int64_t i = 0; i < layer.held; i++)
      state[i] = float(input(t + 1 - held + i / s.channels(), i % s.channels()));
    state.insert(state.end(), matrices.begin(), matrices.end());
    states.push_back(state);
  }
  return out;
}

}  // namespace

TEST_CASE("gated delta rule in chunks: any number of rows, against double", "[cuda]") {
  if (skip()) return;
  Rng g(6);
  for (const bool tiled : {false, true}) {
    const int k_dim = tiled ? 128 : 64, v_dim = tiled ? 64 : 128;
    const DeltaLayer layer(g, {2, 10, k_dim, v_dim, 4, tiled, !tiled, !tiled, 1e-5f, nullptr,
                               nullptr, nullptr, nullptr});
    INFO(layer.name());
    const int64_t most = 200;
    const Floats in = random_floats(g, most * layer.in_width, 2);
    const Floats from = run_here(layer, random_floats(g, 9 * layer.in_width, 2), {}).state;
    std::vector<int64_t> rows;
    for (int64_t n = 1; n <= most; n++) rows.push_back(n);
    std::vector<Floats> states;
    const Floats out = run_exactly(layer, in, from, rows, states);
    for (const int64_t n : rows) {
      INFO("rows " << n);
      const Result found =
          run_there(layer, rows_of(in, 0, n, layer.in_width), from, {}, n % 2 == 0);
      check_close(found.out, rows_of(out, 0, n, layer.out_width), "out");
      check_state(layer, found.state, states[n - 1]);
    }
  }
}

// Enough heads that the scan takes larger blocks of the matrices, and more of them for a head of
// the keys than the kernels process at a time.
TEST_CASE("gated delta rule in chunks: many heads, against double", "[cuda]") {
  if (skip()) return;
  Rng g(8);
  for (const bool tiled : {false, true}) {
    const DeltaLayer layer(g, {tiled ? 16 : 8, 48, 128, 128, 4, tiled, !tiled, false, 1e-5f,
                               nullptr, nullptr, nullptr, nullptr});
    INFO(layer.name());
    const int64_t n = 150;
    CHECK_FALSE(recurrent_in_chunks(layer.there, 63));
    if (!recurrent_in_chunks(layer.there, n)) WARN("this device computes token by token");
    const Floats in = random_floats(g, n * layer.in_width, 2);
    const Floats from = run_here(layer, random_floats(g, 9 * layer.in_width, 2), {}).state;
    const std::vector<int64_t> rows{5, 64, 101, n};
    std::vector<Floats> states, kept;
    const Floats out = run_exactly(layer, in, from, rows, states);
    const Result found = run_there(layer, in, from, {}, true, {5, 64, 101}, &kept);
    check_close(found.out, out, "out");
    kept.push_back(found.state);
    for (size_t i = 0; i < rows.size(); i++) check_state(layer, kept[i], states[i]);
  }
}

// Keys that are nearly the same, which hardly decay: (I + A)^-1 has large entries to cancel.
TEST_CASE("gated delta rule in chunks: repeated tokens, against double", "[cuda]") {
  if (skip()) return;
  Rng g(9);
  DeltaLayer layer(
      g, {1, 2, 128, 128, 4, false, false, false, 1e-5f, nullptr, nullptr, nullptr, nullptr});
  layer.weights[1] = {-1e-4f, 0.0f};
  layer.copies[1].upload(layer.weights[1]);
  for (const int64_t period : {1, 3, 70}) {
    const int64_t n = 700;
    Floats in = random_floats(g, n * layer.in_width, 2);
    for (int64_t t = 0; t < n; t++) {
      if (t >= period)
        std::copy_n(&in[(t - period) * layer.in_width], layer.in_width, &in[t * layer.in_width]);
      for (int head = 0; head < 2; head++) in[t * layer.in_width + layer.here.beta_at(head)] = 7;
    }
    INFO("period " << period);
    std::vector<Floats> states;
    const Floats out = run_exactly(layer, in, {}, {n}, states);
    const Result found = run_there(layer, in, {}, {}, false);
    check_close(found.out, out, "out");
    check_state(layer, found.state, states[0]);
  }
}

TEST_CASE("gated delta rule in chunks: 32,768 rows, against double", "[cuda]") {
  if (skip()) return;
  Rng g(7);
  DeltaLayer layer(
      g, {1, 1, 128, 128, 4, false, false, false, 1e-5f, nullptr, nullptr, nullptr, nullptr});
  // The head forgets within some hundreds of tokens, or at once.
  for (const float decay : {-0.003f, -20.0f}) {
    layer.weights[1][0] = decay;
    layer.copies[1].upload(layer.weights[1]);
    const int64_t n = 32768;
    const Floats in = random_floats(g, n * layer.in_width, 2);
    const std::vector<int64_t> rows{1001, 20001, n};
    std::vector<Floats> states, kept;
    const Floats out = run_exactly(layer, in, {}, rows, states);
    const Result found = run_there(layer, in, {}, {}, false, {1001, 20001}, &kept);
    check_close(found.out, out, "out");
    kept.push_back(found.state);
    for (size_t i = 0; i < rows.size(); i++) check_state(layer, kept[i], states[i]);
  }
}
