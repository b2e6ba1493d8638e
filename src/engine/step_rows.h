// The rows of one step of several answers: each sequence's next token, followed by the tokens that
// are expected after it. These come from a lookup or, where it finds nothing, from the model's MTP
// layer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/proposer.h"

namespace riffle {

class StepRows {
 public:
  // Begins the rows of a step of n sequences, with at most max_ahead expected tokens in all.
  void begin(size_t n, int64_t max_ahead);
  // Called n times, each for another sequence. proposer: of the answer; may be null. All must live
  // until `run` ends.
  void add(const Engine& engine, Sequence& sequence, Answer& answer, Proposer* proposer,
           int32_t next);
  void run(Engine& engine);

  // Returns the token that the device drew after the i-th sequence's next token.
  int32_t& sampled(size_t i) { return sampled_[wanted_[i].first]; }

 private:
  // A sequence of the step.
  struct Wanted {
    Sequence* sequence;
    Answer* answer;
    int32_t next;
    int64_t room;                     // expected tokens that it may have
    std::vector<int32_t> ahead = {};  // those that are expected
    size_t first = 0;                 // its first row
  };

  void guess(Engine& engine);
  void place();
  void step(Engine& engine);

  size_t left_ = 0;           // sequences that are still to come
  int64_t left_ahead_ = 0;    // expected tokens that may still come
  int64_t left_lookup_ = -1;  // those of them that lookups may find; -1: all that the engine allows
  std::vector<Wanted> wanted_;
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
