#include "engine/step_rows.h"

#include <algorithm>

namespace riffle {

void StepRows::begin(size_t n, int64_t max_ahead) {
  left_ = n;
  left_ahead_ = max_ahead;
  first_.clear();
  sequences_.clear();
  tokens_.clear();
  samples_.clear();
  draws_.clear();
}

void StepRows::add(const Engine& engine, Sequence& s, Answer& answer, Proposer* proposer,
                   int32_t next) {
  first_.push_back(tokens_.size());
  tokens_.push_back(next);
  // Takes an equal part of what is left, so that the first sequences do not take all of it.
  const auto sequences = static_cast<int64_t>(left_--);
  const int64_t part = (left_ahead_ + sequences - 1) / sequences;
  const int64_t most = std::min({part, engine.room_ahead(s), answer.room_ahead()});
  if (proposer) proposer->propose(s.tokens, next, most, tokens_);
  const size_t ahead = first_.back() + 1;
  tokens_.resize(ahead + answer.allow_ahead(std::span(tokens_).subspan(ahead)));
  const size_t rows = tokens_.size() - first_.back();
  left_ahead_ -= static_cast<int64_t>(rows - 1);
  sequences_.resize(tokens_.size(), &s);
  for (size_t i = 0; i < rows; ++i) {
    samples_.push_back(answer.request(i));
    draws_.push_back({&answer, i});
  }
}

void StepRows::run(Engine& engine) {
  sampled_.assign(tokens_.size(), kNotSampled);
  engine.step(sequences_, tokens_, samples_.data(), sampled_.data(),
              [this](int64_t row) { draws_[row].answer->find_mask(draws_[row].ahead); });
}

}  // namespace riffle
