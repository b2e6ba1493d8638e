// Random histories of forked sessions. Each is compared with a session in a context of its own that
// went through the same prompts, steps and cuts without ever sharing anything.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "kernels/cpu/types.h"
#include "tests/engine/host_kv.h"

namespace riffle::test {

// Settings under which a selector reads a part of even a short context.
inline ContextOptions small_options(SelectorKind selector, int32_t n_ctx) {
  ContextOptions o = options();
  o.n_ctx = n_ctx;
  o.block_size = 16;
  o.selection.selector = selector;
  o.selection.epsilon = 0.8f;
  o.selection.microbatch = 2;
  o.selection.budget = 0.4f;
  o.selection.select_tokens = 60;
  o.selection.init_tokens = 8;
  o.selection.local_tokens = 40;
  o.selection.cache_threshold =
      2;  // a fork votes anew where a session of its own might still use its last selection
  return o;
}

// One event in a session's history.
struct Deed {
  enum Kind { kPrefill, kStep, kTruncate } kind;
  std::vector<int32_t> tokens;
  size_t length = 0;  // kTruncate
};

class Forks {
 public:
  Forks(const ContextOptions& options, uint32_t seed)
      : shared_(options), alone_(options), random_(seed) {
    block_size_ = options.block_size;
    n_ctx_ = static_cast<size_t>(options.n_ctx);
    const auto type = static_cast<riffle::cpu::KvType>(options.kv_type);
    block_bytes_ = 2 * block_size_ *
                   riffle::cpu::kv_row_bytes(type, model_number(shared_.model, "head_dim")) *
                   model_number(shared_.model, "n_layers") *
                   model_number(shared_.model, "n_kv_heads");  // blocks of all layers and heads
  }
  ~Forks() {
    for (auto& m : members_) end(*m);
  }

  void play(int n_ops) {
    for (int op = 0; op < n_ops; ++op) {
      INFO("operation " << op);
      const uint32_t what = below(12);
      if (members_.empty() || (what == 0 && members_.size() < 5)) create();
      Member& one = *members_[below(members_.size())];
      if (what <= 4) step();
      else if (what <= 6) prefill(one, 1 + below(50), what == 6 && below(3) == 0);
      else if (what <= 9 && members_.size() < 5) fork(one);
      else if (what == 10) truncate(one, below(one.length + 1));
      else if (members_.size() > 1) free(below(members_.size()));
      REQUIRE(host_kv_bytes(shared_) == distinct_blocks() * block_bytes_);
    }
    while (!members_.empty()) free(below(members_.size()));
    CHECK(host_kv_bytes(shared_) == 0);
    CHECK(forks_ > 0);
    CHECK(compared_ > 0);
  }
  int compared() const { return compared_; }

 private:
  struct Member {
    riffle_session *session = nullptr, *twin = nullptr;
    size_t length = 0;
    std::vector<Deed> deeds;
    std::vector<int> blocks;  // names; the same in every layer and head
  };

