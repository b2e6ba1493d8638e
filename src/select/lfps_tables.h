// The score tables of LFPS (Learn From the Past for Sparse indexing; algorithms.md 6) of one KV
// head: how much weight past queries gave to each position (vertical, V) and to each distance
// (slash, S), fading with every step.
//
// [P] the tables, their start (4), decay and update (10), thresholds from mean, kurtosis and alpha
// (7, 8), expansion (9). [I] S is indexed by distance, so that a step needs no shift; rows are KV
// heads, weights their group's mean; the form of the threshold; and the state below, by which a
// step costs what its candidates cost and not what the context is long:
//   decay        a factor c that all stored values share: true value = c * stored. Tables are gone
//   through to take it
//                in only when it nears float's limits, once in log(1e-30) / log(decay) active steps
//                (1,347 at 0.95).
//   moments      power sums of the stored values, to the fourth, kept up with every stored value
//   that changes. thresholds   are never below a table's mean, so only live entries are looked at:
//   a list of those above 0.9 of it.
//                An entry that fades drops out, one that an update lifts comes in. Should the mean
//                fall below what the list holds (the context grew by a tenth and more without an
//                active step, or was cut), the list is made anew.
//   candidates   are marked in bitmaps over positions (16 KB each at 128K tokens), in which
//   neighbours and duplicates
//                of both tables cost nothing.
//   undo         what the last update changed is kept: a step may fail after it, and is then taken
//   back (truncate).
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/cpu/select/score_table.h"

namespace riffle {

class LfpsTables {
 public:
  static constexpr int kSinks = 4;    // [P] first tokens, which are no part of the tables
  static constexpr int kRecent = 16;  // [I] last tokens, always candidates: so new tokens come in

  // Bitmaps over positions that one call needs at a time, a word of padding before the first:
  // touched by the last update, and as LfpsTables::scan says. Apart from the tables, so that those
  // of a layer find them in the cache.
  struct Scratch {
    std::vector<uint64_t> touched, above, marked;
  };

  explicit LfpsTables(cpu::Isa isa = cpu::best_isa()) : kernels_(cpu::score_table_kernels(isa)) {}

  // Space for n_ctx tokens (not touched).
  void reserve(int64_t n_ctx);
  void clear();

  // (4) Starts from weights of earlier queries; n tokens are held, the last query is at position n
  // - 1. add() for each query's group-mean weights over positions kSinks..at (their sum is 1), then
  // begin() with the decay.
  void start(int64_t n);
  // The same where the tables hold something already: of it the share `keep` (less than 1) stays,
  // and the weights that `queries` calls of add() give fill up the rest, so that the sums stay.
  // [I]: decay^m for a prompt of m tokens goes on from what there was as m steps would: it is (10)
  // for one token, (4) for many.
  void resume(int64_t n, double keep, int queries, double decay);
  void add(const float* weights, int64_t at);  // weights[i - kSinks] of position i
  void begin(double decay);

  // The context holds n tokens: new positions and distances have no score yet.
  void grow(int64_t n);
  // It holds no more than n. Where scores come from beyond, the last update is undone; false if
  // that does not take all of it back: entries that have been added up cannot be told apart, so the
  // tables are empty.
  bool truncate(int64_t n);

  // (10) A step at position t = n - 1 gave the weights w[i] (sum 1) to the positions ids[i] >=
  // kSinks (all different).
  void update(double decay, int64_t t, const int32_t* ids, const float* w, int n);

  // (7) to (9): candidates in kSinks..t - kRecent for a step at position t, ascending. rate > 0
  // [I]: in place of thresholds and expansion, the rate * (t + 1 - kSinks) tokens with the largest
  // max(V, S).
  void prepare(int64_t t, double alpha, double rate, Scratch& scratch, std::vector<int32_t>& out);

  // What follows from (8) for a step at position t. Infinite where a table is flat.
  struct Thresholds {
    double v, s;            // of I_init
    double v_mean, s_mean;  // of the expansion
  };
  Thresholds thresholds(int64_t t, double alpha) const;

  // (6) in logs: the sinks' share of the weight, where the others hold what the larger of two
  // estimates says. In [0, 1].
  static float sink_share(float sinks, float global, float local);

  int64_t size() const { return n_; }
  int64_t learnt() const { return learnt_; }  // tokens held when the last scores came in
  double vertical(int64_t i) const { return c_ * v_.stored[i]; }
  double slash(int64_t distance) const { return c_ * s_.stored[distance]; }
  double sum_vertical() const { return c_ * v_.power[0]; }
  double sum_slash() const { return c_ * s_.power[0]; }
  int64_t live() const { return v_.n_live + s_.n_live; }  // entries a step looks at
  uint64_t bytes() const;
  static uint64_t table_bytes(int64_t n_tokens);  // of that, what does not depend on the scores

 private:
  static constexpr int64_t kPadding = 1;  // words before position 0 in the bitmaps

  struct Table {
    explicit Table(bool distance) : by_distance(distance) {}
    bool by_distance;
    std::vector<float> stored;
    // All entries with stored > floor, in no order: the first n_live, with room behind them. After
    // an update those of the positions it lifted are out of date: the next pass drops them, and
    // takes in n_lifted, their successors.
    std::vector<int32_t> index;
    std::vector<float> value;
    int64_t n_live = 0, n_lifted = 0;
    double power[4] = {};  // sums of stored^1 to ^4
    float floor = 0;

    void clear();
    void count();             // power, anew
    void list(double least);  // live, anew: above `least`
    void make_room(int64_t n);
  };
  struct Moments {
    double mean, sd, kurtosis;  // of stored values; sd 0: flat
  };
  Moments moments(const Table& table, int64_t n) const;  // over n tokens
  double start_scale(int queries, double decay) const;
  void rescale();
  void scan(Table& table, int64_t t, float least, float most, Scratch& scratch) const;
  void settle(const Scratch& scratch);  // lifted into live
  void touch(Scratch& scratch) const;
  void undo();  // the last update, in stored values
  void rated(int64_t t, int64_t want, const Scratch& scratch, std::vector<int32_t>& out);

  const cpu::ScoreTableKernels* kernels_;
  int64_t n_ = 0;  // tokens
  int64_t learnt_ = 0;
  double c_ = 1;     // true = c_ * stored
  int queries_ = 0;  // added since start
  double keep_ = 0;  // of resume
  Table v_{false}, s_{true};
  int64_t updated_at_ = -1;  // the step whose entries are in lifted; -1: none are
  struct {
    int64_t t = -1;  // of the last update; -1: none. What it changed, as it was before:
    int64_t learnt = 0;
    double c = 1;
    std::vector<int32_t> ids;
    std::vector<float> before;  // their entries in V, then in S
    std::vector<float> v, s;    // all entries, if they were rescaled
  } undo_;
  std::vector<uint64_t> keys_;  // of rated()
};

}  // namespace riffle
