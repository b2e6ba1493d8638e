// Pools of a model whose layers have blocks of different sizes. Random prompts, steps, forks and
// cuts leave every block as it was written, and no copy goes beyond the end of a block.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>

#include "kv/cpu_kv.h"

using namespace riffle;

namespace {

constexpr int kB = 16;
constexpr int64_t kCtx = 600;

// Layers differ in the number of heads, head size and window. Two layers keep no blocks: one
// attends to the KV of layer 0, and one keeps a state.
KvShape uneven_shape() {
  return {kB,
          KvType::F16,
          {{LayerKeeps::KV, 2, 16},
           {LayerKeeps::WINDOW_KV, 1, 32, 40},
           {LayerKeeps::EARLIER_KV, 2, 16, 0, 0},
           {LayerKeeps::STATE},
           {LayerKeeps::KV, 2, 16},
           {LayerKeeps::WINDOW_KV, 3, 8, 20}}};
}

struct Live {
  SequenceKv kv;
  std::vector<uint32_t> tokens;
};

// The kind of pool that is tested.
struct Kind {
  const char* name;
  int64_t slots;
  bool readers;  // the readers manage the pool; false: its owner does
  EvictPolicy policy = EvictPolicy::Lru;
};

struct World {
  KvShape shape = uneven_shape();
  ThreadPool threads{2};
  HostKv host{shape, cpu::kernels(cpu::Isa::Scalar), &threads};
  std::unique_ptr<CpuKv> pool;
  std::vector<std::unique_ptr<Live>> live;
  std::mt19937 random;
  bool alone;  // steps have one sequence, since a small pool holds the newest blocks of only one

  World(const Kind& kind, uint32_t seed)
      : pool(kind.readers ? make_emulated(&host, &threads, kind.slots)
                          : make_pooled(&host, &threads, kind.slots, kind.policy, false)),
        random(seed),
        alone(!kind.readers && kind.slots < 40) {}

  uint32_t below(uint64_t n) { return static_cast<uint32_t>(random() % n); }

  // Returns byte i of a token's key (part 0) or value (part 1) in a head. No f16 of such bytes is
  // infinite.
  static std::byte value(uint32_t token, int64_t head, int part, size_t i) {
    return std::byte((token * 31 + static_cast<uint32_t>(head) * 7 + part * 3 + i) % 100);
  }
  // Calls each(byte, expected) for a token's bytes in its block.
  template <class Each>
  void for_bytes(std::byte* block, int layer, int h, int64_t at, uint32_t token, Each each) const {
    const BlockLayout layout = shape.layout(layer);
    for (int part = 0; part < 2; ++part) {
      std::byte* row = block + part * layout.value_offset() + at % kB * layout.row_bytes();
      for (size_t i = 0; i < layout.row_bytes(); ++i)
        each(row[i], value(token, shape.first_head(layer) + h, part, i));
    }
  }
  void write(std::byte* block, int layer, int h, int64_t at, uint32_t token) const {
    for_bytes(block, layer, h, at, token, [](std::byte& b, std::byte v) { b = v; });
  }
  bool reads(const std::byte* block, int layer, int h, const Live& s, int64_t first,
             int64_t last) const {
    bool good = true;
    for (int64_t at = first; at < last; ++at)
      for_bytes(const_cast<std::byte*>(block), layer, h, at, s.tokens[at],
                [&](std::byte b, std::byte v) { good &= b == v; });
    return good;
  }

