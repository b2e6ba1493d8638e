// Layers that keep a recurrent state: random ones of all kinds, run by the scalar kernels of the
// CPU and by recur_prompt.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/recurrent/gated_delta.h"
#include "kernels/cpu/recurrent/mamba2.h"
#include "kernels/cpu/recurrent/short_conv.h"
#include "kernels/cuda/recurrent/recurrent.h"
#include "tests/kernels/cuda/linear.h"

namespace riffle::test {

using Floats = std::vector<float>;

inline const cpu::Kernels& scalar() { return *cpu::kernels(cpu::Isa::Scalar); }

inline Floats negative(Floats x) {
  for (float& v : x) v = -std::fabs(v);
  return x;
}

// Random layers, here and on the device. run: n rows of `in` after the state `from` (null: zeros)
// make n rows of `out`; to[i] receives the state after row i; null: it is not wanted.
struct ConvLayer {
  Floats taps;
  DeviceArray<float> copy;
  ShortConv here, there;
  int64_t in_width, out_width, held, state;  // held: inputs of the convolution in a state

  ConvLayer(Rng& g, int dim, int n_taps)
      : taps(random_floats(g, size_t(dim) * n_taps)),
        copy(taps),
        here{dim, n_taps, taps.data()},
        there{dim, n_taps, copy.get()},
        in_width(3 * dim),
        out_width(dim),
        held((n_taps - 1) * dim),
        state(held) {}
  void run(float* in, int64_t n, const float* from, float* const* to, float* out) const {
    for (int64_t i = 0, first = 0; i < n; i++) {
      if (!to[i]) continue;
      for (int64_t c = 0; c < here.dim; c += cpu::kConvChannels)
        cpu::short_conv(in + first * in_width, i + 1 - first, here.dim, taps.data(), here.n_taps,
                        from, to[i], out + first * here.dim, c,
                        std::min<int64_t>(here.dim, c + cpu::kConvChannels));
      from = to[i], first = i + 1;
    }
  }
  std::string name() const {
    return "short convolution of " + std::to_string(here.dim) + ", taps " +
           std::to_string(here.n_taps);
  }
};

struct DeltaLayer {
  GatedDelta here, there;
  int64_t in_width, out_width, held, state;  // held: inputs of the convolution in a state
  Floats weights[4];
  DeviceArray<float> copies[4];

  DeltaLayer(Rng& g, const GatedDelta& shape)
      : here(shape),
        in_width(shape.in_width()),
        out_width(shape.values()),
        held((shape.n_taps - 1) * shape.channels()),
        state(held + shape.values() * shape.k_dim) {
    weights[0] = random_floats(g, shape.channels() * shape.n_taps);
    weights[1] = negative(random_floats(g, shape.v_heads));
    weights[2] = random_floats(g, shape.v_heads);
    weights[3] = random_floats(g, shape.v_dim);
    for (int i = 0; i < 4; i++) copies[i] = DeviceArray<float>(weights[i]);
    const auto with = [&](const float* a, const float* b, const float* c, const float* d) {
      GatedDelta s = shape;
      s.taps = a, s.decay = b, s.bias = c, s.norm = d;
      return s;
    };
    here = with(weights[0].data(), weights[1].data(), weights[2].data(), weights[3].data());
    there = with(copies[0].get(), copies[1].get(), copies[2].get(), copies[3].get());
  }
  void run(float* in, int64_t n, const float* from, float* const* to, float* out) const {
    for (int head = 0; head < 2 * here.k_heads + here.v_heads; head++)
      cpu::gated_delta_mix(scalar(), here, in, n, from, to, head);
    for (int head = 0; head < here.v_heads; head++)
      cpu::gated_delta(scalar(), here, in, n, from, to, out, head);
  }
  std::string name() const {
    return "gated delta rule, heads " + std::to_string(here.k_heads) + "/" +
           std::to_string(here.v_heads) + " of " + std::to_string(here.k_dim) + " and " +
           std::to_string(here.v_dim) + ", taps " + std::to_string(here.n_taps) +
           (here.tiled ? ", tiled" : "") + (here.qkvz_by_key ? ", by key" : "");
  }
};

struct MambaLayer {
  Mamba2 here, there;
  int64_t in_width, out_width, held, state;  // held: inputs of the convolution in a state
  Floats weights[6];
  DeviceArray<float> copies[6];

