// TokenSelect: votes and lists against brute force in float64 (src/select/README.md, properties 1
// and 9). list_positions_test.cpp tests attention at list positions, tokenselect_engine_test.cpp
// the selector in the engine.
#include "select/papers/tokenselect.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "tests/option_text.h"
#include "tests/select/dropped.h"
#include "tests/select/papers/tokenselect_settings.h"

using namespace riffle;
using test::tokenselect_settings;

namespace {

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
      : heads(kv_heads),
        g(group),
        n(tokens),
        type(kv),
        keys(kv_heads * tokens * kD),
        q(kv_heads * group * kD) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& v : keys) v = cpu_half(normal(random));
    for (float& v : q) v = normal(random) / std::sqrt(float(kD));
    state.layers.resize(1);
    build();
  }
  static float cpu_half(float v) {
    return std::ldexp(std::nearbyint(std::ldexp(v, 6)), -6);
  }  // values that are exact in f16

  void build() {
    const cpu::Kernels* k = cpu::kernels(cpu::best_isa());
    const int64_t row = (type == KvType::F16 ? 2 : 4) * kD, n_blocks = (n + kB - 1) / kB;
    memory.assign(heads, {});
    blocks.assign(heads, {});
    rows.assign(heads, {});
    for (int h = 0; h < heads; ++h) {
      memory[h].resize(n_blocks * kB * 2 * row + 64);
      std::byte* base =
          memory[h].data() + (64 - reinterpret_cast<uintptr_t>(memory[h].data()) % 64) % 64;
      for (int64_t b = 0; b < n_blocks; ++b) blocks[h].push_back(base + b * kB * 2 * row);
      for (int64_t t = 0; t < n; ++t)
        k->attention.kv_store(&keys[(h * n + t) * kD], kD, type,
                              base + t / kB * kB * 2 * row + t % kB * row);
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
  void see(int64_t tokens) {  // makes the sequence appear that long
    for (Row& r : rows) {
      r.n_tokens = tokens;
      r.n_blocks = static_cast<int>((tokens + kB - 1) / kB);
      r.n_full = r.n_blocks - 1;
      r.tail = blocks[r.head][r.n_full];
    }
  }
  double logit(int head, int64_t token) const {
    double dot = 0;
    for (int j = 0; j < kD; ++j)
      dot += double(q[head * kD + j]) * keys[(head / g * n + token) * kD + j];
    return dot * std::sqrt(double(kD));
  }
  std::vector<double> softmax(int head, int64_t first, int64_t count) const {
    std::vector<double> w(count);
    double top = -1e300, sum = 0;
    for (int64_t i = 0; i < count; ++i) top = std::max(top, w[i] = logit(head, first + i));
    for (double& x : w) sum += x = std::exp(x - top);
    for (double& x : w) x /= sum;
    return w;
  }
};

// The tokens of each row that a selector reads in the current step.
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
        if (plan.mask(i) >> t & 1 && token < row.n_tokens)
          out.tokens.back().push_back(static_cast<int32_t>(token));
      }
    CHECK(plan.tokens_read(row, plan.size()) == static_cast<int64_t>(out.tokens.back().size()));
    out.cached = plan.cached;
    out.index_bytes = plan.index_bytes;
  }
  return out;
}

}  // namespace

TEST_CASE("the soft vote is the sum of the heads' softmaxes", "[tokenselect][arithmetic]") {
  ThreadPool one(1), three(3);
  for (const KvType type : {KvType::F16, KvType::F32})
    for (const int64_t n : {int64_t(40), int64_t(1000), int64_t(5003)}) {
      Scene scene(2, 3, n, type, 7);
      const int64_t first = n == 40 ? 0 : 19, count = n - first - (n == 40 ? 0 : 30);
      Ballot ballot, other;
      ballot.vote(scene.rows, first, count, VoteRule::SOFT, 64, one);
      std::vector<double> want(count);
      for (int h = 0; h < 6; ++h) {
        const auto w = scene.softmax(h, first, count);
        for (int64_t i = 0; i < count; ++i) want[i] += w[i];
      }
      double worst = 0, sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        worst = std::max(worst, std::abs(ballot.votes()[i] - want[i]));
        sum += ballot.votes()[i];
      }
      CHECK(worst <= 2e-5);
      CHECK(std::abs(sum - 6) <= 1e-4);

      other.vote(scene.rows, first, count, VoteRule::SOFT, 64, three);
      CHECK(std::equal(ballot.votes().begin(), ballot.votes().end(), other.votes().begin(),
                       other.votes().end()));
    }
}