  // ---- operations
  void prompt(Live& s, int64_t n) {
    const int64_t n0 = s.kv.n_tokens, end = n0 + n;
    Marks marks = s.kv.marks;
    marks.add(end);
    pool->reserve(s.kv, end, marks);
    for (int64_t i = 0; i < n; ++i) s.tokens.push_back(random());
    for (int layer = 0; layer < shape.n_layers(); ++layer) {
      const LayerKv kv = pool->prefill_layer(s.kv, layer, end, n);
      for (int h = 0; h < shape.heads(layer); ++h)
        for (int64_t at = n0; at < end; ++at)
          write(kv.blocks[h * kv.n_blocks + at / kB], layer, h, at, s.tokens[at]);
      pool->finish_layer(s.kv, layer, end);
    }
    pool->commit_prompt(s.kv, end, marks);
  }
  void step(const std::vector<Live*>& some) {
    std::vector<SequenceKv*> kv;
    for (Live* s : some) {
      pool->reserve(s->kv, s->kv.n_tokens + 1, s->kv.marks);
      kv.push_back(&s->kv);
    }
    pool->activate(kv.data(), kv.size(), 1);
    for (Live* s : some) {
      s->tokens.push_back(random());
      for (int layer = 0; layer < shape.n_layers(); ++layer)
        for (int h = 0; h < shape.heads(layer); ++h)
          write(pool->tail(s->kv, layer, h), layer, h, s->kv.n_tokens, s->tokens.back());
    }
    for (Live* s : some) {
      ++s->kv.n_tokens;
      pool->commit(s->kv);
    }
  }
  void fork(const Live& from, int64_t n) {
    auto s = std::make_unique<Live>();
    s->kv = pool->fork(const_cast<SequenceKv&>(from.kv), n, kCtx);
    s->tokens.assign(from.tokens.begin(), from.tokens.begin() + n);
    live.push_back(std::move(s));
  }
  void end(size_t i) {
    pool->destroy(live[i]->kv);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // ---- checks
  // Reads a block as a step does. Returns true if the block's bytes and the count of loaded bytes
  // are right. The slot's bytes beyond the block are poisoned first; the read must not change them.
  bool read(Live& s, int layer, int h, int32_t block) {
    const size_t bytes = shape.block_bytes(layer), rest = shape.largest_block() - bytes;
    const PoolCounters before = pool->counters;
    Held held;
    pool->acquire(s.kv, layer, h, &block, 1, &held);
    bool good = pool->counters.loaded_bytes - before.loaded_bytes == (held.miss ? bytes : 0);
    std::byte* const beyond = held.slot < 0 ? nullptr : const_cast<std::byte*>(held.data) + bytes;
    if (beyond) std::memset(beyond, 0xa5, rest);
    pool->load(&held, 1);
    good &= reads(held.data, layer, h, s, block * kB, (block + 1) * kB);
    for (size_t i = 0; beyond && i < rest; ++i) good &= beyond[i] == std::byte(0xa5);
    pool->release(&held, 1);
    return good;
  }
  // Returns true if all blocks that the next token sees are as they were written: in the host store
  // or, if the pool holds the tails, in the tails, and with in_pool also in the pool.
  bool whole(Live& s, bool in_pool) {
    const int64_t n = s.kv.n_tokens;
    bool good = n == static_cast<int64_t>(s.tokens.size());
    for (int layer = 0; layer < shape.n_layers(); ++layer)
      for (int h = 0; h < shape.heads(layer); ++h)
        for (int64_t b = shape.first_needed(layer, n); b * kB < n; ++b) {
          const std::byte* const block = host.head(s.kv, layer, h).blocks[b];
          const bool is_tail = (b + 1) * kB > n;
          good &= block != nullptr;
          if (!block) continue;
          if (in_pool && !is_tail) good &= read(s, layer, h, static_cast<int32_t>(b));
          good &= reads(is_tail && pool->holds_tail(s.kv) ? pool->tail(s.kv, layer, h) : block,
                        layer, h, s, b * kB, std::min(n, (b + 1) * kB));
        }
    return good;
  }
};

void play(const Kind& kind, uint32_t seed, int n_ops) {
  INFO(kind.name << ", " << kind.slots << " slots, seed " << seed);
  World w(kind, seed);
  for (int op = 0; op < n_ops; ++op) {
    INFO("operation " << op);
    const uint32_t what = w.below(12);
    if (w.live.empty() || (what == 0 && w.live.size() < 4)) {
      w.live.push_back(std::make_unique<Live>());
      w.live.back()->kv = w.pool->create(kCtx, {});
    }
    Live& one = *w.live[w.below(w.live.size())];
    const int64_t n = one.kv.n_tokens;
    if (what <= 4) {
      std::vector<Live*> some;
      for (const auto& s : w.live)
        if ((some.empty() || !w.alone) && w.below(2) && s->kv.n_tokens + 40 < kCtx)
          some.push_back(s.get());
      for (uint32_t i = 1 + w.below(40); i > 0 && !some.empty(); --i) w.step(some);
      if (!some.empty()) CHECK(w.whole(*some[w.below(some.size())], true));
    } else if (what <= 6 && n < kCtx) {
      w.prompt(one, 1 + w.below(std::min<uint64_t>(w.below(2) ? 200 : 20, kCtx - n)));
    } else if (what <= 9) {
      const int64_t want = w.below(2) ? w.below(n + 1) : n - w.below(std::min<int64_t>(n, 70) + 1),
                    reached = w.host.reach(one.kv, want);
      if (what > 8) {
        w.pool->truncate(one.kv, reached);
        one.tokens.resize(reached);
      } else if (w.live.size() < 4) {
        w.fork(one, reached);
      }
    } else if (what == 10) {
      w.pool->settle(one.kv);
      CHECK(w.whole(one, false));
    } else if (w.live.size() > 1) {
      w.end(w.below(w.live.size()));
    }
    for (const auto& s : w.live) CHECK(w.whole(*s, false));
  }
  while (!w.live.empty()) w.end(0);
  CHECK(w.host.host_bytes() == 0);
  CHECK(w.pool->used_slots() == 0);
}

}  // namespace

TEST_CASE("pools hold blocks of several sizes, in slots of the largest", "[kv][pool]") {
  const Kind kinds[] = {{"readers' pool", 3, true},
                        {"readers' pool", 40, true},
                        {"readers' pool", 1000, true},
                        {"owner's pool", 12, false},
                        {"owner's pool", 40, false, EvictPolicy::Fifo},
                        {"owner's pool", 1000, false}};
  uint32_t seed = 0;
  for (const Kind& kind : kinds)
    for (int round = 0; round < 2; ++round) play(kind, ++seed, 120);
}
