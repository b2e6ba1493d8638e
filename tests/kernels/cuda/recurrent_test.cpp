// Layers that keep a recurrent state: the device's kernels against the scalar ones of the CPU.
#include "kernels/cuda/recurrent/recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/recurrent/gated_delta.h"
#include "kernels/cpu/recurrent/mamba2.h"
#include "kernels/cpu/recurrent/short_conv.h"
#include "tests/kernels/cuda/linear.h"

using namespace riffle::cuda;
using namespace riffle::test;
using riffle::GatedDelta;
using riffle::Mamba2;
using riffle::ShortConv;
namespace cpu = riffle::cpu;

namespace {

using Floats = std::vector<float>;

const cpu::Kernels& scalar() { return *cpu::kernels(cpu::Isa::Scalar); }

Floats negative(Floats x) {
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

// Checks each value against the largest one; NaN fails.
void check_close(const Floats& found, const Floats& want, const char* what) {
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
template <class Layer>
Result run_there(const Layer& layer, const Floats& in, const Floats& from,
                 std::vector<int64_t> pieces, bool in_place) {
  const int64_t n = static_cast<int64_t>(in.size()) / layer.in_width;
  const int64_t beyond = 7;  // must stay as it is
  const DeviceArray<float> rows(in), start(from);
  DeviceArray<float> out(n * layer.out_width + beyond), to(layer.state + beyond);
  out.poison(), to.poison();
  if (in_place) to.upload(from);
  const float* at = from.empty() ? nullptr : in_place ? to.get() : start.get();
  pieces.push_back(n);
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
  return result;
}

// A sequence of steps: its state on the device and the state that the CPU has.
template <class Layer>
struct Sequence {
  DeviceArray<std::byte> buffers[3];  // two that change places, and one to repeat a step
  int now = -1;                       // the buffer that is read; -1: none, the state is null
  int replayed = 0;
  Floats state;                // before the next row; empty: zeros
  std::vector<Floats> states;  // after each row of the last step

  static int64_t state_at() { return 48; }
  static int64_t inputs_at(const Layer& layer) { return state_at() + 4 * layer.state + 4; }
  explicit Sequence(const Layer& layer) {
    const int64_t most_ahead = 5;
    for (auto& buffer : buffers) {
      buffer = DeviceArray<std::byte>(inputs_at(layer) +
                                      4 * most_ahead * recurrent_inputs(layer.there) + 16);
      buffer.poison();
    }
  }
  int next() const { return now == 0 ? 1 : 0; }
  Floats device_state(const Layer& layer, int buffer) const {
    const std::vector<std::byte> bytes = buffers[buffer].download();
    Floats values(layer.state);
    std::memcpy(values.data(), bytes.data() + state_at(), 4 * values.size());
    return values;
  }
  // The number of rows of the last step that were accepted, besides the first.
  void accept(int n) {
    state = states.empty() ? state : states[n];
    states.clear();
    now = next();
    replayed = n;
  }
};

// Launches a step of sequences with the given numbers of rows, from `rows` on. Results go to
// buffers next(), or to the third one. Returns `out`, poisoned where nothing was written.
template <class Layer>
Floats launch(const Layer& layer, const std::vector<const Sequence<Layer>*>& sequences,
              const std::vector<int>& n_rows, const Floats& rows, bool third, bool overlap) {
  std::vector<riffle::cuda::StepSequence> entries;
  for (size_t s = 0; s < sequences.size(); s++)
    for (int row = 0; row < std::max(1, n_rows[s]); row++) {
      const Sequence<Layer>& q = *sequences[s];
      StepSequence e;
      e.state = q.now < 0 ? nullptr : q.buffers[q.now].get();
      e.next_state = q.buffers[third ? 2 : q.next()].get();
      e.row = row, e.n_rows = n_rows[s], e.replayed = q.replayed;
      entries.push_back(e);
    }
  const DeviceArray<StepSequence> there(entries);
  const DeviceArray<float> in(rows);
  DeviceArray<float> out(entries.size() * layer.out_width);
  out.poison();
  const bool any = *std::max_element(n_rows.begin(), n_rows.end()) > 0;
  RecurStep step;
  step.sequences = there.get(), step.n = static_cast<int>(entries.size());
  step.state_at = Sequence<Layer>::state_at(), step.inputs_at = Sequence<Layer>::inputs_at(layer);
  step.in = any ? in.get() : nullptr, step.out = any ? out.get() : nullptr;
  step.overlap = overlap;
  check_cuda(recur_step(layer.there, step, nullptr), "recur_step");
  return out.download();
}

Floats rows_of(const Floats& in, int64_t first, int64_t n, int64_t width) {
  return Floats(in.begin() + first * width, in.begin() + (first + n) * width);
}

// One step, checked against the CPU's kernels, and against the same step of each sequence alone.
template <class Layer>
void check_step(const Layer& layer, Rng& g, const std::vector<Sequence<Layer>*>& sequences,
                const std::vector<int>& n_rows, bool overlap) {
  int64_t entries = 0;
  for (const int n : n_rows) entries += std::max(1, n);
  for (Sequence<Layer>* s : sequences) s->buffers[s->next()].poison(), s->buffers[2].poison();
  const Floats rows = random_floats(g, entries * layer.in_width, 2);
  const Floats out =
      launch<Layer>(layer, {sequences.begin(), sequences.end()}, n_rows, rows, false, overlap);
  int64_t first = 0;
  for (size_t i = 0; i < sequences.size(); i++) {
    Sequence<Layer>& s = *sequences[i];
    const int n = n_rows[i];
    INFO("sequence " << i << ", rows " << n << ", replayed " << s.replayed << ", state "
                     << (s.now >= 0));
    const int64_t places = std::max(1, n);
    const Floats found = rows_of(out, first, places, layer.out_width);
    Floats mine = rows_of(rows, first, places, layer.in_width);
    const Floats alone = launch<Layer>(layer, {&s}, {n}, mine, true, overlap);
    CHECK(same_bits(alone, found));
    CHECK(same_bits(s.buffers[2].download(), s.buffers[s.next()].download()));
    s.states.assign(n, Floats(layer.state));
    if (n > 0) {
      Floats want(n * layer.out_width);
      std::vector<float*> to;
      for (Floats& state : s.states) to.push_back(state.data());
      layer.run(mine.data(), n, s.state.empty() ? nullptr : s.state.data(), to.data(), want.data());
      check_close(found, want, "out");
    } else {
      CHECK(std::all_of(found.begin(), found.end(), [](float x) { return std::isnan(x); }));
      if (s.state.empty()) s.state.resize(layer.state);
    }
    check_state(layer, s.device_state(layer, s.next()), n > 0 ? s.states[0] : s.state);
    first += places;
  }
}

}  // namespace

TEST_CASE("recurrent layers: prompts agree with the CPU's, however they are divided", "[cuda]") {
  if (skip()) return;
  for_layers([](const auto& layer, Rng& g) {
    INFO(layer.name());
    REQUIRE(recurrent_supported(layer.there));
    const Floats before = run_here(layer, random_floats(g, 9 * layer.in_width, 2), {}).state;
    for (const int64_t n : {1, 7, 130, 1500}) {
      const Floats in = random_floats(g, n * layer.in_width, 2);
      for (const bool zeros : {true, false}) {
        INFO("rows " << n << ", from " << (zeros ? "zeros" : "a state"));
        const Floats from = zeros ? Floats() : before;
        const Result want = run_here(layer, in, from);
        const Result found = run_there(layer, in, from, {}, false);
        check_close(found.out, want.out, "out");
        check_state(layer, found.state, want.state);
        if (!zeros) CHECK(run_there(layer, in, from, {}, true) == found);
        CHECK(run_there(layer, in, from, {1, 2, 3, 100, 513}, !zeros) == found);
        CHECK(run_there(layer, in, from, {5, 1, 16, 40}, false) == found);
      }
    }
  });
}

TEST_CASE("recurrent layers: steps agree with the CPU's, with tokens ahead and without", "[cuda]") {
  if (skip()) return;
  for_layers([](const auto& layer, Rng& g) {
    INFO(layer.name());
    using Layer = std::decay_t<decltype(layer)>;
    Sequence<Layer> a(layer), b(layer);
    // Numbers of rows of both, and how many of the rows ahead are accepted.
    struct Step {
      int rows_a, accepted_a, rows_b, accepted_b;
    };
    bool overlap = false;
    for (const Step& step : {Step{1, 0, 3, 1},
                             {3, 0, 3, 2},
                             {3, 2, 1, 0},
                             {3, 1, 4, 3},
                             {1, 0, 3, 2},  // b replays three tokens
                             {3, 2, 0, 0},  // b has only tokens to replay
                             {0, 0, 1, 0},
                             {0, 0, 0, 0},  // nothing to do: a copy of the state
                             {6, 5, 3, 0},
                             {6, 4, 1, 0},  // a needs two tiles
                             {2, 0, 0, 0}}) {
      check_step<Layer>(layer, g, {&a, &b}, {step.rows_a, step.rows_b}, overlap);
      a.accept(step.accepted_a), b.accept(step.accepted_b);
      overlap = !overlap;
    }
    // A catch-up before there is a state.
    Sequence<Layer> c(layer);
    check_step<Layer>(layer, g, {&c}, {0}, true);
    c.accept(0);
    check_step<Layer>(layer, g, {&c}, {4}, true);
    c.accept(3);
    check_step<Layer>(layer, g, {&a, &c, &b}, {1, 1, 1}, true);
  });
}

TEST_CASE("recurrent layers: bits of rows in one step, in many, and in a prompt", "[cuda]") {
  if (skip()) return;
  for_layers([](const auto& layer, Rng& g) {
    INFO(layer.name());
    using Layer = std::decay_t<decltype(layer)>;
    const Floats in = random_floats(g, 4 * layer.in_width, 2);
    Sequence<Layer> together(layer), single(layer);
    Result steps;
    for (int64_t i = 0; i < 4; i++) {
      const Floats out =
          launch<Layer>(layer, {&single}, {1}, rows_of(in, i, 1, layer.in_width), false, false);
      steps.out.insert(steps.out.end(), out.begin(), out.end());
      single.accept(0);
    }
    steps.state = single.device_state(layer, single.now);
    Result ahead;
    ahead.out = launch<Layer>(layer, {&together}, {4}, in, false, false);
    together.accept(0);
    together.replayed = 3;
    (void)launch<Layer>(layer, {&together}, {0}, in, false, false);
    ahead.state = together.device_state(layer, together.next());
    CHECK(same_bits(ahead.out, steps.out));
    CHECK(same_bits(ahead.state, steps.state));
    const Result prompt = run_there(layer, in, {}, {}, false);
    CHECK(same_bits(prompt.out, steps.out));
    CHECK(same_bits(prompt.state, steps.state));
  });
}

TEST_CASE("recurrent layers: shapes beyond the kernels' are refused", "[cuda]") {
  if (skip()) return;
  GatedDelta s{2, 4, 128, 128, 4, false, false, false, 1e-5f, nullptr, nullptr, nullptr, nullptr};
  CHECK(recurrent_supported(s));
  s.k_dim = 257;
  CHECK_FALSE(recurrent_supported(s));
  CHECK(recur_step(s, {}, nullptr) == cudaErrorInvalidValue);
  s.k_dim = 256, s.n_taps = 9;
  CHECK_FALSE(recurrent_supported(s));
  CHECK(recur_prompt(s, {}, nullptr) == cudaErrorInvalidValue);
  CHECK_FALSE(recurrent_supported(ShortConv{64, 9, nullptr}));
}
