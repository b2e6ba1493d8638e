// TokenSelect: votes and lists against brute force in float64, attention at list positions against its definition, and the
// engine around them (algorithms.md 8, properties 1 and 9).
#include "select/tokenselect.h"

#include <catch2/catch.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "../engine/steps.h"
#include "backend/backend.h"
#include "util/error.h"

using namespace riffle;

namespace {

riffle_selection settings(int select, int init, int local) {
  riffle_selection s;
  riffle_selection_defaults(&s);
  s.selector = RIFFLE_SELECTOR_TOKENSELECT;
  s.select_tokens = select;
  s.init_tokens = init;
  s.local_tokens = local;
  return s;
}

// Keys of some KV heads in blocks, and one query for each head.
struct Scene {
  static constexpr int kB = 16, kD = 40;  // not a whole number of vectors
  int heads, g;
  int64_t n;
  KvType type;
  std::vector<float> keys, q;  // [heads][n][d], [heads][g][d], q times 1/sqrt(d)
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<const std::byte*>> blocks;
  std::vector<Row> rows;
  TokenSelectState state;

  Scene(int kv_heads, int group, int64_t tokens, KvType kv, unsigned seed)
      : heads(kv_heads), g(group), n(tokens), type(kv), keys(kv_heads * tokens * kD), q(kv_heads * group * kD) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& v : keys) v = cpu_half(normal(random));
    for (float& v : q) v = normal(random) / std::sqrt(float(kD));
    state.layers.resize(1);
    build();
  }
  static float cpu_half(float v) { return std::ldexp(std::nearbyint(std::ldexp(v, 6)), -6); }  // exact in f16

  void build() {
    const cpu::Kernels* k = cpu::kernels(cpu::best_isa());
    const int64_t row = (type == KvType::F16 ? 2 : 4) * kD, n_blocks = (n + kB - 1) / kB;
    memory.assign(heads, {});
    blocks.assign(heads, {});
    rows.assign(heads, {});
    for (int h = 0; h < heads; ++h) {
      memory[h].resize(n_blocks * kB * 2 * row + 64);
      std::byte* base = memory[h].data() + (64 - reinterpret_cast<uintptr_t>(memory[h].data()) % 64) % 64;
      for (int64_t b = 0; b < n_blocks; ++b) blocks[h].push_back(base + b * kB * 2 * row);
      for (int64_t t = 0; t < n; ++t)
        k->attention.kv_store(&keys[(h * n + t) * kD], kD, type, base + t / kB * kB * 2 * row + t % kB * row);
      Row& r = rows[h];
      r.q = &q[h * g * kD];
      r.g = g;
      r.d = kD;
      r.block_size = kB;
      r.n_tokens = n;
      r.n_blocks = static_cast<int>(n_blocks);
      r.n_full = r.n_blocks - 1;
      r.kernels = k;
      r.head = h;
      r.blocks = blocks[h].data();
      r.tail = blocks[h].back();
      r.type = type;
      r.state = &state;
    }
  }
  void see(int64_t tokens) {  // as if the sequence were that long
    for (Row& r : rows) {
      r.n_tokens = tokens;
      r.n_blocks = static_cast<int>((tokens + kB - 1) / kB);
      r.n_full = r.n_blocks - 1;
      r.tail = blocks[r.head][r.n_full];
    }
  }
  double logit(int head, int64_t token, double scale = 1) const {
    double dot = 0;
    for (int j = 0; j < kD; ++j) dot += double(q[head * kD + j]) * keys[(head / g * n + token) * kD + j];
    return dot * std::sqrt(double(kD)) * scale;
  }
  std::vector<double> softmax(int head, int64_t first, int64_t count, double scale = 1) const {
    std::vector<double> w(count);
    double top = -1e300, sum = 0;
    for (int64_t i = 0; i < count; ++i) top = std::max(top, w[i] = logit(head, first + i, scale));
    for (double& x : w) sum += x = std::exp(x - top);
    for (double& x : w) x /= sum;
    return w;
  }
};

// What a selector reads of each row now.
struct Lists {
  std::vector<std::vector<int32_t>> tokens;
  bool cached;
  int64_t index_bytes;
};
Lists lists_of(const Selector& selector, Scene& scene, ThreadPool& threads) {
  selector.begin_layer(scene.rows.data(), scene.heads, threads);
  Lists out;
  for (const Row& row : scene.rows) {
    RowPlan plan;
    selector.begin(row, plan);
    out.tokens.emplace_back();
    for (int i = 0; i < plan.size(); ++i)
      for (int t = 0; t < row.block_size; ++t) {
        const int64_t token = int64_t(plan.at(i)) * row.block_size + t;
        if (plan.mask(i) >> t & 1 && token < row.n_tokens) out.tokens.back().push_back(static_cast<int32_t>(token));
      }
    CHECK(plan.tokens_read(row, plan.size()) == static_cast<int64_t>(out.tokens.back().size()));
    out.cached = plan.cached;
    out.index_bytes = plan.index_bytes;
  }
  return out;
}

}  // namespace

