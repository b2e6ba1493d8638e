// Layers with a sliding window keep the blocks of their windows alone: random histories of prompts,
// steps, cuts, forks and ends against a plain model of what must be there, in place and behind
// small pools. Settings and rules once more by brute force.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "kv/cpu_kv.h"
#include "tests/kv/token_kv.h"
#include "tests/rounds.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

constexpr int kHeads = 2, kCtx = 700;
const std::vector<int32_t> kWindows3 = {0, 40, 100};  // windows of three layers

// By token, as the header of kv_shape.h says it: what the next token after n may read, when up to
// `back` tokens were taken back.
bool wanted(int window, int64_t block, int block_size, int64_t n, int64_t back) {
  const int64_t at = std::max<int64_t>(0, n - back);
  int64_t first = window == 0 ? 0 : std::max<int64_t>(0, at + 1 - window);
  while (first % 64 != 0) --first;  // prompts read whole tiles of keys
  for (int64_t t = block * block_size; t < (block + 1) * block_size; ++t)
    if (t >= first && t < n) return true;
  return false;
}

struct Live {
  SequenceKv kv;
  std::vector<uint32_t> tokens;
  std::vector<int64_t> marks;              // as Marks should hold them
  std::vector<std::vector<int>> names{3};  // names of each layer's blocks; -1: not kept
};

struct World : TokenKv {
  using TokenKv::TokenKv;

  ThreadPool threads{2};
  const cpu::Kernels* kernels = cpu::kernels(cpu::Isa::Scalar);
  HostKv store{{layout, 3, kHeads, kWindows3}, kernels, &threads};
  std::unique_ptr<CpuKv> residency;
  std::vector<std::unique_ptr<Live>> live;
  std::mt19937 random;
  int next_name = 0, dropped = 0;

  int size() const { return layout.block_size; }
  uint32_t below(uint64_t n) { return static_cast<uint32_t>(random() % n); }

