// Sequences that share blocks: random histories of forks, cuts, appends, failures and ends, against
// a plain model of who holds what, in place and behind small pools.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "kv/cpu_kv.h"
#include "tests/kv/token_kv.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

constexpr int kB = 16, kLayers = 2, kHeads = 2, kCtx = 200;

// Small slabs, and none at all while it refuses.
class FewSlabs : public SlabSource {
 public:
  FewSlabs(const bool* refuse, int* out) : refuse_(refuse), out_(out) {}
  size_t slab_bytes() const override { return 32 << 10; }
  std::byte* take(size_t bytes) override {
    if (*refuse_) return nullptr;
    ++*out_;
    auto* slab = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    std::memset(slab, 0, bytes);
    return slab;
  }
  void give_back(std::byte* slab, size_t) override {
    --*out_;
    std::free(slab);
  }

 private:
  const bool* refuse_;
  int* out_;
};

// A sequence and what it should be: its tokens, and a name for each block (the same in every layer
// and head).
struct Live {
  SequenceKv kv;
  std::vector<uint32_t> tokens;
  std::vector<int> names;
};

struct World : TokenKv {
  World() : TokenKv(kB) {}

  ThreadPool threads{2};
  bool refuse = false;
  int slabs = 0;
  const cpu::Kernels* kernels = cpu::kernels(cpu::Isa::Scalar);
  HostKv store{
      {layout, kLayers, kHeads}, kernels, &threads, std::make_unique<FewSlabs>(&refuse, &slabs)};
  std::unique_ptr<CpuKv> residency;
  std::vector<std::unique_ptr<Live>> live;
  std::mt19937 random;
  int next_name = 0, refused = 0;

  uint32_t below(uint64_t n) { return static_cast<uint32_t>(random() % n); }

  bool reads(const std::byte* block, const Live& s, int64_t index, int layer, int head) const {
    const auto last = std::min((index + 1) * kB, static_cast<int64_t>(s.tokens.size()));
    return TokenKv::reads(block, s.tokens, index * kB, last, layer, head);
  }

  int holders(int name) const {
    int n = 0;
    for (const auto& s : live)
      n += static_cast<int>(std::count(s->names.begin(), s->names.end(), name));
    return n;
  }
  // Marks the blocks that an append of n tokens writes to as the session's own, in the test's model
  // of the store.
  void named_append(Live& s, int64_t n) {
    const size_t at = s.tokens.size();
    if (at % kB != 0 && holders(s.names[at / kB]) > 1) s.names[at / kB] = next_name++;
    while (s.names.size() < static_cast<size_t>(layout.blocks(at + n)))
      s.names.push_back(next_name++);
  }

  // Returns true if it worked, false if memory ran out.
  template <class Body>
  bool tried(Body&& body) {
    try {
      body();
      return true;
    } catch (const Error& e) {
      REQUIRE(e.status() == RIFFLE_OUT_OF_MEMORY);
      REQUIRE(refuse);
      ++refused;
      return false;
    }
  }