TEST_CASE("the soft vote is the sum of the heads' softmaxes", "[tokenselect]") {
  ThreadPool one(1), three(3);
  for (const KvType type : {KvType::F16, KvType::F32})
    for (const int64_t n : {int64_t(40), int64_t(1000), int64_t(5003)}) {
      Scene scene(2, 3, n, type, 7);
      const int64_t first = n == 40 ? 0 : 19, count = n - first - (n == 40 ? 0 : 30);
      const float scale = n == 1000 ? 0.25f : 1.0f;
      Ballot ballot, other;
      ballot.vote(scene.rows, first, count, RIFFLE_VOTE_SOFT, scale, 64, one);
      std::vector<double> want(count);
      for (int h = 0; h < 6; ++h) {
        const auto w = scene.softmax(h, first, count, scale);
        for (int64_t i = 0; i < count; ++i) want[i] += w[i];
      }
      double worst = 0, sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        worst = std::max(worst, std::abs(ballot.votes()[i] - want[i]));
        sum += ballot.votes()[i];
      }
      CHECK(worst <= 2e-5);
      CHECK(std::abs(sum - 6) <= 1e-4);

      other.vote(scene.rows, first, count, RIFFLE_VOTE_SOFT, scale, 64, three);
      CHECK(std::equal(ballot.votes().begin(), ballot.votes().end(), other.votes().begin(), other.votes().end()));
    }
}

TEST_CASE("the soft vote follows permutations of heads and tokens, and no constant", "[tokenselect]") {
  ThreadPool threads(2);
  Scene scene(2, 2, 3000, KvType::F32, 11);
  const auto votes = [&](Scene& s) {
    Ballot b;
    b.vote(s.rows, 0, s.n, RIFFLE_VOTE_SOFT, 1, 64, threads);
    return std::vector<float>(b.votes().begin(), b.votes().end());
  };
  const auto far_apart = [](const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double(a[i]) - b[i]));
    return worst;
  };
  const auto plain = votes(scene);

  Scene swapped = scene;
  for (int h : {0, 2})  // within each group
    for (int j = 0; j < Scene::kD; ++j) std::swap(swapped.q[h * Scene::kD + j], swapped.q[(h + 1) * Scene::kD + j]);
  const int64_t half = scene.n * Scene::kD;
  std::swap_ranges(swapped.keys.begin(), swapped.keys.begin() + half, swapped.keys.begin() + half);
  std::swap_ranges(swapped.q.begin(), swapped.q.begin() + 2 * Scene::kD, swapped.q.begin() + 2 * Scene::kD);  // and groups
  swapped.build();
  CHECK(far_apart(votes(swapped), plain) <= 1e-5);

  Scene moved = scene;
  std::vector<int64_t> order(scene.n);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  for (int h = 0; h < 2; ++h)
    for (int64_t t = 0; t < scene.n; ++t)
      std::copy_n(&scene.keys[(h * scene.n + order[t]) * Scene::kD], Scene::kD,
                  &moved.keys[(h * scene.n + t) * Scene::kD]);
  moved.build();
  std::vector<float> back(scene.n);
  const auto of_moved = votes(moved);
  for (int64_t t = 0; t < scene.n; ++t) back[order[t]] = of_moved[t];
  CHECK(far_apart(back, plain) <= 1e-5);

  // A dimension in which all keys are 1 adds a constant to a head's logits.
  Scene shifted = scene;
  for (int64_t t = 0; t < 2 * scene.n; ++t) shifted.keys[t * Scene::kD] = 1;
  for (int h = 0; h < 4; ++h) shifted.q[h * Scene::kD] = 0;
  shifted.build();
  const auto base = votes(shifted);
  shifted.q[2 * Scene::kD] = 5;
  shifted.build();
  CHECK(far_apart(votes(shifted), base) <= 1e-4);  // logits of 30 instead of 5: rounded more coarsely
}

