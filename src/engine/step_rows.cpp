#include "engine/step_rows.h"

#include <algorithm>
#include <chrono>

#include "engine/draft_head.h"

namespace riffle {

void StepRows::begin(size_t n, int64_t max_ahead) {
  left_ = n;
  left_ahead_ = max_ahead;
  wanted_.clear();
  sequences_.clear();
  tokens_.clear();
  samples_.clear();
  draws_.clear();
}

void StepRows::add(const Engine& engine, Sequence& s, Answer& answer, Proposer* proposer,
                   int32_t next) {
  // Takes an equal part of what is left, so that the first sequences do not take all of it.
  const auto sequences = static_cast<int64_t>(left_--);
  const int64_t part = (left_ahead_ + sequences - 1) / sequences;
  Wanted& w = wanted_.emplace_back(Wanted{&s, &answer, proposer, next, 0, {}});
  w.most = std::min({part, engine.room_ahead(s), answer.room_ahead()});
  if (proposer)
    proposer->propose(s.tokens, next, std::min<int64_t>(w.most, engine.lookup()), w.ahead);
  left_ahead_ -= w.ahead.empty() && engine.drafts() ? std::max<int64_t>(0, w.most)
                                                    : static_cast<int64_t>(w.ahead.size());
}

// Counts the tokens that the last step gave: those that it appended and those accepted since.
void StepRows::measure(const Engine& engine) {
  if (last_ && engine.decode_tokens() > last_->tokens_before)
    pace_->record(last_->length, last_->seconds,
                  static_cast<double>(engine.decode_tokens() - last_->tokens_before));
  last_.reset();
}

// Asks the MTP layer for the tokens of the sequences for which lookup has found none.
void StepRows::guess(Engine& engine) {
  if (!pace_) pace_.emplace(engine.draft() == DraftKind::MTP);
  measure(engine);
  const bool all =
      std::all_of(wanted_.begin(), wanted_.end(), [](const Wanted& w) { return w.ahead.empty(); });
  const int length = pace_->length(static_cast<int64_t>(wanted_.size()));
  const auto start = std::chrono::steady_clock::now();
  std::vector<DraftRequest> requests;
  std::vector<Wanted*> of;
  for (Wanted& w : wanted_) {
    if (!w.ahead.empty()) continue;
    DraftRequest r;
    r.state = &w.sequence->draft;
    r.held = w.sequence->tokens;
    r.next = w.next;
    r.most = std::min<int64_t>(w.most, length);
    r.draw = [&w](std::span<const float> logits, size_t i) { return w.answer->guess(logits, i); };
    requests.push_back(std::move(r));
    of.push_back(&w);
  }
  if (length > 0) engine.guess(requests);
  for (size_t i = 0; i < requests.size(); ++i) of[i]->ahead = std::move(requests[i].guesses);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (all) last_ = {length, seconds.count(), engine.decode_tokens()};
}

void StepRows::place(Wanted& w) {
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

void StepRows::run(Engine& engine) {
  if (engine.drafts()) guess(engine);
  for (Wanted& w : wanted_) place(w);
  sampled_.assign(tokens_.size(), kNotSampled);
  const auto start = std::chrono::steady_clock::now();
  try {
    engine.step(sequences_, tokens_, samples_.data(), sampled_.data(),
                [this](int64_t row) { draws_[row].answer->find_mask(draws_[row].ahead); });
  } catch (...) {
    last_.reset();
    throw;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (last_) last_->seconds += seconds.count();
}

}  // namespace riffle