  // ---- the model
  bool keeps(const Live& s, int layer, int64_t block, int64_t n,
             const std::vector<int64_t>& marks) const {
    const int window = kWindows3[layer];
    bool kept = wanted(window, block, size(), n, 64);
    for (const int64_t m : marks) kept |= wanted(window, block, size(), m, 64);
    (void)s;
    return kept;
  }
  int64_t reach(const Live& s, int64_t n) const {
    for (; n > 0; --n) {
      bool good = true;
      for (int layer = 0; layer < 3; ++layer)
        for (int64_t b = 0; b < layout.blocks(n); ++b)
          good &= s.names[layer][b] >= 0 || !wanted(kWindows3[layer], b, size(), n, 0);
      if (good) return n;
    }
    return 0;
  }
  static void add_mark(std::vector<int64_t>& marks, int64_t n) {
    std::erase_if(marks, [&](int64_t m) { return m <= n && m >= n - 64; });
    marks.push_back(n);
    std::sort(marks.begin(), marks.end());
    if (marks.size() > 2) marks.erase(marks.begin());
  }
  static void cut_marks(std::vector<int64_t>& marks, int64_t n) {
    int64_t lowest = INT64_MAX;
    for (const int64_t m : marks)
      if (m > n) lowest = std::min(lowest, m);
    std::erase_if(marks, [&](int64_t m) { return m > n; });
    if (n > 0 && lowest - 64 <= n && (marks.empty() || marks.back() != n)) marks.push_back(n);
  }
  int holders(int layer, int name) const {
    int n = 0;
    for (const auto& s : live)
      n += static_cast<int>(std::count(s->names[layer].begin(), s->names[layer].end(), name));
    return n;
  }
  // Blocks for tokens up to n; those that are written to are its own.
  void named_reserve(Live& s, int64_t n, const std::vector<int64_t>& marks) {
    const auto at = static_cast<int64_t>(s.tokens.size());
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<int>& names = s.names[layer];
      if (at % size() != 0 && names[at / size()] >= 0 && holders(layer, names[at / size()]) > 1)
        names[at / size()] = next_name++;
      for (auto b = static_cast<int64_t>(names.size()); b < layout.blocks(n); ++b)
        names.push_back(keeps(s, layer, b, n, marks) ? next_name++ : -1);
    }
  }
  void named_drop(Live& s) {
    for (int layer = 0; layer < 3; ++layer)
      for (size_t b = 0; b < s.names[layer].size(); ++b)
        if (s.names[layer][b] >= 0 && !keeps(s, layer, static_cast<int64_t>(b),
                                             static_cast<int64_t>(s.tokens.size()), s.marks)) {
          s.names[layer][b] = -1;
          ++dropped;
        }
  }

  // ---- deeds
  void step(const std::vector<Live*>& some) {
    std::vector<SequenceKv*> kv;
    for (Live* s : some) {
      residency->reserve(s->kv, s->kv.n_tokens + 1, s->kv.marks);
      kv.push_back(&s->kv);
    }
    residency->activate(kv.data(), kv.size(), 1);
    for (Live* s : some) {
      named_reserve(*s, s->kv.n_tokens + 1, s->marks);
      s->tokens.push_back(random());
      for (int layer = 0; layer < 3; ++layer)
        for (int h = 0; h < kHeads; ++h)
          write(residency->tail(s->kv, layer, h), s->kv.n_tokens, s->tokens.back(), layer, h);
    }
    for (Live* s : some) {
      ++s->kv.n_tokens;
      residency->commit(s->kv);
      named_drop(*s);
    }
  }
  // In chunks. fail_at: the layer in which it is given up; 3: never.
  bool prefill(Live& s, int64_t n, int64_t chunk, int fail_at, std::optional<int64_t> inside) {
    const int64_t n0 = s.kv.n_tokens;
    Marks marks = s.kv.marks;
    std::vector<int64_t> named = s.marks;
    for (const int64_t m : {inside.value_or(n0 + n), n0 + n}) {
      marks.add(m);
      add_mark(named, m);
    }
    residency->reserve(s.kv, n0 + n, marks);
    named_reserve(s, n0 + n, named);
    std::vector<uint32_t> tokens = s.tokens;
    for (int64_t i = 0; i < n; ++i) tokens.push_back(random());
    bool good = true;
    for (int layer = 0; layer < 3; ++layer) {
      const LayerKv kv = residency->prefill_layer(s.kv, layer, n0 + n, chunk);
      for (int64_t first = n0; first < n0 + n; first += chunk) {
        const int64_t last = std::min(first + chunk, n0 + n);
        for (int h = 0; h < kHeads; ++h) {
          std::byte* const* blocks = kv.blocks + h * kv.n_blocks;
          for (int64_t t = first; t < last; ++t) write(blocks[t / size()], t, tokens[t], layer, h);
          // The tokens that the chunk's attention reads.
          const int window = kWindows3[layer];
          const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, first + 1 - window) / 64 * 64;
          for (int64_t b = seen / size(); b < layout.blocks(last); ++b)
            good &= reads(blocks[b], tokens, std::max(seen, b * size()),
                          std::min(last, (b + 1) * size()), layer, h);
        }
      }
      if (layer == fail_at) {
        residency->truncate(s.kv, n0);
        for (auto& names : s.names) names.resize(layout.blocks(n0));
        return good;
      }
      residency->finish_layer(s.kv, layer, n0 + n);
    }
    residency->commit_prompt(s.kv, n0 + n, marks);
    s.tokens = tokens;
    s.marks = named;
    named_drop(s);
    return good;
  }
  void fork(const Live& from, int64_t n) {
    auto s = std::make_unique<Live>();
    s->kv = residency->fork(const_cast<SequenceKv&>(from.kv), n, kCtx);
    s->tokens.assign(from.tokens.begin(), from.tokens.begin() + n);
    s->marks = from.marks;
    cut_marks(s->marks, n);
    if (n > 0) add_mark(s->marks, n);
    for (int layer = 0; layer < 3; ++layer)
      for (int64_t b = 0; b < layout.blocks(n); ++b) {
        const int name = (b + 1) * size() > n ? next_name++ : from.names[layer][b];
        s->names[layer].push_back(keeps(*s, layer, b, n, s->marks) ? name : -1);
      }
    live.push_back(std::move(s));
  }
  void truncate(Live& s, int64_t n) {
    residency->truncate(s.kv, n);
    s.tokens.resize(n);
    cut_marks(s.marks, n);
    for (auto& names : s.names) names.resize(layout.blocks(n));
  }

  // ---- checks
  bool whole(const Live& s) {
    const auto n = static_cast<int64_t>(s.tokens.size());
    bool good = s.kv.n_tokens == n;
    good &= std::equal(s.marks.begin(), s.marks.end(), s.kv.marks.begin(), s.kv.marks.end());
    for (int layer = 0; layer < 3; ++layer)
      for (int h = 0; h < kHeads; ++h) {
        const HeadKv& head = store.head(s.kv, layer, h);
        good &= head.blocks.size() == static_cast<size_t>(layout.blocks(n));
        good &= head.bound_factor.size() == (layer == 0 ? static_cast<size_t>(n / size()) : 0);
        good &= layer == 0 || head.digests.empty();
        for (int64_t b = 0; good && b < layout.blocks(n); ++b) {
          good &= (head.blocks[b] != nullptr) == (s.names[layer][b] >= 0);
          if (!head.blocks[b]) continue;
          const bool tail =
              (b + 1) * size() > n && !residency->in_place() && residency->holds_tail(s.kv);
          good &= reads(
              tail ? residency->tail(const_cast<SequenceKv&>(s.kv), layer, h) : head.blocks[b],
              s.tokens, b * size(), std::min(n, (b + 1) * size()), layer, h);
        }
        for (int64_t b = 0; good && b < layout.blocks(n); ++b)
          good &= head.blocks[b] || !wanted(kWindows3[layer], b, size(), n, 0);
      }
    return good;
  }
  bool counted() const {
    std::set<const std::byte*> places;
    std::set<std::pair<int, int>> names;
    for (const auto& s : live) {
      for (const HeadKv& h : s->kv.heads)
        for (std::byte* block : h.blocks)
          if (block) places.insert(block);
      for (int layer = 0; layer < 3; ++layer)
        for (const int name : s->names[layer])
          if (name >= 0) names.insert({layer, name});
    }
    return store.host_bytes() == places.size() * layout.bytes() &&
           places.size() == names.size() * kHeads;
  }
  // The window of each layer, as a step reads it.
  bool read(const Live& s, int layer) {
    const auto n = static_cast<int64_t>(s.tokens.size());
    const int window = kWindows3[layer];
    bool good = true;
    for (int h = 0; h < kHeads; ++h)
      for (int64_t b = window == 0 ? 0 : std::max<int64_t>(0, n + 1 - window) / size();
           b < n / size(); ++b) {
        Held held;
        const auto block = static_cast<int32_t>(b);
        residency->acquire(const_cast<SequenceKv&>(s.kv), layer, h, &block, 1, &held);
        residency->load(&held, 1);
        good &= reads(held.data, s.tokens, b * size(), (b + 1) * size(), layer, h);
        residency->release(&held, 1);
      }
    return good;
  }
};