  MambaLayer(Rng& g, const Mamba2& shape)
      : here(shape),
        in_width(shape.in_width()),
        out_width(shape.inner()),
        held((shape.n_taps - 1) * shape.channels()),
        state(held + shape.inner() * shape.state_dim) {
    weights[0] = random_floats(g, shape.channels() * shape.n_taps);
    weights[1] = random_floats(g, shape.channels(), 0.3f);
    weights[2] = negative(random_floats(g, shape.heads));
    weights[3] = random_floats(g, shape.heads);
    weights[4] = random_floats(g, shape.heads);
    weights[5] = random_floats(g, shape.inner());
    for (int i = 0; i < 6; i++) copies[i] = DeviceArray<float>(weights[i]);
    const auto with = [&](const auto& at) {
      Mamba2 m = shape;
      m.taps = at(0), m.taps_bias = at(1), m.decay = at(2), m.step_bias = at(3);
      m.skip = at(4), m.norm = at(5);
      return m;
    };
    here = with([&](int i) -> const float* { return weights[i].data(); });
    there = with([&](int i) -> const float* { return copies[i].get(); });
  }
  void run(float* in, int64_t n, const float* from, float* const* to, float* out) const {
    for (int64_t c = 0; c < here.channels(); c += cpu::kMambaChannels)
      cpu::mamba2_mix(scalar(), here, in, n, from, to, c,
                      std::min(here.channels(), c + cpu::kMambaChannels));
    for (int head = 0; head < here.heads; head++)
      cpu::mamba2(scalar(), here, in, n, from, to, out, head);
    for (int64_t i = 0; i < n; i++) cpu::mamba2_norm(scalar(), here, out + i * out_width);
  }
  std::string name() const {
    return "Mamba-2, " + std::to_string(here.heads) + " heads of " + std::to_string(here.head_dim) +
           " in " + std::to_string(here.groups) + " groups, states of " +
           std::to_string(here.state_dim) + ", taps " + std::to_string(here.n_taps);
  }
};

// Calls check(layer) for layers of all kinds. Some have heads whose sizes are not multiples of 4,
// and some have more rows than a CTA has at once.
template <class Check>
void for_layers(const Check& check) {
  Rng g(5);
  for (const auto& [dim, taps] : {std::pair{40, 3}, {1024, 3}, {33, 8}, {130, 2}})
    check(ConvLayer(g, dim, taps), g);
  const auto delta = [&](int k_heads, int v_heads, int k_dim, int v_dim, int taps, bool tiled,
                         bool by_key) {
    check(DeltaLayer(g, {k_heads, v_heads, k_dim, v_dim, taps, tiled, by_key, by_key, 1e-5f,
                         nullptr, nullptr, nullptr, nullptr}),
          g);
  };
  delta(2, 4, 8, 8, 4, false, false);
  delta(2, 6, 24, 40, 3, true, false);
  delta(2, 4, 64, 64, 4, false, true);
  delta(2, 6, 128, 128, 4, true, false);
  delta(2, 4, 128, 128, 4, false, true);
  delta(1, 3, 5, 7, 2, false, true);
  delta(1, 2, 256, 200, 8, true, false);
  const auto mamba = [&](int groups, int heads, int state_dim, int head_dim, int taps) {
    check(MambaLayer(g, {groups, heads, state_dim, head_dim, taps, 1e-5f, nullptr, nullptr, nullptr,
                         nullptr, nullptr, nullptr}),
          g);
  };
  mamba(1, 4, 16, 8, 4);
  mamba(2, 8, 128, 64, 4);
  mamba(2, 4, 16, 8, 3);
  mamba(1, 3, 5, 7, 2);
  mamba(1, 2, 256, 136, 8);
}

inline Floats rows_of(const Floats& in, int64_t first, int64_t n, int64_t width) {
  return Floats(in.begin() + first * width, in.begin() + (first + n) * width);
}

// Checks each value against the largest one; NaN fails.
inline void check_close(const Floats& found, const Floats& want, const char* what) {
  REQUIRE(found.size() == want.size());
  double largest = 1e-30, worst = 0;
  size_t where = 0;
  for (const float x : want) largest = std::max(largest, std::fabs(double(x)));
  for (size_t i = 0; i < want.size(); i++) {
    const double error = std::fabs(double(found[i]) - want[i]) / largest;
    if (!(error <= worst)) worst = error, where = i;
    if (std::isnan(error)) break;
  }
  INFO(what << ": value " << where << " of " << want.size() << ", largest " << largest);
  CHECK(worst <= 1e-4);
}

// Inputs and matrices are compared separately, since their largest values differ.
template <class Layer>
void check_state(const Layer& layer, const Floats& found, const Floats& want) {
  const auto parts = [&](const Floats& x) {
    return std::pair{Floats(x.begin(), x.begin() + layer.held),
                     Floats(x.begin() + layer.held, x.end())};
  };
  check_close(parts(found).first, parts(want).first, "inputs in the state");
  check_close(parts(found).second, parts(want).second, "matrices");
}

struct Result {
  Floats out, state;
  bool operator==(const Result& other) const {
    return same_bits(out, other.out) && same_bits(state, other.state);
  }
};

template <class Layer>
Result run_here(const Layer& layer, Floats in, const Floats& from) {
  const int64_t n = static_cast<int64_t>(in.size()) / layer.in_width;
  Result result{Floats(n * layer.out_width), Floats(layer.state)};
  std::vector<float*> to(n);
  to[n - 1] = result.state.data();
  layer.run(in.data(), n, from.empty() ? nullptr : from.data(), to.data(), result.out.data());
  return result;
}

// Runs rows in pieces of the given sizes (the last one takes the rest). in_place: from is `to`.
// keeps: rows of the first piece after which the state is wanted, and kept: receives those states.
template <class Layer>
Result run_there(const Layer& layer, const Floats& in, const Floats& from,
                 std::vector<int64_t> pieces, bool in_place, const std::vector<int64_t>& keeps = {},
                 std::vector<Floats>* kept = nullptr) {
  const int64_t n = static_cast<int64_t>(in.size()) / layer.in_width;
  const int64_t beyond = 7;  // must stay as it is
  const DeviceArray<float> rows(in), start(from);
  DeviceArray<float> out(n * layer.out_width + beyond), to(layer.state + beyond);
  out.poison(), to.poison();
  if (in_place) to.upload(from);
  const float* at = from.empty() ? nullptr : in_place ? to.get() : start.get();
  pieces.push_back(n);
  std::vector<DeviceArray<float>> states;
  std::vector<RecurKeep> wanted;
  for (const int64_t row : keeps) {
    states.emplace_back(layer.state + beyond);
    states.back().poison();
    wanted.push_back({row, states.back().get()});
  }
  int64_t first = 0;
  for (size_t i = 0; first < n; i++) {
    RecurPrompt p;
    p.n = std::min(pieces[i], n - first);
    DeviceArray<uint8_t> scratch(recurrent_scratch(layer.there, p.n));
    scratch.poison();
    p.from = at, p.to = to.get();
    p.in = rows.get() + first * layer.in_width;
    p.out = out.get() + first * layer.out_width;
    p.scratch = scratch.get();
    if (i == 0) p.keeps = wanted.data(), p.n_keeps = static_cast<int>(wanted.size());
    check_cuda(recur_prompt(layer.there, p, nullptr), "recur_prompt");
    check_cuda(cudaDeviceSynchronize(), "recur_prompt's kernels");
    at = to.get(), first += p.n;
  }
  Result result{out.download(), to.download()};
  const auto cut = [&](Floats& x) {
    for (int64_t i = 0; i < beyond; i++) CHECK(std::isnan(x[x.size() - 1 - i]));
    x.resize(x.size() - beyond);
  };
  cut(result.out), cut(result.state);
  for (const DeviceArray<float>& state : states) {
    kept->push_back(state.download());
    cut(kept->back());
  }
  return result;
}

inline bool in_chunks(const DeltaLayer& layer, int64_t n) {
  return recurrent_in_chunks(layer.there, n);
}
template <class Layer>
bool in_chunks(const Layer&, int64_t) {
  return false;
}

}  // namespace riffle::test