TEST_CASE("the soft vote follows permutations of heads and tokens, and no constant",
          "[tokenselect][arithmetic]") {
  ThreadPool threads(2);
  Scene scene(2, 2, 3000, KvType::F32, 11);
  const auto votes = [&](Scene& s) {
    Ballot b;
    b.vote(s.rows, 0, s.n, VoteRule::SOFT, 64, threads);
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
    for (int j = 0; j < Scene::kD; ++j)
      std::swap(swapped.q[h * Scene::kD + j], swapped.q[(h + 1) * Scene::kD + j]);
  const int64_t half = scene.n * Scene::kD;
  std::swap_ranges(swapped.keys.begin(), swapped.keys.begin() + half, swapped.keys.begin() + half);
  std::swap_ranges(swapped.q.begin(), swapped.q.begin() + 2 * Scene::kD,
                   swapped.q.begin() + 2 * Scene::kD);  // and groups
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
  CHECK(far_apart(votes(shifted), base) <=
        1e-4);  // logits of 30 instead of 5 are rounded more coarsely
}

TEST_CASE("logit and hard votes are as defined", "[tokenselect][arithmetic]") {
  ThreadPool threads(2);
  Scene scene(2, 2, 2500, KvType::F16, 5);
  Ballot ballot;
  ballot.vote(scene.rows, 100, 2000, VoteRule::LOGITS, 50, threads);
  double worst = 0;
  for (int i = 0; i < 2000; ++i) {
    double sum = 0;
    for (int h = 0; h < 4; ++h) sum += scene.logit(h, 100 + i);
    worst = std::max(worst, std::abs(sum - ballot.votes()[i]));
  }
  CHECK(worst <= 1e-3);

  ballot.vote(scene.rows, 100, 2000, VoteRule::HARD, 50, threads);
  std::vector<int> want(2000);
  for (int h = 0; h < 4; ++h) {
    std::vector<int> order(2000);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return scene.logit(h, 100 + a) > scene.logit(h, 100 + b); });
    for (int i = 0; i < 50; ++i) ++want[order[i]];
  }
  int differ = 0;
  for (int i = 0; i < 2000; ++i) differ += ballot.votes()[i] != static_cast<float>(want[i]);
  CHECK(differ == 0);

  // Ties go to the earlier token; hard votes tie often.
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