// Counts the cuts and forks that could not be where they were to be. shared: the pool is one that
// its readers manage. Returns how many blocks windows passed.
int play(int block_size, int64_t slots, bool per_layer, uint32_t seed, int n_ops, int& unreachable,
         bool shared = false) {
  INFO("blocks of " << block_size << ", " << slots << " slots, seed " << seed);
  World w(block_size);
  w.random.seed(seed);
  w.residency = slots == 0 ? make_in_place(&w.store)
                : shared   ? make_emulated(&w.store, &w.threads, slots)
                           : make_pooled(&w.store, &w.threads, slots, EvictPolicy::Lru, per_layer);
  bool good = true;
  for (int op = 0; op < n_ops && good; ++op) {
    INFO("operation " << op);
    const uint32_t what = w.below(12);
    if (w.live.empty() || (what == 0 && w.live.size() < 4)) {
      w.live.push_back(std::make_unique<Live>());
      w.live.back()->kv = w.residency->create(kCtx, {});
    }
    Live& one = *w.live[w.below(w.live.size())];
    const auto length = static_cast<int64_t>(one.tokens.size());
    if (what <= 3) {
      std::vector<Live*> some;
      for (const auto& s : w.live)  // a small pool holds the newest blocks of one
        if ((slots == 0 || some.empty()) && w.below(2) && s->tokens.size() + 40 < kCtx)
          some.push_back(s.get());
      const uint32_t steps = 1 + w.below(40);
      for (uint32_t i = 0; i < steps && !some.empty(); ++i) w.step(some);
    } else if (what <= 5 && length < kCtx) {
      const int64_t n = 1 + w.below(std::min<uint64_t>(w.below(2) ? 300 : 20, kCtx - length));
      std::optional<int64_t> inside;
      if (w.below(3) == 0) inside = length + 1 + w.below(static_cast<uint64_t>(n));
      good &= w.prefill(one, n, 1 + w.below(w.below(2) ? 20 : 200),
                        w.below(4) == 0 ? static_cast<int>(w.below(3)) : 3, inside);
    } else if (what <= 10) {
      const uint32_t where = w.below(4);
      const int64_t n = where == 0   ? length
                        : where == 1 ? w.below(length + 1)
                        : where == 2 || one.marks.empty()
                            ? length - w.below(std::min<uint64_t>(length + 1, 80))
                            : one.marks[w.below(one.marks.size())];
      const int64_t reached = w.reach(one, n);
      good &= w.residency->host().reach(one.kv, n) == reached;
      unreachable += reached < n;
      if (what <= 8 && w.live.size() < 4) w.fork(one, reached);
      else if (what > 8) w.truncate(one, reached);
    } else if (w.live.size() > 1) {
      const size_t i = w.below(w.live.size());
      w.residency->destroy(w.live[i]->kv);
      w.live.erase(w.live.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const auto& s : w.live) {
      good &= w.whole(*s);
      for (const int64_t m : s->marks) good &= m <= s->kv.n_tokens && w.reach(*s, m) == m;
      good &= w.reach(*s, s->kv.n_tokens) == s->kv.n_tokens;
      if (w.below(4) == 0) good &= w.read(*s, static_cast<int>(w.below(3)));
    }
    good &= w.counted();
    CHECK(good);
  }
  while (!w.live.empty()) {
    w.residency->destroy(w.live.back()->kv);
    w.live.pop_back();
  }
  CHECK(w.store.host_bytes() == 0);
  CHECK(w.residency->used_slots() == 0);
  return w.dropped;
}

}  // namespace

