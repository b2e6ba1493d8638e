// What `riffle eval` counts for each setting, and the tables and JSON it makes of that. (--compare:
// measure/commands/eval/compare.h.)
#pragma once
#include <array>
#include <string>
#include <vector>

#include "cli/common.h"
#include "measure/commands/eval/settings.h"
#include "measure/commands/eval/tasks.h"
#include "riffle_measure.h"

namespace riffle::eval {

// a / b; NaN where nothing was counted.
double ratio(double a, double b);
// With so many decimals; "-" for NaN.
std::string fixed(double value, int decimals);

// What reading the KV cost: counters of the library and of its report.
struct Usage {
  uint64_t steps = 0, blocks_total = 0, blocks_read = 0, tokens_total = 0, tokens_read = 0,
           kv_bytes_read = 0;
  uint64_t index_bytes_read = 0, selections = 0, cached_selections = 0;
  uint64_t pool_lookups = 0, pool_hits = 0, loaded_bytes = 0;
  double seconds = 0;  // of decode steps, row reports included
  // By layer: tokens held, tokens read, blocks read, (step, KV head) pairs.
  std::vector<uint64_t> layer_total, layer_read, layer_blocks, layer_rows;
  std::vector<float> coverage;         // of every step, layer and query head
  std::vector<double> layer_coverage;  // sum by layer
  std::vector<uint64_t> layer_heads;   // terms of that sum

  void add(const cli::Facts& stats);
  void add(const riffle_row_report& report);
  void add(const Usage& other);
  // Percentages and means are NaN where nothing was counted.
  double read_pct() const;  // tokens
  double bytes_read_pct()
      const;  // of the KV attended to and of what was read to choose it, over all KV
  double blocks_read_pct() const;
  double pool_hit_pct() const;
  double reused_pct() const;  // NaN where no selection was an earlier step's
  double ms_per_step() const;
  double kv_bytes_per_step() const;  // K and V attended to
  double host_bytes_per_step()
      const;  // of these, what came from host memory: all, or what a pool did not hold
  double index_bytes_per_step() const;  // read to choose them
  double coverage_mean() const;
  double coverage_p1() const;  // 1st percentile
  std::vector<double> layer_read_pct() const;
  cli::Json json() const;
};

// Marks of the questions of one task. "sparse" is the setting of the row.
struct Marks {
  int n = 0, dense = 0, sparse = 0,
      both = 0;            // questions; answered rightly dense, sparse, both ways
  int dense_in_order = 0;  // dense, and in the reference's very words

  void add(const Marks& m);
  double kept() const;  // share of the dense-right answers that stay right
  cli::Json json() const;
};

// 95% intervals, in percent where the value is.
struct Interval {
  double low, high;
  std::string text(int decimals) const;  // "98.1-100"; "-" for NaN
};
Interval share_interval(double successes,
                        double n);  // of a share, in percent (Wilson's score interval)

// How a setting agrees with dense attention along the dense answers: what it would have said at
// each of their steps.
struct Agreement {
  uint64_t answers = 0, identical = 0;  // identical: the setting gives the very same text
  uint64_t same = 0;                    // steps whose most likely token is the dense one's
  uint64_t until_parting = 0;     // steps before the first other token, or of the whole answer
  std::vector<float> divergence;  // of each step: Kullback-Leibler, from dense, in nats

  void add(const Agreement& other);
  // NaN where nothing was counted.
  double same_pct() const;
  Interval same_interval() const;  // of same_pct
  double identical_pct() const;
  double tokens_until_parting() const;  // mean over answers
  double tokens() const;                // of a dense answer, mean
  double divergence_mean() const;
  double divergence_p99() const;  // 99th percentile
  cli::Json json() const;
};

// Half the width of the interval of a mean, from the sums of n values and of their squares (normal
// approximation).
double mean_error(double sum, double squares, double n);

// One setting at one length.
struct Row {
  Setting setting;
  int length = 0;
  std::array<Marks, kTasks> tasks;
  Usage answers, text;  // of answering; of reading held-out text token by token
  uint64_t text_tokens = 0;
  double text_nll_dense = 0, text_nll_sparse = 0;  // sums
  double text_nll_squares = 0;                     // of their differences by token
  Agreement agreement;
  double seconds = 0;  // all time spent on this row

  int asked() const;  // questions of all tasks
  Marks total()
      const;  // of the questions that have a right answer; the others count for agreement alone
  double text_nll_increase() const;  // per token, over dense
  double text_nll_error() const;     // of that, 95%
  Interval kept_interval() const;    // of the share of answers kept
  cli::Json json() const;
};

// The rows of one length (the first is dense): one table of totals, one of right answers by task
// with their 95% intervals (Wilson); "-2": two of the answers that are right when dense are not.
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

// Dense accuracy by task, one line per length, beside reference figures if given: {"tasks":
// {"passkey@1024": 1.0, ...}, "nll": {"0-1024": 3.44, ...}}. The reference's magic answers were
// marked in order, so ours in order stand beside them.
std::string dense_text(const std::vector<Row>& rows, const std::vector<PositionBucket>& buckets,
                       const cli::Json& reference);

// Whether two shares, of n and m cases, differ by more than chance (2.6 standard errors of the
// pooled share).
bool shares_differ(double a, int n, double b, int m);

}  // namespace riffle::eval