  void step(const std::vector<Live*>& some) {
    // Operations that can fail come first, as in Engine::step. After a refusal the earlier sessions
    // hold blocks that they do not use yet.
    for (Live* s : some)
      if (!tried([&] { residency->reserve(s->kv, s->kv.n_tokens + 1, s->kv.marks); })) {
        for (Live* other : some) residency->truncate(other->kv, other->kv.n_tokens);
        refuse = false;
        for (Live* each : some) residency->reserve(each->kv, each->kv.n_tokens + 1, each->kv.marks);
        break;
      }
    std::vector<SequenceKv*> kv;
    for (Live* s : some) kv.push_back(&s->kv);
    residency->activate(kv.data(), kv.size(), 1);
    for (Live* s : some) {
      const uint32_t token = random();
      named_append(*s, 1);
      for (int layer = 0; layer < kLayers; ++layer)
        for (int h = 0; h < kHeads; ++h)
          write(residency->tail(s->kv, layer, h), s->kv.n_tokens, token, layer, h);
      s->tokens.push_back(token);
    }
    for (Live* s : some) {
      ++s->kv.n_tokens;
      residency->commit(s->kv);
    }
  }
  // fail_at: the layer in which it is given up; kLayers: never.
  void prefill(Live& s, int64_t n, int fail_at) {
    const int64_t n0 = s.kv.n_tokens;
    if (!tried([&] {
          residency->reserve(s.kv, n0 + n, s.kv.marks);
        })) {  // some heads may have a block of their own by now
      REQUIRE(whole(s));
      refuse = false;
      residency->reserve(s.kv, n0 + n, s.kv.marks);
    }
    std::vector<uint32_t> fresh(n);
    for (uint32_t& t : fresh) t = random();
    named_append(s, n);
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerKv kv = residency->prefill_layer(s.kv, layer, n0 + n, n);
      for (int64_t i = 0; i < n; ++i)
        for (int h = 0; h < kHeads; ++h)
          write(kv.blocks[h * kv.n_blocks + (n0 + i) / kB], n0 + i, fresh[i], layer, h);
      if (layer == fail_at) {
        residency->truncate(s.kv, n0);
        s.names.resize(layout.blocks(n0));
        return;
      }
      residency->finish_layer(s.kv, layer, n0 + n);
    }
    s.kv.n_tokens = n0 + n;
    s.tokens.insert(s.tokens.end(), fresh.begin(), fresh.end());
  }
  void fork(Live& from, int64_t n) {
    auto s = std::make_unique<Live>();
    if (!tried([&] { s->kv = residency->fork(from.kv, n, kCtx); })) return;
    s->tokens.assign(from.tokens.begin(), from.tokens.begin() + n);
    s->names.assign(from.names.begin(), from.names.begin() + n / kB);
    if (n % kB != 0) s->names.push_back(next_name++);
    live.push_back(std::move(s));
  }
  void truncate(Live& s, int64_t n) {
    residency->truncate(s.kv, n);
    s.tokens.resize(n);
    s.names.resize(layout.blocks(n));
  }
  // Rewrites every key in place, as change_positions does.
  void rewrite(Live& s) {
    if (!tried([&] { residency->retire(s.kv); })) {  // as many as were copied are its own
      refuse = false;
      residency->retire(s.kv);
    }
    for (size_t b = 0; b < s.names.size(); ++b)
      if (holders(s.names[b]) > 1) s.names[b] = next_name++;
    for (uint32_t& t : s.tokens) t ^= 0x5a5a5a5a;
    for (int layer = 0; layer < kLayers; ++layer)
      for (int h = 0; h < kHeads; ++h)
        for (size_t i = 0; i < s.tokens.size(); ++i)
          write(store.head(s.kv, layer, h).blocks[i / kB], static_cast<int64_t>(i), s.tokens[i],
                layer, h);
    store.renew_digests(s.kv);
  }
  void end(size_t i) {
    residency->destroy(live[i]->kv);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // Reads full blocks of these sequences at once, as a step of all of them would, or gives them up
  // in the middle.
  bool read(const std::vector<Live*>& some, int layer, bool give_up) {
    struct Group {
      Live* s;
      int head;
      std::vector<int32_t> blocks;
      std::vector<Held> held;
    };
    std::vector<Group> groups;
    int64_t room = residency->room(layer);
    for (Live* s : some)
      for (int h = 0; h < kHeads; ++h) {
        Group g{s, h, {}, {}};
        for (int64_t b = 0; b < s->kv.n_tokens / kB; ++b)
          if (below(3) != 0 && room > 0) g.blocks.push_back(static_cast<int32_t>(b)), --room;
        g.held.resize(g.blocks.size());
        groups.push_back(std::move(g));
      }
    bool good = true;
    for (Group& g : groups)
      residency->acquire(g.s->kv, layer, g.head, g.blocks.data(), static_cast<int>(g.blocks.size()),
                         g.held.data());
    if (give_up) {
      for (const Group& g : groups)
        residency->abandon(g.held.data(), static_cast<int>(g.held.size()));
      return true;
    }
    for (const Group& g : groups) {
      for (size_t i = 0; i < g.held.size(); ++i) good &= !(g.held[i].miss && g.held[i].wait);
      residency->load(g.held.data(), static_cast<int>(g.held.size()));
    }
    for (const Group& g : groups)
      for (size_t i = 0; i < g.held.size(); ++i)
        good &= reads(g.held[i].data, *g.s, g.blocks[i], layer, g.head);
    std::shuffle(groups.begin(), groups.end(), random);
    for (const Group& g : groups)
      residency->release(g.held.data(), static_cast<int>(g.held.size()));
    return good;
  }
  bool whole(const Live& s) {
    bool good = s.kv.n_tokens == static_cast<int64_t>(s.tokens.size());
    std::vector<uint16_t> digest(store.digest_stride(s.kv.spec, 0));
    for (int layer = 0; layer < kLayers; ++layer)
      for (int h = 0; h < kHeads; ++h) {
        const HeadKv& head = store.head(s.kv, layer, h);
        good &= head.blocks.size() == static_cast<size_t>(layout.blocks(s.kv.n_tokens));
        good &= head.bound_factor.size() == static_cast<size_t>(s.kv.n_tokens / kB);
        for (int64_t b = 0; good && b < s.kv.n_tokens / kB; ++b) {
          good &= reads(head.blocks[b], s, b, layer, h);
          const float r =
              kernels->attention.digest_build(head.blocks[b], layout.type, kB, kD, s.kv.spec.kind,
                                              s.kv.spec.with_mean, digest.data());
          good &= r == head.bound_factor[b] &&
                  std::equal(digest.begin(), digest.end(),
                             head.digests.begin() + b * static_cast<int64_t>(digest.size()));
        }
        if (good && s.kv.n_tokens % kB != 0) {
          const int64_t last = s.kv.n_tokens / kB;
          const bool parked = residency->in_place() || s.kv.tail_slots.empty();
          const std::byte* tail =
              parked ? head.blocks[last] : residency->tail(const_cast<SequenceKv&>(s.kv), layer, h);
          good &= reads(tail, s, last, layer, h);
        }
      }
    return good;
  }
  // Blocks by their addresses, and by the model's names.
  bool counted() const {
    std::set<const std::byte*> places;
    std::set<int> names;
    for (const auto& s : live) {
      for (const HeadKv& h : s->kv.heads) places.insert(h.blocks.begin(), h.blocks.end());
      names.insert(s->names.begin(), s->names.end());
    }
    return store.host_bytes() == places.size() * layout.bytes() &&
           places.size() == names.size() * kLayers * kHeads;
  }
  std::vector<Live*> some(size_t most) {
    std::vector<Live*> out;
    for (const auto& s : live) out.push_back(s.get());
    std::shuffle(out.begin(), out.end(), random);
    out.resize(std::min(out.size(), most));
    return out;
  }
};

