// The score tables of LFPS (Learn From the Past for Sparse indexing, arXiv 2506.15704; README.md)
// of one KV head. They hold how much weight past queries gave to each position (vertical, V) and to
// each distance (slash, S). Scores fade with every step. Numbers in brackets are the paper's
// formulas.
//
// [P] the tables, their start (4), decay and update (10), thresholds from mean, kurtosis and alpha
// (7, 8), expansion (9).
// [I] S is indexed by distance, so that a step needs no shift. A row is a KV head, and its weights
// are the mean of its query heads. The form of the threshold is ours.
// [I] The state below, which makes the cost of a step depend on its candidates, not on the context:
//
// clang-format off
//   decay       a factor c that all stored values share: true value = c * stored. The tables are
//               multiplied by c only when c nears the limits of float, once in
//               log(1e-30) / log(decay) active steps (1,347 at 0.95).
//   moments     power sums of the stored values, up to the fourth, updated with every change.
//   thresholds  are never below a table's mean, so a step looks at live entries only: a list of
//               entries above 0.9 of the mean. An entry that fades below leaves the list; one that
//               an update lifts above enters it. The list is rebuilt if the mean falls below the
//               list's least score: after the context grew by a tenth without an active step, or
//               was cut.
//   candidates  are marked in bitmaps over positions (16 KB each at 128K tokens), which merge
//               neighbours and duplicates of both tables.
//   undo        the last update, so that truncate can take back a step that failed.
// clang-format on
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/select/papers/score_table.h"

namespace riffle {

class LfpsTables {
 public:
  static constexpr int kSinks = 4;    // [P] first tokens, not part of the tables
  static constexpr int kRecent = 16;  // [I] last tokens: always candidates, so new tokens get in

  // Bitmaps over positions for one call, each with a word of padding before position 0: positions
  // that the last update touched, and those that LfpsTables::scan marks. They are not part of a
  // table, so that all tables of a layer use the same memory and find it in the cache.
  struct Scratch {
    std::vector<uint64_t> touched, above, marked;
  };

  explicit LfpsTables(cpu::Isa isa = cpu::best_isa()) : kernels_(cpu::score_table_kernels(isa)) {}

  // Reserves space for n_ctx tokens, without touching it.
  void reserve(int64_t n_ctx);
  void clear();

  // (4) Starts from the weights of earlier queries. n tokens are held, and the last query is at
  // position n - 1. Call add() for each query with its group-mean weights over positions
  // kSinks..at (their sum is 1), then begin() with the decay.
  void start(int64_t n);
  // Starts with tables that already hold scores. The share `keep` (less than 1) of the scores
  // stays, and the weights of `queries` calls of add() make up the rest, so the sums do not change.
  // [I] With keep = decay^m, a prompt of m tokens fades the old scores as m steps would. That is
  // (10) for one token and (4) for many.
  void resume(int64_t n, double keep, int queries, double decay);
  void add(const float* weights, int64_t at);  // weights[i - kSinks] of position i
  void begin(double decay);

  // Called when the context holds n tokens: new positions and distances have no score yet.
  void grow(int64_t n);
  // Cuts the context to n tokens. If scores came from later tokens, the last update is undone.
  // Returns false, with empty tables, if scores from later tokens are left: scores that were added
  // up cannot be separated.
  bool truncate(int64_t n);

  // Called before saving. After: the last update cannot be undone, and all data that follows from
  // the scores is rebuilt.
  void settle();
  // Returns the [n] scores of V (0) or S (1). Requires: the tables are settled.
  std::span<const float> values(int which) const { return which ? s_.stored : v_.stored; }
  // Restores settled tables of n tokens. Requires: the scores are finite and not negative.
  void load(int64_t n, int64_t learnt, std::span<const float> v, std::span<const float> s);

  // (10) Adds a step at position t = n - 1, which gave the weights w[i] (sum 1) to the positions
  // ids[i] >= kSinks (all different).
  void update(double decay, int64_t t, const int32_t* ids, const float* w, int n);

  // (7) to (9) Finds the candidates in kSinks..t - kRecent for a step at position t, ascending.
  void prepare(int64_t t, double alpha, Scratch& scratch, std::vector<int32_t>& out);

  // The thresholds (8) of a step at position t. Infinite for a flat table.
  struct Thresholds {
    double v, s;            // thresholds of I_init
    double v_mean, s_mean;  // thresholds of the expansion
  };
  Thresholds thresholds(int64_t t, double alpha) const;

  // (6) Returns the sinks' share of the weight, in [0, 1]. The weight of the other tokens is the
  // larger of two estimates. All arguments are logarithms.
  static float sink_share(float sinks, float global, float local);

  int64_t size() const { return n_; }
  int64_t learnt() const { return learnt_; }  // tokens held at the last update
  double vertical(int64_t i) const { return c_ * v_.stored[i]; }
  double slash(int64_t distance) const { return c_ * s_.stored[distance]; }
  double sum_vertical() const { return c_ * v_.power[0]; }
  double sum_slash() const { return c_ * s_.power[0]; }
  int64_t live() const { return v_.n_live + s_.n_live; }  // entries that a step reads
  uint64_t bytes() const;
  static uint64_t table_bytes(int64_t n_tokens);  // the part that does not depend on the scores

 private:
  static constexpr int64_t kPadding = 1;  // words before position 0 in the bitmaps

  struct Table {
    explicit Table(bool distance) : by_distance(distance) {}
    bool by_distance;
    std::vector<float> stored;
    // The first n_live hold all entries with stored > floor, in any order, with room after them.
    // After an update, the entries of the positions that it changed are out of date. The next scan
    // drops them and takes in the n_lifted new ones.
    std::vector<int32_t> index;
    std::vector<float> value;
    int64_t n_live = 0, n_lifted = 0;
    double power[4] = {};  // sums of stored^1 to ^4
    float floor = 0;

    void clear();
    void count();             // computes power from all entries
    void list(double least);  // lists the entries above `least` as live
    void make_room(int64_t n);
  };
  struct Moments {
    double mean, sd, kurtosis;  // moments of stored values; sd 0: flat
  };
  Moments moments(const Table& table, int64_t n) const;  // moments over n tokens
  double start_scale(int queries, double decay) const;
  void rescale();
  void scan(Table& table, int64_t t, float least, float most, Scratch& scratch) const;
  void drop_lift(const Scratch& scratch);  // moves lifted entries to the live ones
  void touch(Scratch& scratch) const;
  void undo();  // undoes the last update

  const cpu::ScoreTableKernels* kernels_;
  int64_t n_ = 0;  // tokens
  int64_t learnt_ = 0;
  double c_ = 1;     // true value = c_ * stored
  int queries_ = 0;  // calls of add since start
  double keep_ = 0;  // as given to resume
  Table v_{false}, s_{true};
  int64_t updated_at_ = -1;  // step whose lifted entries are not live yet; -1: none
  struct {
    int64_t t = -1;  // position of the last update; -1: none. The rest is as before that update:
    int64_t learnt = 0;
    double c = 1;
    std::vector<int32_t> ids;
    std::vector<float> before;  // entries of ids in V, then in S
    std::vector<float> v, s;    // all entries, if the update rescaled them
  } undo_;
};

}  // namespace riffle