  uint32_t below(uint64_t n) { return static_cast<uint32_t>(random_() % n); }
  size_t distinct_blocks() const {
    std::set<int> all;
    for (const auto& m : members_) all.insert(m->blocks.begin(), m->blocks.end());
    return all.size();
  }
  // The blocks written next belong to the member alone.
  void grow(Member& m, size_t n) {
    if (m.length % block_size_ != 0) {
      int holders = 0;
      for (const auto& other : members_)
        holders += static_cast<int>(
            std::count(other->blocks.begin(), other->blocks.end(), m.blocks.back()));
      if (holders > 1) m.blocks.back() = next_++;
    }
    m.length += n;
    cover(m);
  }
  void cover(Member& m) {
    const size_t n = (m.length + block_size_ - 1) / block_size_;
    while (m.blocks.size() < n) m.blocks.push_back(next_++);
    m.blocks.resize(n);
  }
  std::vector<int32_t> tokens(size_t n) {
    std::vector<int32_t> out(n);
    for (int32_t& t : out) t = 300 + static_cast<int32_t>(below(7000));
    return out;
  }
  void compare(const Member& m) {
    ++compared_;
    REQUIRE(riffle_session_length(m.session) == m.length);
    const float *a = riffle_logits(m.session), *b = riffle_logits(m.twin);
    if (!a) return;  // the twin of a fork may have kept those of its last deed
    REQUIRE(b);
    REQUIRE(std::memcmp(a, b, sizeof(float) * static_cast<size_t>(shared_.vocab_size())) == 0);
  }
  void again(riffle_session* s, const Deed& deed) {
    if (deed.kind == Deed::kTruncate) return alone_.check(riffle_session_truncate(s, deed.length));
    if (deed.kind == Deed::kStep)
      return alone_.check(riffle_step(alone_.context, &s, deed.tokens.data(), 1));
    alone_.check(riffle_prefill(s, deed.tokens.data(), deed.tokens.size(), nullptr, nullptr));
  }
  void done(Member& m, Deed deed) {
    again(m.twin, deed);
    if (deed.kind != Deed::kTruncate) REQUIRE(riffle_logits(m.session));
    m.deeds.push_back(std::move(deed));
    compare(m);
  }

