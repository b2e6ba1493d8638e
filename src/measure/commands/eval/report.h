// Counts of `riffle eval` for each setting, and their tables and JSON.
// measure/commands/eval/compare.h has --compare.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "cli/common.h"
#include "measure/commands/eval/settings.h"
#include "measure/commands/eval/tasks.h"
#include "riffle_measure.h"

namespace riffle::eval {

// Returns a / b; NaN if nothing was counted (b is 0).
double ratio(double a, double b);
// Returns the value with this number of decimals; "-" for NaN.
std::string fixed(double value, int decimals);

// Cost of reading the KV: counters of the library and of its row reports.
struct Usage {
  uint64_t steps = 0, blocks_total = 0, blocks_read = 0, tokens_total = 0, tokens_read = 0,
           kv_bytes_read = 0;
  uint64_t index_bytes_read = 0, selections = 0, cached_selections = 0;
  uint64_t pool_lookups = 0, pool_hits = 0, loaded_bytes = 0;
  double seconds = 0;  // seconds of decode steps, row reports included
  // By layer: tokens held, tokens read, blocks read, (step, KV head) pairs.
  std::vector<uint64_t> layer_total, layer_read, layer_blocks, layer_rows;
  std::vector<float> coverage;         // coverage of every step, layer and query head
  std::vector<double> layer_coverage;  // sum by layer
  std::vector<uint64_t> layer_heads;   // terms of that sum

  void add(const cli::Facts& stats);
  void add(const riffle_row_report& report);
  void add(const Usage& other);
  // Percentages and means are NaN if nothing was counted.
  double read_pct() const;        // tokens
  double bytes_read_pct() const;  // KV attended to plus data read to choose it, over all KV
  double blocks_read_pct() const;
  double pool_hit_pct() const;
  double reused_pct() const;  // NaN if no selection was reused from an earlier step
  double ms_per_step() const;
  double kv_bytes_per_step() const;  // K and V attended to
  double host_bytes_per_step()
      const;  // the part of it from host memory: all, or the part that was not in the pool
  double index_bytes_per_step() const;  // data read to choose it
  double coverage_mean() const;
  double coverage_p1() const;  // 1st percentile
  std::vector<double> layer_read_pct() const;
  cli::Json json() const;
};

// Marks of the questions of one task. "sparse" means the setting of the row.
struct Marks {
  int n = 0, dense = 0, sparse = 0,
      both = 0;            // questions; right answers: dense, sparse, both
  int dense_in_order = 0;  // dense answers in exactly the reference's words

  void add(const Marks& m);
  double kept() const;  // share of the answers right with dense attention that stay right
  cli::Json json() const;
};

// A 95% interval, in percent if the value is.
struct Interval {
  double low, high;
  std::string text(int decimals) const;  // "98.1-100"; "-" for NaN
};
Interval share_interval(double successes,
                        double n);  // interval of a share, in percent (Wilson's score interval)

// Agreement of a setting with dense attention over the steps of dense answers: compares the token
// that the setting would have drawn at each step.
struct Agreement {
  uint64_t answers = 0, identical = 0;  // identical: the setting gives exactly the same text
  uint64_t same = 0;                    // steps whose most likely token is that of dense attention
  uint64_t until_parting = 0;           // steps before the first different token, or all steps
  std::vector<float> divergence;  // Kullback-Leibler divergence of each step, from dense, in nats

  void add(const Agreement& other);
  // These are NaN if nothing was counted.
  double same_pct() const;
  Interval same_interval() const;  // interval of same_pct
  double identical_pct() const;
  double tokens_until_parting() const;  // mean over answers
  double tokens() const;                // mean tokens of a dense answer
  double divergence_mean() const;
  double divergence_p99() const;  // 99th percentile
  cli::Json json() const;
};

// Returns half the width of the 95% interval of a mean, from the sums of n values and of their
// squares (normal approximation).
double mean_error(double sum, double squares, double n);

// One setting at one length.
struct Row {
  Setting setting;
  int length = 0;
  std::array<Marks, kTasks> tasks;
  Usage answers, text;  // cost of answers; cost of reading held-out text token by token
  uint64_t text_tokens = 0;
  double text_nll_dense = 0, text_nll_sparse = 0;  // sums
  double text_nll_squares = 0;                     // squares of their differences by token
  Agreement agreement;
  int64_t tiles_seen = 0,
          tiles_read = 0;  // key tiles of prompts that chose tiles; 0: dense prompts
  double seconds = 0;      // all time spent on this row

  int asked() const;  // questions of all tasks
  Marks total()
      const;  // sum over the tasks that have a right answer; others count only for agreement
  double text_nll_increase() const;  // per token, over dense
  double tiles_pct() const;          // percent of those tiles that were read; NaN: dense prompts
  double text_nll_error() const;     // half the width of its 95% interval
  Interval kept_interval() const;    // interval of the share of answers kept
  cli::Json json() const;
};

// Returns the rows of one length (the first is dense): a table of totals, and a table of right
// answers by task with their 95% intervals (Wilson). "-2" there means that two answers right with
// dense attention are wrong.
std::string rows_text(const std::vector<Row>& rows);

// ---- dense scores

// Held-out nll by position in the segment.
struct PositionBucket {
  int begin, end;
  double sum = 0;
  uint64_t n = 0;
  std::string name() const;  // "0-1024"
};
std::vector<PositionBucket> position_buckets(int segment);

// Returns dense accuracy by task, one line per length, next to reference figures if given:
// {"tasks": {"passkey@1024": 1.0, ...}, "nll": {"0-1024": 3.44, ...}}. The reference's magic
// answers are right only in order, so the table compares the share of answers in order.
std::string dense_text(const std::vector<Row>& rows, const std::vector<PositionBucket>& buckets,
                       const cli::Json& reference);

// Tells whether two shares, of n and m cases, differ by more than chance (2.6 standard errors,
// computed from the pooled share).
bool shares_differ(double a, int n, double b, int m);

}  // namespace riffle::eval