TEST_CASE("logit and hard votes are as defined", "[tokenselect]") {
  ThreadPool threads(2);
  Scene scene(2, 2, 2500, KvType::F16, 5);
  Ballot ballot;
  ballot.vote(scene.rows, 100, 2000, RIFFLE_VOTE_LOGITS, 1, 50, threads);
  double worst = 0;
  for (int i = 0; i < 2000; ++i) {
    double sum = 0;
    for (int h = 0; h < 4; ++h) sum += scene.logit(h, 100 + i);
    worst = std::max(worst, std::abs(sum - ballot.votes()[i]));
  }
  CHECK(worst <= 1e-3);

  ballot.vote(scene.rows, 100, 2000, RIFFLE_VOTE_HARD, 1, 50, threads);
  std::vector<int> want(2000);
  for (int h = 0; h < 4; ++h) {
    std::vector<int> order(2000);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return scene.logit(h, 100 + a) > scene.logit(h, 100 + b); });
    for (int i = 0; i < 50; ++i) ++want[order[i]];
  }
  int differ = 0;
  for (int i = 0; i < 2000; ++i) differ += ballot.votes()[i] != static_cast<float>(want[i]);
  CHECK(differ == 0);

  // Ties go to the earlier token; votes of 0 and 1 tie all the time.
  for (const int k : {1, 7, 50, 120, 500, 1999, 2000, 3000}) {
    std::vector<int32_t> best, sorted(2000);
    ballot.best(k, best);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return want[a] > want[b]; });
    sorted.resize(std::min(k, 2000));
    std::sort(sorted.begin(), sorted.end());
    for (int32_t& t : sorted) t += 100;
    CHECK(best == sorted);
  }
}

TEST_CASE("a list is the first tokens, the selected and the last, the same for all heads", "[tokenselect]") {
  ThreadPool threads(2);
  for (const riffle_vote vote : {RIFFLE_VOTE_SOFT, RIFFLE_VOTE_LOGITS, RIFFLE_VOTE_HARD}) {
    Scene scene(2, 2, 1511, KvType::F16, 23);
    riffle_selection s = settings(100, 20, 37);
    s.vote = vote;
    s.cache_threshold = 2;
    const auto selector = make_selector(s);
    const Lists lists = lists_of(*selector, scene, threads);
    CHECK(lists.tokens[0] == lists.tokens[1]);
    const std::vector<int32_t>& list = lists.tokens[0];
    CHECK(list.size() == 157);
    CHECK(std::is_sorted(list.begin(), list.end()));
    CHECK(std::set<int32_t>(list.begin(), list.end()).size() == list.size());
    for (int i = 0; i < 20; ++i) CHECK(list[i] == i);
    for (int i = 0; i < 37; ++i) CHECK(list[120 + i] == 1511 - 37 + i);
    CHECK(!lists.cached);
    CHECK(lists.index_bytes == (1511 - 57) * Scene::kD * 2);
  }
  // Everything, where it fits (property 1), and from one token more a selection.
  Scene scene(1, 2, 200, KvType::F16, 1);
  riffle_selection s = settings(100, 20, 80);
  CHECK(lists_of(*make_selector(s), scene, threads).tokens[0].size() == 200);
  s.select_tokens = 99;
  CHECK(lists_of(*make_selector(s), scene, threads).tokens[0].size() == 199);
}

TEST_CASE("the selection cache", "[tokenselect]") {
  ThreadPool threads(1);
  Scene scene(2, 2, 1200, KvType::F16, 31);
  const auto steps = [&](float threshold, int n, float turn) {
    scene.state.truncate(0);
    riffle_selection s = settings(64, 16, 32);
    s.cache_threshold = threshold;
    const auto selector = make_selector(s);
    std::vector<Lists> out;
    const std::vector<float> q = scene.q;
    for (int i = 0; i < n; ++i) {
      scene.see(1000 + i);
      for (size_t j = 0; j < q.size(); j += 2) {  // all queries turn by the same angle at every step
        scene.q[j] = q[j] * std::cos(turn * i) - q[j + 1] * std::sin(turn * i);
        scene.q[j + 1] = q[j + 1] * std::cos(turn * i) + q[j] * std::sin(turn * i);
      }
      out.push_back(lists_of(*selector, scene, threads));
    }
    scene.q = q;
    return out;
  };
  const auto misses = [](const std::vector<Lists>& l) {
    return std::count_if(l.begin(), l.end(), [](auto& x) { return !x.cached; });
  };

  CHECK(misses(steps(1.5f, 40, 0)) == 40);   // the very same query each time
  CHECK(misses(steps(-1, 40, 2.0f)) == 1);   // the opposite query as well
  CHECK(misses(steps(-1, 2 * kMaxReuse + 2, 0)) == 2);
  // cos(3 * 0.1) = 0.955, cos(4 * 0.1) = 0.921: measured from the last selection, not from the last query.
  const auto some = steps(0.94f, 21, 0.1f);
  for (int i = 0; i < 21; ++i) CHECK(some[i].cached == (i % 4 != 0));
  for (int i = 0; i < 21; ++i) {
    const std::vector<int32_t>& list = some[i].tokens[0];
    const int since = i % 4;  // the window's left edge stays: no token falls between
    CHECK(list.size() == size_t(16 + 64 + 32 + since));
    for (int j = 0; j < 32 + since; ++j) CHECK(list[80 + j] == 1000 + i - 32 - since + j);
    CHECK(std::set<int32_t>(list.begin(), list.end()).size() == list.size());
    CHECK((some[i].index_bytes == 0) == some[i].cached);
    if (since) CHECK(std::equal(list.begin(), list.begin() + 80, some[i - 1].tokens[0].begin()));
  }
  // What is cut off cannot be used again.
  const auto selector = make_selector(settings(64, 16, 32));
  scene.see(1000);
  CHECK(!lists_of(*selector, scene, threads).cached);
  scene.see(1001);
  CHECK(lists_of(*selector, scene, threads).cached);
  scene.state.truncate(1000);
  CHECK(!lists_of(*selector, scene, threads).cached);
  scene.see(1002);  // nor by other settings
  const Lists other = lists_of(*make_selector(settings(64, 200, 32)), scene, threads);
  CHECK(!other.cached);
  CHECK(other.tokens[0].size() == 296);
}

