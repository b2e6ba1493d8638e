// Lookup speculation (prompt lookup): text that an answer quotes is already in its prompt. Where
// the last tokens stood before, what followed them there is computed ahead as rows of one step, and
// tokens that are then drawn as computed need no step of their own. The method follows Saxena,
// "Prompt Lookup Decoding" (2023), and LLMA (arXiv 2304.04487).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/answer.h"
#include "engine/engine.h"

namespace riffle {

// Finds where the last tokens of a sequence stood before.
class Lookup {
 public:
  // Appends at most `most` tokens to out, which are likely to follow `next`. held: the sequence's
  // tokens, which `next` follows. Between two calls held only grows.
  void propose(std::span<const int32_t> held, int32_t next, int64_t most,
               std::vector<int32_t>& out);

 private:
  // The longest and the shortest run of tokens that is looked up. A single token stands in too many
  // places to say what follows.
  static constexpr int kLongest = 4, kShortest = 2, kRuns = kLongest - kShortest + 1;

  void index(std::span<const int32_t> held);
  uint32_t& place(int run, std::span<const int32_t> tokens);

  // [kRuns][2^bits_]: by a hash of the tokens, 1 + the place of the last token of a run, the latest
  // of those with this hash; 0: none. What another run has overwritten is not found.
  std::vector<uint32_t> places_;
  int bits_ = 0;
  size_t indexed_ = 0;  // runs that end before this are in places_
};

// The rows of one step of several answers: each sequence's next token, and behind it what its
// lookup proposes.
class StepRows {
 public:
  // Begins the rows of a step of n sequences, with at most max_ahead proposed tokens in all.
  void begin(size_t n, int64_t max_ahead);
  // Called n times, each for another sequence.
  void add(const Engine& engine, Sequence& sequence, Answer& answer, Lookup& lookup, int32_t next);
  void run(Engine& engine);

  // Of the i-th sequence: what the device drew after its next token.
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

// Throws if these settings cannot compute tokens ahead. lookup: of ContextOptions.
void check_lookup(int lookup, const Selector& selector);

}  // namespace riffle