struct Guise {
  const char* name;
  int64_t slots;  // 0: in place
  EvictPolicy policy;
  bool per_layer;
  size_t together;  // sequences of a step
};

// Returns the number of times that memory ran out.
int play(const Guise& guise, uint32_t seed, int n_ops) {
  INFO(guise.name << ", seed " << seed);
  World w;
  w.random.seed(seed);
  w.residency = guise.slots == 0
                    ? make_in_place(&w.store)
                    : make_pooled(&w.store, &w.threads, guise.slots, guise.policy, guise.per_layer);
  bool good = true;
  int forks = 0;
  for (int op = 0; op < n_ops && good; ++op) {
    INFO("operation " << op);
    w.refuse = w.below(4) == 0;
    const uint32_t what = w.below(12);
    if (w.live.empty() || (what == 0 && w.live.size() < 6)) {
      auto s = std::make_unique<Live>();
      s->kv = w.residency->create(kCtx, {});
      w.live.push_back(std::move(s));
    }
    Live& one = *w.live[w.below(w.live.size())];
    const auto length = static_cast<int64_t>(one.tokens.size());
    if (what <= 3) {
      auto some = w.some(1 + w.below(guise.together));
      std::erase_if(some, [](const Live* s) { return s->tokens.size() >= kCtx; });
      if (!some.empty()) w.step(some);
    } else if (what <= 5 && length < kCtx) {
      w.prefill(one, 1 + w.below(std::min<uint64_t>(50, kCtx - length)),
                w.below(4) == 0 ? w.below(kLayers) : kLayers);
    } else if (what <= 7 && w.live.size() < 6) {
      const uint32_t where = w.below(3);
      w.fork(one, where == 0   ? length
                  : where == 1 ? w.below(length + 1) / kB * kB
                               : w.below(length + 1));
      ++forks;
    } else if (what == 8) {
      w.truncate(one, w.below(2) ? w.below(length + 1)
                                 : length - w.below(std::min<uint64_t>(length + 1, 20)));
    } else if (what == 9 && w.live.size() > 1) {
      w.end(w.below(w.live.size()));
    } else if (what == 10 && w.below(4) == 0) {
      w.rewrite(one);
    } else {
      good &= w.read(w.some(3), static_cast<int>(w.below(kLayers)), w.below(4) == 0);
    }
    for (const auto& s : w.live) good &= w.whole(*s);
    good &= w.counted();
    if (w.residency->in_place()) good &= w.residency->used_slots() == 0;
    CHECK(good);
  }
  CHECK(forks > n_ops / 50);
  while (!w.live.empty()) w.end(w.below(w.live.size()));
  CHECK(w.store.host_bytes() == 0);
  CHECK(w.residency->used_slots() == 0);
  CHECK(w.slabs > 0);
  return w.refused;
}

}  // namespace

