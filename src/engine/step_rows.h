// The rows of one step of several answers: each sequence's next token, followed by the tokens that
// its proposer expects.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/proposer.h"

namespace riffle {

class StepRows {
 public:
  // Begins the rows of a step of n sequences, with at most max_ahead proposed tokens in all.
  void begin(size_t n, int64_t max_ahead);
  // Called n times, each for another sequence. proposer: of the answer; may be null.
  void add(const Engine& engine, Sequence& sequence, Answer& answer, Proposer* proposer,
           int32_t next);
  void run(Engine& engine);

  // Returns the token that the device drew after the i-th sequence's next token.
  int32_t& sampled(size_t i) { return sampled_[first_[i]]; }
  size_t size() const { return tokens_.size(); }

 private:
  size_t left_ = 0;         // sequences that are still to come
  int64_t left_ahead_ = 0;  // proposed tokens that may still come
  std::vector<size_t> first_;
  std::vector<Sequence*> sequences_;
  std::vector<int32_t> tokens_, sampled_;
  std::vector<SampleRequest> samples_;
  struct Draw {
    Answer* answer;
    size_t ahead;  // draws of the answer before this one
  };
  std::vector<Draw> draws_;  // by row
};

}  // namespace riffle