// ---- list positions ----

namespace {

// One layer of attention on a CPU backend, driven as the engine does.
struct ListScene {
  static constexpr int kHeads = 2, kG = 2, kD = 32, kB = 16, kWidth = kHeads * kG * kD, kKvWidth = kHeads * kD;
  Model model;
  ThreadPool threads;
  riffle_selection selection;
  std::unique_ptr<Selector> selector, dense = make_dense();
  std::unique_ptr<Backend> backend;
  SequenceKv sequence;
  int64_t n;                   // tokens of the prompt; steps follow
  std::vector<float> q, k, v;  // before RoPE, as the model's products give them

  ListScene(const riffle_selection& s, int64_t tokens, int64_t steps, bool interleaved, bool emu, cpu::Isa isa, int n_threads,
            KvType type = KvType::F32)
      : threads(n_threads), selection(s), selector(make_selector(s)), n(tokens), q((tokens + steps) * kWidth),
        k((tokens + steps) * kKvWidth), v(k.size()) {
    Config& c = model.config;
    c.n_layers = 1;
    c.n_heads = kHeads * kG;
    c.n_kv_heads = kHeads;
    c.head_dim = kD;
    c.dim = kWidth;
    c.rope_theta = 10000;
    c.rope_interleaved = interleaved;
    CpuBackendOptions o;
    o.isa = isa;
    o.layout = {kB, kD, type};
    o.emulate = emu;
    o.slots = 12;
    backend = make_cpu_backend(model, o, &threads);
    backend->rope_table(tokens + steps, rope_frequencies(model.config, tokens + steps));
    std::mt19937 random(99);
    std::normal_distribution<float> normal;
    for (auto* x : {&q, &k, &v})
      for (float& y : *x) y = normal(random);
    sequence = backend->residency().create(0, tokens + steps, {});
    sequence.unrotated = true;
    StateShape shape;
    shape.n_layers = 1;
    shape.n_kv_heads = kHeads;
    shape.g = kG;
    shape.layout = o.layout;
    shape.n_ctx = tokens + steps;
    sequence.selection = selector->make_state(shape);
    backend->residency().reserve(sequence, tokens + steps);
  }
  ~ListScene() { backend->residency().destroy(sequence); }

