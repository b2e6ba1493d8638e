#include "engine/step_rows.h"

#include <algorithm>

#include "engine/draft_head.h"
#include "util/error.h"

namespace riffle {

// An equal part of what is left, so that the first sequences do not take all of it.
static int64_t part_of(int64_t left, size_t sequences) {
  const auto n = static_cast<int64_t>(sequences);
  return (left + n - 1) / n;
}

void StepRows::begin(size_t n, int64_t max_ahead) {
  left_ = n;
  left_ahead_ = max_ahead;
  left_lookup_ = -1;
  wanted_.clear();
}

void StepRows::add(const Engine& engine, Sequence& s, Answer& answer, Proposer* proposer,
                   int32_t next) {
  if (left_lookup_ < 0) left_lookup_ = std::min<int64_t>(left_ahead_, engine.lookup());
  const int64_t part = part_of(left_lookup_, left_--);
  Wanted& w = wanted_.emplace_back(Wanted{&s, &answer, next, 0});
  w.room = std::min(engine.room_ahead(s), answer.room_ahead());
  if (proposer) proposer->propose(s.tokens, next, std::min(part, w.room), w.ahead);
  left_lookup_ -= static_cast<int64_t>(w.ahead.size());
  left_ahead_ -= static_cast<int64_t>(w.ahead.size());
}

// Asks the MTP layer for the tokens of the sequences for which lookup has found none.
void StepRows::guess(Engine& engine) {
  std::vector<Wanted*> of;
  for (Wanted& w : wanted_)
    if (w.ahead.empty()) of.push_back(&w);
  const int length = engine.begin_pace(wanted_.size());
  if (of.size() < wanted_.size()) engine.leave_out_of_pace();
  if (length == 0) return;
  std::vector<Sequence*> sequences;
  std::vector<DraftRequest> requests;
  for (size_t i = 0; i < of.size(); ++i) {
    Wanted& w = *of[i];
    DraftRequest r;
    r.next = w.next;
    r.most = std::min({w.room, part_of(left_ahead_, of.size() - i), int64_t{length}});
    r.draw = [&w](std::span<const float> logits, size_t g) { return w.answer->guess(logits, g); };
    r.request = [&w](size_t g) { return w.answer->guess_request(g); };
    left_ahead_ -= std::max<int64_t>(0, r.most);
    sequences.push_back(w.sequence);
    requests.push_back(std::move(r));
  }
  const int64_t fed = engine.guess(sequences, requests);
  size_t guesses = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    guesses += requests[i].guesses.size();
    of[i]->ahead = std::move(requests[i].guesses);
  }
  // A step tells about the length only if its guesses were made, and made from the last tokens.
  const auto n = static_cast<int64_t>(of.size());
  if (static_cast<int64_t>(guesses) < n * length || fed > n * kMostGuesses)
    engine.leave_out_of_pace();
}

void StepRows::place() {
  sequences_.clear();
  tokens_.clear();
  samples_.clear();
  draws_.clear();
  for (Wanted& w : wanted_) {
    w.first = tokens_.size();
    tokens_.push_back(w.next);
    tokens_.insert(tokens_.end(), w.ahead.begin(), w.ahead.end());
    const size_t ahead = w.first + 1;
    tokens_.resize(ahead + w.answer->allow_ahead(std::span(tokens_).subspan(ahead)));
    sequences_.resize(tokens_.size(), w.sequence);
    for (size_t i = 0; i < tokens_.size() - w.first; ++i) {
      samples_.push_back(w.answer->request(i));
      draws_.push_back({w.answer, i});
    }
  }
  sampled_.assign(tokens_.size(), kNotSampled);
}

void StepRows::step(Engine& engine) {
  engine.step(sequences_, tokens_, samples_.data(), sampled_.data(),
              [this](int64_t row) { draws_[row].answer->find_mask(draws_[row].ahead); });
}

void StepRows::run(Engine& engine) {
  if (engine.drafts()) guess(engine);
  place();
  const uint64_t before = engine.decode_tokens();
  try {
    step(engine);
  } catch (const Error& e) {
    // Nobody asked for the tokens ahead, so the step does without them where memory is short.
    if (e.status() != RIFFLE_OUT_OF_MEMORY || tokens_.size() == wanted_.size() ||
        engine.decode_tokens() != before)
      throw;
    for (Wanted& w : wanted_) w.ahead.clear();
    place();
    step(engine);
  }
}

}  // namespace riffle