TEST_CASE("window: layers keep their windows, and what cuts and forks may want", "[kv][window]") {
  int dropped = 0, unreachable = 0;
  const int seeds = few_rounds() ? 2 : 4;
  for (int seed = 1; seed <= seeds; ++seed)
    for (const int block_size : {16, 32, 64}) {
      dropped += play(block_size, 0, false, seed, 300, unreachable);
      dropped += play(block_size, 7, false, seed, 300, unreachable);
      dropped += play(block_size, 24, true, seed, 300, unreachable);
      dropped += play(block_size, 400, false, seed, 300, unreachable);
      dropped += play(block_size, 7, false, seed, 300, unreachable, true);
      dropped += play(block_size, 400, false, seed, 300, unreachable, true);
    }
  CHECK(dropped > 250 * seeds);
  CHECK(unreachable > 75 * seeds);
}

TEST_CASE("window: blocks of a sequence are counted without one", "[kv][window]") {
  std::mt19937 random(1);
  for (const int block_size : {16, 32, 64}) {
    const KvShape shape{{block_size, kD, KvType::F16}, 3, kHeads, kWindows3};
    for (int i = 0; i < 300; ++i) {
      const int64_t n = random() % 2000, from = random() % 30;
      Marks marks;
      std::vector<int64_t> all;
      for (uint32_t m = random() % 3; m > 0 && n > 0; --m) {
        all.push_back(1 + static_cast<int64_t>(random() % n));
        marks.add(all.back());
      }
      all.assign(marks.begin(), marks.end());
      all.push_back(n);
      int64_t want = 0, least = 0;
      for (const int window : kWindows3)
        for (int64_t b = 0; b < shape.in_blocks(n); ++b) {
          bool kept = false, read = false;
          for (const int64_t m : all) kept |= wanted(window, b, block_size, m, 64);
          for (int64_t t = b * block_size; t < std::min(n, (b + 1) * block_size); ++t)
            read |= window == 0 || t >= n - window;
          want += kHeads * (kept && b >= from);
          least += kHeads * read;
        }
      CHECK(shape.bytes(n, marks, from) == want * shape.block_bytes(0));
      CHECK(shape.most_bytes(n) >= shape.bytes(n, marks));
      CHECK(shape.most_bytes(n) == shape.most_blocks(n) * shape.block_bytes(0));
      CHECK(shape.readable_blocks(n) >= least);
      CHECK(shape.readable_blocks(n) <= least + 2 * kHeads);
      const int64_t longest = shape.longest(shape.most_bytes(n));
      CHECK(longest >= n);
      CHECK(shape.most_blocks(longest) == shape.most_blocks(n));
    }
    // Beyond its windows a sequence grows by its first layer alone.
    CHECK(shape.most_blocks(20000) - shape.most_blocks(10000) ==
          kHeads * (shape.in_blocks(20000) - shape.in_blocks(10000)));
    CHECK(shape.longest(0) == 0);
  }
}