  void create() {
    auto m = std::make_unique<Member>();
    shared_.check(riffle_session_create(shared_.context, &m->session));
    alone_.check(riffle_session_create(alone_.context, &m->twin));
    members_.push_back(std::move(m));
  }
  // Several at once.
  void step() {
    std::vector<Member*> some;
    for (const auto& m : members_)
      if (m->length > 0 && m->length < n_ctx_ && below(3) != 0) some.push_back(m.get());
    if (some.empty()) return;
    std::vector<riffle_session*> sessions;
    for (Member* m : some) sessions.push_back(m->session);
    const auto next = tokens(some.size());
    shared_.check(riffle_step(shared_.context, sessions.data(), next.data(), some.size()));
    for (size_t i = 0; i < some.size(); ++i) {
      grow(*some[i], 1);
      done(*some[i], {Deed::kStep, {next[i]}, 0});
    }
  }
  void prefill(Member& m, size_t n, bool abort) {
    n = std::min(n, n_ctx_ - m.length);
    if (n == 0) return;
    const auto more = tokens(n);
    if (abort) {
      const auto stop = [](void*, const riffle_progress* p) { return p->done < p->total / 2; };
      REQUIRE(riffle_prefill(m.session, more.data(), n, stop, nullptr) == RIFFLE_ABORTED);
      const size_t length = m.length;
      grow(m, n);
      m.length = length;
      cover(m);
      return compare(m);
    }
    shared_.check(riffle_prefill(m.session, more.data(), n, nullptr, nullptr));
    grow(m, n);
    done(m, {Deed::kPrefill, more, 0});
  }
  void fork(Member& from) {
    const uint32_t where = below(3);
    const size_t n = where == 0   ? from.length
                     : where == 1 ? below(from.length + 1) / block_size_ * block_size_
                                  : below(from.length + 1);
    auto m = std::make_unique<Member>();
    shared_.check(riffle_session_fork(from.session, n, &m->session));
    REQUIRE(riffle_logits(m->session) == nullptr);
    alone_.check(riffle_session_create(alone_.context, &m->twin));
    m->deeds = from.deeds;
    m->deeds.push_back({Deed::kTruncate, {}, n});
    for (const Deed& deed : m->deeds) again(m->twin, deed);
    m->length = n;
    m->blocks.assign(from.blocks.begin(),
                     from.blocks.begin() + static_cast<std::ptrdiff_t>(n / block_size_));
    cover(*m);
    compare(from);
    if (n < n_ctx_ && below(2) == 0) {
      members_.push_back(std::move(m));
      prefill(*members_.back(), 1 + below(40), false);
    } else {
      members_.push_back(std::move(m));
    }
    ++forks_;
  }
  void truncate(Member& m, size_t n) {
    shared_.check(riffle_session_truncate(m.session, n));
    m.length = n;
    cover(m);
    done(m, {Deed::kTruncate, {}, n});
  }
  void end(Member& m) {
    riffle_session_free(m.session);
    riffle_session_free(m.twin);
  }
  void free(size_t i) {
    end(*members_[i]);
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  Runtime shared_, alone_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Member>> members_;
  size_t block_size_, n_ctx_;
  uint64_t block_bytes_;
  int next_ = 0, forks_ = 0, compared_ = 0;
};

// A fork's logits after a prompt must be those of a session that read all by itself, and the
// donor's must not notice.
inline void fork_cases(const ContextOptions& o, bool any_chunks) {
  Runtime r(o), alone(o);
  const size_t block = static_cast<size_t>(o.block_size);
  const auto prefill = [](Runtime& at, riffle_session* s, const std::vector<int32_t>& t) {
    at.check(riffle_prefill(s, t.data(), t.size(), nullptr, nullptr));
  };
  const auto step = [](Runtime& at, riffle_session* s, int32_t t) {
    at.check(riffle_step(at.context, &s, &t, 1));
    return at.logits(s);
  };
  const auto end = [](Runtime& at, riffle_session* s) {
    at.sessions.erase(std::find(at.sessions.begin(), at.sessions.end(), s));
    riffle_session_free(s);
  };
  const auto prompt = some_tokens(static_cast<int>(9 * block + 5), 1), one = some_tokens(40, 2),
             two = some_tokens(70, 3);
  // Inside a block, at a boundary, at the newest block, of nothing.
  for (const size_t n :
       {size_t(4 * block + 3), size_t(5 * block), size_t(9 * block), prompt.size(), size_t(0)}) {
    INFO(n << " tokens of " << prompt.size());
    riffle_session *donor = r.session(), *fork = nullptr, *child = nullptr;
    const std::vector<int32_t> head(prompt.begin(),
                                    prompt.begin() + static_cast<std::ptrdiff_t>(n)),
        rest(prompt.begin() + static_cast<std::ptrdiff_t>(n), prompt.end());
    if (n > 0) prefill(r, donor, head);
    if (!rest.empty()) prefill(r, donor, rest);
    const auto donor_logits = r.logits(donor);
    r.check(riffle_session_fork(donor, n, &fork));
    r.sessions.push_back(fork);
    CHECK(riffle_logits(fork) == nullptr);
    CHECK(riffle_session_length(fork) == n);
    CHECK(r.logits(donor) == donor_logits);
    prefill(r, fork, one);
    const auto donor_next = step(r, donor, 500);
    r.check(riffle_session_fork(fork, n + 30, &child));  // a fork of a fork
    r.sessions.push_back(child);
    prefill(r, child, two);
    end(r, donor);  // before its forks
    const auto fork_next = step(r, fork, 600);
    end(r, fork);
    const auto child_logits = r.logits(child), child_next = step(r, child, 700);

    // The same by sessions of their own; prompts cut alike, where that matters.
    riffle_session *a = alone.session(), *b = alone.session(), *c = alone.session();
    const auto read = [&](riffle_session* s, std::vector<std::vector<int32_t>> parts) {
      if (any_chunks) {
        std::vector<int32_t> all;
        for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
        parts = {all};
      }
      for (const auto& part : parts)
        if (!part.empty()) prefill(alone, s, part);
    };
    read(a, {head, rest});
    CHECK(alone.logits(a) == donor_logits);
    CHECK(step(alone, a, 500) == donor_next);
    read(b, {head, one});
    CHECK(step(alone, b, 600) == fork_next);
    if (any_chunks) {
      read(c, {head, {one.begin(), one.begin() + 30}, two});
    } else {
      read(c, {head, one});
      alone.check(riffle_session_truncate(c, n + 30));
      prefill(alone, c, two);
    }
    CHECK(alone.logits(c) == child_logits);
    CHECK(step(alone, c, 700) == child_next);
    end(r, child);
    CHECK(host_kv_bytes(r) == 0);
    for (riffle_session* s : {a, b, c}) end(alone, s);
  }
}

}  // namespace riffle::test