TEST_CASE("forked sequences hold what sequences of their own would, in as many blocks as differ",
          "[kv][fork]") {
  const Guise guises[] = {{"in place", 0, EvictPolicy::Lru, false, 4},
                          {"5 slots", 5, EvictPolicy::Lru, false, 1},
                          {"13 slots", 13, EvictPolicy::Lru, false, 3},
                          {"13 slots, FIFO", 13, EvictPolicy::Fifo, false, 2},
                          {"24 slots by layer", 24, EvictPolicy::Lru, true, 3},
                          {"500 slots", 500, EvictPolicy::Lru, false, 6}};
  for (const Guise& guise : guises) {
    int refused = 0;
    for (uint32_t seed = 1; seed <= 6; ++seed) refused += play(guise, seed, 500);
    CHECK(refused > 10);
  }
}

TEST_CASE("a pool holds a shared block once, and loads it once", "[kv][fork]") {
  World w;
  w.residency = make_pooled(&w.store, &w.threads, 64, EvictPolicy::Lru, false);
  w.live.push_back(std::make_unique<Live>());
  w.live[0]->kv = w.residency->create(kCtx, {});
  w.prefill(*w.live[0], 5 * kB, kLayers);
  w.fork(*w.live[0], 5 * kB);
  w.fork(*w.live[1], 3 * kB + 1);  // a fork of a fork
  const int32_t blocks[5] = {0, 1, 2, 3, 4};
  Held held[3][5];
  for (int i = 0; i < 3; ++i)
    w.residency->acquire(w.live[i]->kv, 0, 0, blocks, i < 2 ? 5 : 3, held[i]);
  for (int b = 0; b < 5; ++b) {
    CHECK((held[0][b].miss && !held[0][b].wait));
    CHECK((!held[1][b].miss && held[1][b].wait));
    CHECK(held[1][b].data == held[0][b].data);
    if (b < 3) CHECK(held[2][b].data == held[0][b].data);
  }
  CHECK(w.residency->used_slots() == 5);
  w.residency->load(held[0], 5);
  w.residency->release(held[1], 5);
  w.residency->release(held[2], 3);
  w.residency->release(held[0], 5);
  w.end(0);  // the donor first: what others hold stays in the pool
  CHECK(w.residency->used_slots() == 5);
  CHECK(w.store.host_bytes() == (5 + 1) * kLayers * kHeads * w.layout.bytes());
  w.end(0);
  CHECK(w.residency->used_slots() == 3);
  Held again[3];
  w.residency->acquire(w.live[0]->kv, 0, 0, blocks, 3, again);
  for (const Held& h : again)
    CHECK((!h.miss && !h.wait && w.reads(h.data, *w.live[0], &h - again, 0, 0)));
  w.residency->release(again, 3);
  w.end(0);
  CHECK(w.residency->used_slots() == 0);
  CHECK(w.store.host_bytes() == 0);
}

TEST_CASE("a store frees a block with its last holder", "[kv][fork]") {
  const size_t bytes = 4096 + 64;  // does not divide the slab
  HostStore store(make_system_slabs());
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 9000; ++i) blocks.push_back(store.take(bytes));  // three slabs
  CHECK(std::set<std::byte*>(blocks.begin(), blocks.end()).size() == blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t k = 0; k < i % 3; ++k) store.share(blocks[i]);
  CHECK(store.in_use() == 9000);
  for (int round = 0; round < 3; ++round) {
    int64_t left = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int holders = static_cast<int>(i % 3) + 1 - round;
      if (holders <= 0) continue;
      REQUIRE(store.shared(blocks[i]) == (holders > 1));
      store.give_back(blocks[i]);
      left += holders > 1;
    }
    CHECK(store.in_use() == left);
  }
  const uint64_t reserved = store.reserved_bytes();
  for (int i = 0; i < 9000; ++i) REQUIRE_FALSE(store.shared(store.take(bytes)));
  CHECK(store.reserved_bytes() == reserved);
}
