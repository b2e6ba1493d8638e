// Settings that `riffle eval` compares, what it counts for each, and the tables and JSON it makes of that.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/eval_tasks.h"

namespace riffle::eval {

struct Setting {
  std::string label;  // "psa epsilon=0.3 stop=veto"
  riffle_selection selection;
};

Setting dense_setting(const riffle_selection& base);
// The one setting that the shared flags describe.
Setting flag_setting(const riffle_selection& base);

// "psa:epsilon=0.3,0.5,stop=veto;topk:budget=0.02,0.05": specs parted by ';', each a selector and pairs of a field of
// riffle_selection and its values; a word without '=' is one more value of the field before it. Several lists in one
// spec give all combinations. What a spec does not say is taken from base. Throws cli::Exit(EXIT_USAGE).
std::vector<Setting> parse_sweep(const std::string& text, const riffle_selection& base);

// What reading the KV cost: counters of the library and of its trace.
struct Usage {
  uint64_t steps = 0, blocks_total = 0, blocks_read = 0, kv_bytes_read = 0;
  uint64_t pool_lookups = 0, pool_hits = 0, loaded_bytes = 0;
  double seconds = 0;  // of decode steps, tracing included
  std::vector<uint64_t> layer_total, layer_read,
      layer_rows;                      // by layer: blocks held, blocks read, (step, KV head) pairs
  std::vector<float> coverage;         // of every step, layer and query head
  std::vector<double> layer_coverage;  // sum by layer
  std::vector<uint64_t> layer_heads;   // terms of that sum

  void add(const riffle_stats& stats);
  void add(const riffle_trace& trace);
  void add(const Usage& other);
  double read_pct() const;  // percentages and means are NaN where nothing was counted
  double pool_hit_pct() const;
  double ms_per_step() const;
  double coverage_mean() const;
  double coverage_p1() const;  // 1st percentile
  std::vector<double> layer_read_pct() const;
  cli::Json json() const;
};

// Marks of the questions of one task. "sparse" is the setting of the row.
struct Marks {
  int n = 0, dense = 0, sparse = 0, both = 0;  // questions; answered rightly dense, sparse, both ways
  int dense_in_order = 0;                      // dense, and with a list's values in the reference's order
  uint64_t tokens = 0;                         // of reference answers, </s> included
  double nll_dense = 0, nll_sparse = 0;        // sums over those tokens, in nats

  void add(const Marks& m);
  double kept() const;  // share of the dense-right answers that stay right
  cli::Json json() const;
};

// One setting at one length.
struct Row {
  Setting setting;
  int length = 0;
  std::array<Marks, kTasks> tasks;
  Usage answers, text;  // of answering; of reading held-out text token by token
  uint64_t text_tokens = 0;
  double text_nll_dense = 0, text_nll_sparse = 0;  // sums
  double seconds = 0;                              // all time spent on this row

  Marks total() const;
  cli::Json json() const;
};

// The rows of one length (the first is dense): one table of totals, one of answers kept by task.
std::string rows_text(const std::vector<Row>& rows);

// ---- dense scores -------------------------------------------------------------------------------------------------

// Held-out nll by position in the window.
struct PositionBucket {
  int begin, end;
  double sum = 0;
  uint64_t n = 0;
  std::string name() const;  // "0-1024"
};
std::vector<PositionBucket> position_buckets(int window);

// Dense accuracy by task, one line per length, beside reference figures if given: {"tasks": {"passkey@1024": 1.0, ...},
// "nll": {"0-1024": 3.44, ...}}. The reference's magic answers were marked in order, so ours in order stand beside
// them.
std::string dense_text(const std::vector<Row>& rows, const std::vector<PositionBucket>& buckets,
                       const cli::Json& reference);

// Whether two shares, of n and m cases, differ by more than chance (2.6 standard errors of the pooled share).
bool shares_differ(double a, int n, double b, int m);

}  // namespace riffle::eval