  const TokenSelection& state() const { return static_cast<TokenSelectState*>(sequence.selection.get())->layers[0]; }
  std::vector<int32_t> list(int64_t n_tokens) const {
    if (!state().everything) return state().list;
    std::vector<int32_t> all(n_tokens);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // x[d] before RoPE, at a position. Angles as the models are trained: rounded to f32.
  std::vector<double> rotated(const float* x, int64_t position) const {
    std::vector<double> out(kD);
    for (int j = 0; j < kD / 2; ++j) {
      const float frequency = 1.0f / std::pow(model.config.rope_theta, float(2 * j) / float(kD));
      const double angle = float(position) * frequency;
      const bool pairs = model.config.rope_interleaved;
      const double a = x[pairs ? 2 * j : j], b = x[pairs ? 2 * j + 1 : j + kD / 2];
      out[j] = a * std::cos(angle) - b * std::sin(angle);
      out[j + kD / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  }

  // The definition: out[h] of the query of token i, which is the last of list[0, end), over those tokens.
  double error(const std::vector<int32_t>& list, int64_t end, int64_t token, const float* out) const {
    double worst = 0;
    for (int h = 0; h < kHeads * kG; ++h) {
      const auto query = rotated(&q[token * kWidth + h * kD], end - 1);
      std::vector<double> w(end), o(kD);
      double top = -1e300, sum = 0;
      for (int64_t i = 0; i < end; ++i) {
        const auto key = rotated(&k[list[i] * kKvWidth + h / kG * kD], i);
        for (int j = 0; j < kD; ++j) w[i] += query[j] * key[j] / std::sqrt(double(kD));
        top = std::max(top, w[i]);
      }
      for (double& x : w) sum += x = std::exp(x - top);
      for (int64_t i = 0; i < end; ++i)
        for (int j = 0; j < kD; ++j) o[j] += w[i] / sum * v[list[i] * kKvWidth + h / kG * kD + j];
      for (int j = 0; j < kD; ++j) worst = std::max(worst, std::abs(o[j] - out[h * kD + j]));
    }
    return worst;
  }

  // Whether the selection is what queries [first, first + m) (their mean) vote for, keys where they are at position 0.
  void check_vote(int64_t first, int64_t m) const {
    const int64_t n_tokens = first + m, begin = selection.init_tokens, end = n_tokens - selection.local_tokens;
    std::vector<double> votes(end - begin);
    for (int h = 0; h < kHeads * kG; ++h) {
      std::vector<double> mean(kD), w(end - begin);
      for (int64_t i = 0; i < m; ++i) {
        const auto x = rotated(&q[(first + i) * kWidth + h * kD], selection.local_tokens + i);
        for (int j = 0; j < kD; ++j) mean[j] += x[j] / double(m);
      }
      double top = -1e300, sum = 0;
      for (int64_t t = begin; t < end; ++t) {
        const auto key = rotated(&k[t * kKvWidth + h / kG * kD], 0);
        for (int j = 0; j < kD; ++j) w[t - begin] += mean[j] * key[j];
        top = std::max(top, w[t - begin]);
      }
      for (double& x : w) sum += x = std::exp(x - top);
      for (size_t i = 0; i < w.size(); ++i) votes[i] += w[i] / sum;
    }
    const std::set<int32_t> chosen(state().selected.begin(), state().selected.end());
    REQUIRE(chosen.size() == size_t(selection.select_tokens));
    double in = 1e300, out = -1e300;
    for (int64_t t = begin; t < end; ++t) {
      const double vote = votes[t - begin];
      if (chosen.count(static_cast<int32_t>(t))) in = std::min(in, vote);
      else out = std::max(out, vote);
    }
    CHECK(in >= out * (1 - 1e-4));
  }

  // The prompt in chunks; the outputs [n][kWidth]. Checks every chunk if asked to.
  std::vector<float> prefill(int64_t chunk, double tolerance) {
    std::vector<float> out(n * kWidth);
    LayerKv kv = backend->residency().prefill_layer(sequence, 0, n);
    kv.unrotated = true;
    for (int64_t first = 0; first < n; first += chunk) {
      const int64_t m = std::min(chunk, n - first);
      std::vector<float> keys(k.begin() + first * kKvWidth, k.begin() + (first + m) * kKvWidth);
      backend->append(keys.data(), &v[first * kKvWidth], m, first, kv);
      PrefillAttention a;
      a.q = &q[first * kWidth];
      a.n = m;
      a.ldq = a.ldo = kWidth;
      a.pos0 = first;
      a.sequence = &sequence;
      a.last = first + m == n;
      a.kv = kv;
      a.out = &out[first * kWidth];
      a.selector = selector.get();
      a.vote_position = selection.local_tokens;
      backend->attend_prefill(a);
      if (!(tolerance > 0)) continue;
      const auto seen = list(first + m);
      if (!state().everything) check_vote(first, m);
      double worst = 0;
      for (int64_t i = 0; i < m; i += 5)
        worst = std::max(worst, error(seen, int64_t(seen.size()) - m + i + 1, first + i, &out[(first + i) * kWidth]));
      CHECK(worst <= tolerance);
    }
    backend->residency().finish_layer(sequence, 0, n);
    sequence.n_tokens = n;
    return out;
  }

  std::vector<float> step(double tolerance) {
    const int64_t t = sequence.n_tokens;
    SequenceKv* one = &sequence;
    backend->residency().activate(&one, 1, 1);
    Step step;
    step.sequences = &one;
    step.n = 1;
    step.selector = selector.get();
    step.dense = dense.get();
    step.vote_position = selection.local_tokens;
    backend->begin_step(step);
    std::vector<float> query(&q[t * kWidth], &q[t * kWidth] + kWidth), key(&k[t * kKvWidth], &k[t * kKvWidth] + kKvWidth);
    std::vector<float> out(kWidth);
    backend->append_step(0, query.data(), key.data(), &v[t * kKvWidth]);
    backend->attend_step(0, query.data(), out.data());
    if (tolerance > 0) {
      const auto seen = list(t + 1);
      if (!state().everything && !state().cached) check_vote(t, 1);
      CHECK(error(seen, static_cast<int64_t>(seen.size()), t, out.data()) <= tolerance);
    }
    ++sequence.n_tokens;
    backend->residency().commit(sequence);
    return out;
  }
};

}  // namespace

TEST_CASE("attention at list positions is rotation by list index, then softmax", "[tokenselect]") {
  for (const bool interleaved : {false, true})
    for (const cpu::Isa isa : {cpu::Isa::Scalar, cpu::best_isa()}) {
      INFO("interleaved " << interleaved << " isa " << cpu::kernels(isa)->name);
      ListScene scene(settings(60, 10, 40), 300, 40, interleaved, false, isa, 2);
      scene.prefill(32, 2e-5);
      for (int i = 0; i < 40; ++i) scene.step(2e-5);
    }
}

TEST_CASE("list positions: the same bits for any threads, behind a pool or in place", "[tokenselect]") {
  std::vector<std::vector<float>> first;
  for (const bool emu : {false, true})
    for (const int threads : {1, 3}) {
      ListScene scene(settings(60, 10, 40), 300, 40, true, emu, cpu::best_isa(), threads, KvType::F16);
      std::vector<std::vector<float>> all{scene.prefill(32, 0)};
      for (int i = 0; i < 40; ++i) all.push_back(scene.step(0));
      if (first.empty()) first = all;
      CHECK(test::same_bits(first, all));
    }
}

TEST_CASE("list positions: while the list holds everything, chunks do not matter", "[tokenselect]") {
  std::vector<std::vector<float>> first;
  for (const int chunk : {7, 32, 64, 200}) {
    ListScene scene(settings(100, 10, 200), 200, 8, false, false, cpu::best_isa(), 2);
    std::vector<std::vector<float>> all{scene.prefill(chunk, 0)};
    for (int i = 0; i < 8; ++i) all.push_back(scene.step(0));
    if (first.empty()) first = all;
    CHECK(test::same_bits(first, all));
  }
}

TEST_CASE("keys go from one convention to the other and back", "[tokenselect]") {
  for (const KvType type : {KvType::F32, KvType::F16})
    for (const bool emu : {false, true}) {
      ListScene scene(settings(60, 10, 40), 101, 40, true, emu, cpu::best_isa(), 2, type);
      scene.prefill(32, 0);
      for (int i = 0; i < 20; ++i) scene.step(0);
      const BlockLayout layout{ListScene::kB, ListScene::kD, type};
      const cpu::Kernels* kernels = cpu::kernels(cpu::Isa::Scalar);
      const auto key = [&](int h, int64_t t) {
        std::vector<float> x(ListScene::kD);
        kernels->attention.kv_load(scene.sequence.heads[h].blocks[t / ListScene::kB] + t % ListScene::kB * layout.row_bytes(),
                                   ListScene::kD, type, x.data());
        return x;
      };
      const double tolerance = type == KvType::F32 ? 1e-5 : 4e-3;  // |x| up to 4 of 11 bits, rounded twice
      for (const bool unrotated : {false, true, true, false}) {
        scene.backend->change_positions(scene.sequence, unrotated);
        CHECK(scene.sequence.unrotated == unrotated);
        CHECK(!scene.sequence.selection);
        double worst = 0;
        for (int h = 0; h < ListScene::kHeads; ++h)
          for (int64_t t = 0; t < scene.sequence.n_tokens; ++t) {
            const auto want = scene.rotated(&scene.k[t * ListScene::kKvWidth + h * ListScene::kD], unrotated ? 0 : t);
            const auto have = key(h, t);
            for (int j = 0; j < ListScene::kD; ++j) worst = std::max(worst, std::abs(want[j] - have[j]));
          }
        CHECK(worst <= tolerance);
        for (const HeadKv& head : scene.sequence.heads) {  // digests are of the keys as they are now
          REQUIRE(head.bound_factor.size() == 121 / ListScene::kB);
          for (size_t b = 0; b < head.bound_factor.size(); ++b) {
            std::vector<uint16_t> digest(2 * ListScene::kD);
            cpu::kernels(cpu::best_isa())->attention.digest_build(head.blocks[b], type, ListScene::kB, ListScene::kD,
                                                                 cpu::DigestKind::CuboidMean, false, digest.data());
            CHECK(std::equal(digest.begin(), digest.end(), head.digests.begin() + b * digest.size()));
          }
        }
      }
    }
}

// ---- through the engine, on the shipped model ----

namespace {

using test::Runtime;

double difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j) worst = std::max(worst, std::abs(double(a[i][j]) - b[i][j]));
  return worst;
}

std::vector<std::vector<float>> run_with(riffle_context_options o, const riffle_selection& s, int n_threads = 2) {
  o.selection = s;
  o.n_threads = n_threads;
  Runtime r(o);
  return test::run(r, r.session(), test::some_tokens(700, 4), test::some_tokens(12, 8));
}

}  // namespace

TEST_CASE("tokenselect with a list that holds everything is dense", "[tokenselect][model]") {
  riffle_context_options o = test::options();
  o.n_ctx = 1024;
  riffle_selection dense;
  riffle_selection_defaults(&dense);
  dense.selector = RIFFLE_SELECTOR_DENSE;
  const auto want = run_with(o, dense);
  riffle_selection s = settings(400, 100, 300);
  CHECK(test::same_bits(want, run_with(o, s)));
  s.positions = RIFFLE_POSITIONS_LIST;  // keys are rounded before they are rotated, not after
  CHECK(difference(want, run_with(o, s)) <= 0.03);
  o.kv_type = RIFFLE_KV_F32;
  CHECK(difference(run_with(o, dense), run_with(o, s)) <= 1e-3);
}

TEST_CASE("tokenselect: threads and a pool change no bit", "[tokenselect][model]") {
  for (const riffle_positions positions : {RIFFLE_POSITIONS_TRUE, RIFFLE_POSITIONS_LIST}) {
    riffle_selection s = settings(100, 20, 64);
    s.positions = positions;
    riffle_context_options o = test::options();
    o.n_ctx = 1024;
    const auto want = run_with(o, s, 1);
    CHECK(test::same_bits(want, run_with(o, s, 3)));
    o.device = RIFFLE_DEVICE_EMU;
    o.slots = 40;
    CHECK(test::same_bits(want, run_with(o, s)));
    o.device = RIFFLE_DEVICE_CPU;
    o.slots = 0;
    o.prefill_chunk = positions == RIFFLE_POSITIONS_TRUE ? 100 : 500;  // LIST: chunks are the window's 64 anyway
    CHECK(test::same_bits(want, run_with(o, s)));
  }
}

TEST_CASE("list positions: sessions that step together, dense layers and coverage", "[tokenselect][model]") {
  riffle_context_options o = test::options();
  o.n_ctx = 1024;
  o.selection = settings(100, 20, 64);
  o.selection.positions = RIFFLE_POSITIONS_LIST;
  o.selection.dense_layers = 1;
  Runtime r(o);
  std::vector<riffle_session*> together{r.session(), r.session()}, alone{r.session(), r.session()};
  for (int i = 0; i < 2; ++i) {
    const auto prompt = test::some_tokens(600 + 57 * i, 4 + i);
    for (riffle_session* s : {together[i], alone[i]})
      r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  }
  for (const auto t : test::some_tokens(10, 8)) {
    const int32_t tokens[2] = {t, t + 1};
    r.check(riffle_step(r.context, together.data(), tokens, 2));
    for (int i = 0; i < 2; ++i) {
      r.check(riffle_step(r.context, &alone[i], &tokens[i], 1));
      CHECK(r.logits(together[i]) == r.logits(alone[i]));
    }
  }

  struct Seen {
    double least[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    bool wrong = false;
  } seen;
  const auto on_trace = [](void* user, const riffle_trace* t) {
    Seen& s = *static_cast<Seen*>(user);
    for (int i = 0; i < t->n_group; ++i) {
      s.wrong |= !(t->coverage[i] >= 0 && t->coverage[i] <= 1);
      s.least[t->layer] = std::min(s.least[t->layer], double(t->coverage[i]));
    }
    s.wrong |= t->layer > 0 && t->n_tokens_read != 184;
  };
  r.check(riffle_set_trace(r.context, on_trace, &seen, true));
  const int32_t t = 500;
  o.selection.cache_threshold = 2;
  r.check(riffle_set_selection(r.context, &o.selection));
  r.check(riffle_step(r.context, &alone[0], &t, 1));
  r.check(riffle_set_trace(r.context, nullptr, nullptr, false));
  CHECK(!seen.wrong);
  CHECK(seen.least[0] >= 0.999);  // everything is read there
  for (int layer = 1; layer < 8; ++layer) CHECK(seen.least[layer] < 0.999);

  riffle_selection dense = o.selection;
  dense.selector = RIFFLE_SELECTOR_DENSE;
  o.selection.dense_layers = 8;
  CHECK(difference(run_with(o, dense), run_with(o, o.selection)) <= 0.03);
}

TEST_CASE("a scored prompt at list positions ends in the same logits", "[tokenselect][model]") {
  riffle_context_options o = test::options();
  o.n_ctx = 1024;
  o.selection = settings(100, 20, 64);
  o.selection.positions = RIFFLE_POSITIONS_LIST;
  Runtime r(o);
  riffle_session *a = r.session(), *b = r.session();
  const auto prompt = test::some_tokens(700, 4);
  std::vector<riffle_score> scores(prompt.size());
  r.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  r.check(riffle_prefill_scored(b, prompt.data(), prompt.size(), scores.data(), nullptr, nullptr));
  CHECK(r.logits(a) == r.logits(b));
}

TEST_CASE("a session follows the selection from one convention to the other", "[tokenselect][model]") {
  for (const riffle_device device : {RIFFLE_DEVICE_CPU, RIFFLE_DEVICE_EMU}) {
    riffle_context_options o = test::options();
    o.n_ctx = 1024;
    o.device = device;
    if (device == RIFFLE_DEVICE_EMU) o.slots = 40;
    riffle_selection dense = o.selection, list = settings(400, 100, 300), psa = o.selection;
    dense.selector = RIFFLE_SELECTOR_DENSE;
    psa.epsilon = 1;
    list.positions = RIFFLE_POSITIONS_LIST;
    o.selection = dense;
    Runtime r(o), plain(o);
    riffle_session *s = r.session(), *t = plain.session();
    const auto prompt = test::some_tokens(500, 6), tail = test::some_tokens(150, 9);
    std::vector<std::vector<float>> have, want;
    const auto both = [&](const riffle_selection& selection, const std::vector<int32_t>& tokens, bool steps) {
      r.check(riffle_set_selection(r.context, &selection));
      for (size_t i = 0; i < (steps ? tokens.size() : 1); ++i) {
        if (steps) {
          r.check(riffle_step(r.context, &s, &tokens[i], 1));
          plain.check(riffle_step(plain.context, &t, &tokens[i], 1));
        } else {
          r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
          plain.check(riffle_prefill(t, tokens.data(), tokens.size(), nullptr, nullptr));
        }
        have.push_back(r.logits(s));
        want.push_back(plain.logits(t));
      }
    };
    both(dense, prompt, false);
    both(list, test::some_tokens(20, 3), true);
    both(psa, test::some_tokens(20, 5), true);
    both(list, tail, false);
    both(list, test::some_tokens(5, 2), true);
    r.check(riffle_session_truncate(s, 600));
    plain.check(riffle_session_truncate(t, 600));
    both(dense, test::some_tokens(30, 1), false);
    both(dense, test::some_tokens(5, 1), true);
    CHECK(difference(have, want) <= 0.04);  // some hundreds of keys, rounded up to five times
  }
}

TEST_CASE("tokenselect counts selections and cached ones", "[tokenselect][model]") {
  riffle_context_options o = test::options();
  o.n_ctx = 1024;
  o.selection = settings(100, 20, 64);
  for (const float threshold : {2.0f, -1.0f}) {
    o.selection.cache_threshold = threshold;
    Runtime r(o);
    riffle_session* s = r.session();
    test::run(r, s, test::some_tokens(700, 4), test::some_tokens(12, 8));
    riffle_stats stats{};
    stats.struct_size = sizeof stats;
    REQUIRE(riffle_session_get_stats(s, &stats) == RIFFLE_OK);
    CHECK(stats.selections == 12 * 8);
    CHECK(stats.cached_selections == (threshold > 1 ? 0 : 11 * 8));
    CHECK(stats.kv_tokens_read == (threshold > 1 ? uint64_t(184) * 12 * 16 : (uint64_t(184) * 12 + 66) * 16));
    CHECK(stats.kv_bytes_read == stats.kv_tokens_read * 2 * 128);
  }
}

TEST_CASE("a context beyond the trained length says so, but for list positions", "[tokenselect][model]") {
  riffle_context_options o = test::options();
  o.n_ctx = 40000;  // trained with 32768
  o.selection = settings(32, 16, 64);
  CHECK(std::string(riffle_context_notice(Runtime(o).context)).find("32768") != std::string::npos);
  o.selection.positions = RIFFLE_POSITIONS_LIST;
  CHECK(std::string(riffle_context_notice(Runtime(o).context)).empty());
  o.n_ctx = 32768;
  o.selection.positions = RIFFLE_POSITIONS_TRUE;
  CHECK(std::string(riffle_context_notice(Runtime(o).context)).empty());
}