TEST_CASE("a list is the first tokens, the selected and the last, the same for all heads",
          "[tokenselect][arithmetic]") {
  ThreadPool threads(2);
  for (const VoteRule vote : {VoteRule::SOFT, VoteRule::LOGITS, VoteRule::HARD}) {
    Scene scene(2, 2, 1511, KvType::F16, 23);
    Selection s = tokenselect_settings(100, 20, 37);
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
  // The list is everything if that fits (property 1); with one token more there is a selection.
  Scene scene(1, 2, 200, KvType::F16, 1);
  Selection s = tokenselect_settings(100, 20, 80);
  CHECK(lists_of(*make_selector(s), scene, threads).tokens[0].size() == 200);
  s.select_tokens = 99;
  CHECK(lists_of(*make_selector(s), scene, threads).tokens[0].size() == 199);
}

TEST_CASE("the selection cache", "[tokenselect][arithmetic]") {
  ThreadPool threads(1);
  Scene scene(2, 2, 1200, KvType::F16, 31);
  const auto steps = [&](float threshold, int n, float turn) {
    scene.state.truncate(0);
    Selection s = tokenselect_settings(64, 16, 32);
    s.cache_threshold = threshold;
    const auto selector = make_selector(s);
    std::vector<Lists> out;
    const std::vector<float> q = scene.q;
    for (int i = 0; i < n; ++i) {
      scene.see(1000 + i);
      for (size_t j = 0; j < q.size();
           j += 2) {  // all queries turn by the same angle at every step
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

  CHECK(misses(steps(1.5f, 40, 0)) == 40);  // even with exactly the same query each time
  CHECK(misses(steps(-1, 40, 2.0f)) == 1);  // the opposite query as well
  CHECK(misses(steps(-1, 2 * kMaxReuse + 2, 0)) == 2);
  // cos(3 * 0.1) = 0.955, cos(4 * 0.1) = 0.921: the cosine is with the query of the last selection,
  // not with the last query.
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
  // A selection made after the cut cannot be used again; a selection from before the cut can.
  const auto selector = make_selector(tokenselect_settings(64, 16, 32));
  scene.see(1000);
  CHECK(!lists_of(*selector, scene, threads).cached);
  scene.see(1001);
  CHECK(lists_of(*selector, scene, threads).cached);
  scene.state.truncate(1000);
  CHECK(lists_of(*selector, scene, threads).cached);
  scene.state.truncate(999);
  CHECK(!lists_of(*selector, scene, threads).cached);
  scene.see(1002);  // nor can a selection of other settings
  const Lists other = lists_of(*make_selector(tokenselect_settings(64, 200, 32)), scene, threads);
  CHECK(!other.cached);
  CHECK(other.tokens[0].size() == 296);
  // A query without a cosine (infinite, NaN or 0) selects anew with any threshold, and so does the
  // query after it.
  Selection always = tokenselect_settings(64, 16, 32);
  always.cache_threshold = -1;
  const auto any = make_selector(always);
  scene.state.truncate(0);
  const float was = scene.q[3];
  for (const float x :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.f}) {
    const std::vector<float> q = scene.q;
    scene.see(1001);
    lists_of(*any, scene, threads);
    scene.see(1002);
    CHECK(lists_of(*any, scene, threads).cached);
    if (x == 0) std::fill(scene.q.begin(), scene.q.end(), 0.f);
    else scene.q[3] = x;
    scene.see(1003);
    CHECK(!lists_of(*any, scene, threads).cached);
    scene.q = q;
    scene.see(1004);
    CHECK(!lists_of(*any, scene, threads).cached);
    scene.see(1005);
    CHECK(lists_of(*any, scene, threads).cached);
  }
  CHECK(scene.q[3] == was);
}

TEST_CASE("what tokenselect drops errs by the identity and within the bounds of dropped.h",
          "[tokenselect][arithmetic]") {
  ThreadPool threads(1);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const KvType type : {KvType::F16, KvType::F32})
    for (const VoteRule vote : {VoteRule::SOFT, VoteRule::LOGITS, VoteRule::HARD}) {
      Scene scene(2, 3, 900, type, 17);
      for (const Row& row : scene.rows)
        for (int64_t t = 0; t < scene.n; ++t) {
          std::vector<float> v(Scene::kD);
          for (float& x : v) x = normal(random);
          row.kernels->attention.kv_store(v.data(), Scene::kD, type,
                                          const_cast<std::byte*>(row.value(t)));
        }
      Selection s = tokenselect_settings(100, 8, 30);
      s.vote = vote;
      const auto selector = make_selector(s);
      selector->begin_layer(scene.rows.data(), scene.heads, threads);
      for (const Row& row : scene.rows) {
        RowPlan plan;
        selector->begin(row, plan);
        test::check_dropped(row, plan);
      }
    }
}

TEST_CASE(
    "tokenselect over a KV head of four query heads is that over four KV heads with the same keys",
    "[tokenselect][arithmetic]") {
  ThreadPool threads(2);
  for (const VoteRule vote : {VoteRule::SOFT, VoteRule::LOGITS, VoteRule::HARD}) {
    INFO("vote " << vote);
    Scene group(1, 4, 1300, KvType::F16, 23), each(4, 1, 1300, KvType::F16, 24);
    each.keys.clear();
    for (int h = 0; h < 4; ++h)
      each.keys.insert(each.keys.end(), group.keys.begin(), group.keys.end());
    each.q = group.q;
    each.build();
    Selection s = tokenselect_settings(90, 8, 30);
    s.vote = vote;
    const auto selector = make_selector(s);
    const std::vector<int32_t> want = lists_of(*selector, group, threads).tokens[0];
    CHECK(want.size() == 128);
    for (const std::vector<int32_t>& list : lists_of(*selector, each, threads).tokens)
      CHECK(list == want);
  }
}
