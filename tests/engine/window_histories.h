// Random histories of sessions in a model with sliding windows or recurrent states: prompts, steps,
// cuts, forks and ends, held against sessions that never go back.
#pragma once
#include <memory>
#include <random>

#include "tests/engine/host_kv.h"
#include "tests/engine/window_model.h"

namespace riffle::test {

inline std::vector<int32_t> draw(std::mt19937& random, size_t n) {
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = 20 + static_cast<int32_t>(random() % 200);
  return out;
}

class WindowHistories {
 public:
  // model: a path or a function, as the constructors of Runtime take it. whole_prompts: sessions
  // are cut and forked only at the end of a prompt or a step, since a prompt's bits depend on the
  // places where its chunks begin.
  template <class ModelSource>
  WindowHistories(const ContextOptions& o, const ContextOptions& alone, const ModelSource& model,
                  bool whole_prompts, uint32_t seed)
      : shared_(o, model), alone_(alone, model), whole_prompts_(whole_prompts), random_(seed) {}
  ~WindowHistories() {
    for (const auto& m : members_) riffle_session_free(m->session);
  }

  // Returns the number of times that a session could not be cut at the chosen length.
  int play(int n_ops) {
    for (int op = 0; op < n_ops; ++op) {
      INFO("operation " << op);
      const uint32_t what = below(10);
      if (members_.empty() || (what == 0 && members_.size() < 4)) {
        members_.push_back(std::make_unique<Member>());
        shared_.check(riffle_session_create(shared_.context, &members_.back()->session));
      }
      Member& one = *members_[below(members_.size())];
      if (what <= 3) steps();
      else if (what <= 5) prompt(one, what == 5 && below(2) == 0);
      else if (what <= 8) move(one, what <= 7);
      else if (members_.size() > 1) end(below(members_.size()));
    }
    while (!members_.empty()) end(0);
    CHECK(host_kv_bytes(shared_) == 0);
    CHECK(compared_ > 0);
    return refused_;
  }

 private:
  // Tokens that came into a session by one call.
  struct Piece {
    std::vector<int32_t> ids;
    bool by_step;
  };
  // Without what was taken back.
  struct Member {
    riffle_session* session = nullptr;
    std::vector<Piece> pieces;
    size_t length = 0;

    void add(Piece piece) {
      length += piece.ids.size();
      pieces.push_back(std::move(piece));
    }
    void cut(size_t n) {
      while (length > n) {
        std::vector<int32_t>& ids = pieces.back().ids;
        const size_t gone = std::min(length - n, ids.size());
        ids.resize(ids.size() - gone);
        length -= gone;
        if (ids.empty()) pieces.pop_back();
      }
    }
    // The last end of a piece up to n.
    size_t end_of_piece(size_t n) const {
      size_t at = 0;
      for (const Piece& p : pieces) {
        if (at + p.ids.size() > n) break;
        at += p.ids.size();
      }
      return at;
    }
  };

  uint32_t below(uint64_t n) { return static_cast<uint32_t>(random_() % n); }

  void compare(const Member& m) {
    REQUIRE(riffle_session_length(m.session) == m.length);
    riffle_session* s = nullptr;
    alone_.check(riffle_session_create(alone_.context, &s));
    for (const Piece& p : m.pieces)
      alone_.check(p.by_step ? riffle_step(alone_.context, &s, p.ids.data(), 1)
                             : riffle_prefill(s, p.ids.data(), p.ids.size(), nullptr, nullptr));
    CHECK(same_bits({shared_.logits(m.session)}, {alone_.logits(s)}));
    riffle_session_free(s);
    ++compared_;
  }
  void steps() {
    std::vector<riffle_session*> sessions;
    std::vector<Member*> some;
    for (const auto& m : members_)
      if (m->length > 0 && m->length + 100 < 1024 && below(2)) {
        some.push_back(m.get());
        sessions.push_back(m->session);
      }
    if (some.empty()) return;
    for (uint32_t i = 1 + below(100); i > 0; --i) {
      const auto next = draw(random_, some.size());
      shared_.check(riffle_step(shared_.context, sessions.data(), next.data(), some.size()));
      for (size_t j = 0; j < some.size(); ++j) some[j]->add({{next[j]}, true});
    }
    if (below(2)) compare(*some[below(some.size())]);
  }
  void prompt(Member& m, bool abort) {
    const size_t n = std::min<size_t>(1 + below(below(2) ? 30 : 300), 1024 - m.length);
    if (n == 0) return;
    const auto more = draw(random_, n);
    if (abort) {
      const auto stop = [](void*, const riffle_progress* p) { return p->done < p->total / 2; };
      REQUIRE(riffle_prefill(m.session, more.data(), n, stop, nullptr) == RIFFLE_ABORTED);
      if (riffle_logits(m.session)) compare(m);
      return;
    }
    shared_.check(riffle_prefill(m.session, more.data(), n, nullptr, nullptr));
    m.add({more, false});
    if (below(2)) compare(m);
  }
  // A cut or a fork.
  void move(Member& m, bool forks) {
    size_t want =
        below(2) ? below(m.length + 1) : m.length - below(std::min<size_t>(m.length, 70) + 1);
    if (whole_prompts_) want = m.end_of_piece(want);
    size_t n = riffle_session_reach(m.session, want);
    REQUIRE(n <= want);
    if (n < want) {
      const uint64_t held = host_kv_bytes(shared_);
      riffle_session* none = nullptr;
      CHECK(riffle_session_truncate(m.session, want) == RIFFLE_BAD_ARGUMENT);
      CHECK_THAT(riffle_context_error(shared_.context),
                 (Catch::Contains("sliding windows") || Catch::Contains("recurrent layers")) &&
                     Catch::EndsWith(" " + std::to_string(n)));
      CHECK(riffle_session_fork(m.session, want, &none) == RIFFLE_BAD_ARGUMENT);
      CHECK(none == nullptr);
      CHECK(riffle_session_length(m.session) == m.length);
      CHECK(host_kv_bytes(shared_) == held);
      ++refused_;
    }
    for (size_t end; whole_prompts_ && (end = m.end_of_piece(n)) < n;)
      n = riffle_session_reach(m.session, end);
    if (!forks) {
      shared_.check(riffle_session_truncate(m.session, n));
      return m.cut(n);
    }
    if (members_.size() == 4) return;
    auto fork = std::make_unique<Member>(m);
    shared_.check(riffle_session_fork(m.session, n, &fork->session));
    fork->cut(n);
    members_.push_back(std::move(fork));
  }
  void end(size_t i) {
    riffle_session_free(members_[i]->session);
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  Runtime shared_, alone_;
  bool whole_prompts_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Member>> members_;
  int compared_ = 0, refused_ = 0;
};

}  // namespace riffle::test
