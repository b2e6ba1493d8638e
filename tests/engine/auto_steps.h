// Selector auto against the two selectors that it stands for, switched by hand.
#pragma once
#include <memory>

#include "tests/engine/steps.h"

namespace riffle::test {

inline MemoryPlan plan_of(const riffle_model* model, const ContextOptions& o) {
  MemoryPlan plan{};
  REQUIRE(plan_memory(const_cast<riffle_model*>(model), &o, &plan, nullptr, 0) == RIFFLE_OK);
  return plan;
}

// A session in a context of its own, whose selector is set before each step: dense while it holds
// fewer than `below` tokens, the new one included, else share.
class ByHand {
 public:
  ByHand(ContextOptions o, size_t below, const std::vector<int32_t>& prompt)
      : below_(below), selection_(o.selection) {
    o.selection.selector = SelectorKind::SHARE;
    o.n_sessions = 1;
    runtime_ = std::make_unique<Runtime>(o);
    session_ = runtime_->session();
    runtime_->check(riffle_prefill(session_, prompt.data(), prompt.size(), nullptr, nullptr));
  }
  std::vector<float> step(int32_t token) {
    const bool dense = riffle_session_length(session_) + 1 < below_;
    selection_.selector = dense ? SelectorKind::DENSE : SelectorKind::SHARE;
    runtime_->check(set_selection(runtime_->context, &selection_));
    runtime_->check(riffle_step(runtime_->context, &session_, &token, 1));
    return runtime_->logits(session_);
  }
  void truncate(size_t n) { runtime_->check(riffle_session_truncate(session_, n)); }

 private:
  size_t below_;
  Selection selection_;
  std::unique_ptr<Runtime> runtime_;
  riffle_session* session_ = nullptr;
};

// One context with selector auto, which reads everything below `below` tokens: sessions that are
// shorter, longer and grow beyond it, alone and in one step; a fork and a cut across it.
inline void check_auto(const ContextOptions& o, int below) {
  REQUIRE(o.selection.selector == SelectorKind::AUTO);
  const std::vector<int> lengths = {below - 3, 200, below + 250, below - 6};
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < lengths.size(); ++i)
    prompts.push_back(some_tokens(lengths[i], 60 + static_cast<uint32_t>(i)));
  const auto steps = some_tokens(10, 70);
  Runtime r(o);
  REQUIRE(plan_of(r.model, o).everything_below == below);
  std::vector<riffle_session*> sessions;
  std::vector<ByHand> by_hand;
  for (const auto& prompt : prompts) {
    sessions.push_back(r.session());
    r.check(riffle_prefill(sessions.back(), prompt.data(), prompt.size(), nullptr, nullptr));
    by_hand.emplace_back(o, below, prompt);
  }
  const auto step_together = [&](const std::vector<size_t>& which, int32_t token) {
    std::vector<riffle_session*> some;
    for (const size_t i : which) some.push_back(sessions[i]);
    const std::vector<int32_t> tokens(some.size(), token);
    r.check(riffle_step(r.context, some.data(), tokens.data(), some.size()));
    for (const size_t i : which) {
      INFO("session " << i << " of " << riffle_session_length(sessions[i]) << " tokens");
      REQUIRE(same_bits({r.logits(sessions[i])}, {by_hand[i].step(token)}));
    }
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    // All of them; those that begin short, some of which pass the length on the way; one.
    if (i % 3 == 0) step_together({0, 1, 2, 3}, steps[i]);
    else if (i % 3 == 1) step_together({0, 1, 3}, steps[i]);
    else step_together({1}, steps[i]);
  }
  step_together({0, 3}, 700);
  // Back below it, and beyond it again: the cut session itself, and a fork of the longest one.
  r.check(riffle_session_truncate(sessions[0], below - 3));
  by_hand[0].truncate(below - 3);
  riffle_session* fork = nullptr;
  r.check(riffle_session_fork(sessions[2], below - 2, &fork));
  r.sessions.push_back(fork);
  sessions.push_back(fork);
  // A GPU's products of a prompt may depend on its length, so the same prompt is cut by hand.
  by_hand.emplace_back(o, below, prompts[2]);
  by_hand.back().truncate(below - 2);
  for (const int32_t token : steps) step_together({0, 1, 2, 4}, token);
}

}  // namespace riffle::test
