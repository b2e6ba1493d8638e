// Layers that keep a recurrent state: the device's kernels against the scalar ones of the CPU.
#include <cstring>
#include <type_traits>

#include "tests/kernels/cuda/recurrent_layers.h"

using namespace riffle::cuda;
using namespace riffle::test;
using riffle::GatedDelta;
using riffle::ShortConv;

namespace {

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
        for (const std::vector<int64_t>& pieces :
             {std::vector<int64_t>{1, 2, 3, 100, 513}, {5, 1, 16, 40}, {64, 128, 640}}) {
          const Result divided = run_there(layer, in, from, pieces, pieces[0] == 1 && !zeros);
          // Chunks begin where calls do, and the rest of all pieces must be a chunk or more.
          if (!in_chunks(layer, n) || (pieces[0] == 64 && n == 1500)) CHECK(divided == found);
          check_close(divided.out, want.out, "out of pieces");
          check_state(layer, divided.state, want.state);
        }
      }
    }
  });
}

TEST_CASE("recurrent layers: states inside a prompt", "[cuda]") {
  if (skip()) return;
  for_layers([](const auto& layer, Rng& g) {
    INFO(layer.name());
    for (const int64_t n : {40, 1500}) {
      const Floats in = random_floats(g, n * layer.in_width, 2);
      const Floats from = run_here(layer, random_floats(g, 9 * layer.in_width, 2), {}).state;
      std::vector<int64_t> rows{1, 2, 33};
      if (n > 40)
        for (const int64_t row : {63, 64, 65, 127, 703, 1024, 1025, 1499}) rows.push_back(row);
      std::vector<Floats> kept, want(n, Floats(layer.state));
      const Result found = run_there(layer, in, from, {}, true, rows, &kept);
      CHECK(run_there(layer, in, from, {}, false) == found);
      std::vector<float*> to(n);
      for (const int64_t row : rows) to[row - 1] = want[row - 1].data();
      to[n - 1] = want[n - 1].data();
      Floats copy = in, out(n * layer.out_width);
      layer.run(copy.data(), n, from.data(), to.data(), out.data());
      REQUIRE(kept.size() == rows.size());
      for (size_t i = 0; i < rows.size(); i++) {
        INFO("rows " << n << ", kept after " << rows[i]);
        check_state(layer, kept[i], want[rows[i] - 1]);
      }
    }
    RecurPrompt p;
    DeviceArray<float> in(layer.in_width * 2), out(layer.out_width * 2), to(layer.state);
    DeviceArray<uint8_t> scratch(recurrent_scratch(layer.there, 2));
    const RecurKeep keeps[] = {{2, to.get()}};
    p.in = in.get(), p.out = out.get(), p.to = to.get(), p.n = 2, p.scratch = scratch.get();
    p.keeps = keeps, p.n_keeps = 1;
    CHECK(recur_prompt(layer.there, p, nullptr) == cudaErrorInvalidValue);
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
