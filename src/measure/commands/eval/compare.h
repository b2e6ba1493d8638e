// `riffle eval --compare`: what all settings cost and kept, beside each other. Tables and JSON;
// pictures: measure/commands/eval/html.h.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "measure/commands/eval/heatmap.h"
#include "measure/commands/eval/report.h"

namespace riffle::eval {

// A figure of a row. A further one needs only a line in columns(): tables, JSON and the report take
// what stands there.
struct Column {
  enum class Form { COUNT, PERCENT, NLL, DIVERGENCE, SHARE, TOKENS, BYTES, MS };
  const char* key;    // in JSON
  const char* title;  // of the table's column; empty: in JSON and on hover alone
  Form form;
  double (*value)(const Row& row);  // NaN: not measured
  const char* meaning;
  Interval (*interval)(const Row& row) = nullptr;  // of a percentage: shown behind it

  std::string text(const Row& row) const;
};
const std::vector<Column>& columns();

// One curve: the rows of one length whose settings differ in one number.
struct Series {
  std::string name;              // "psa stop=veto"
  std::string selector;          // "psa"
  std::vector<const Row*> rows;  // in the order they were asked for
};
// In order of appearance, dense left out.
std::vector<Series> series_of(const std::vector<Row>& rows, int length);
std::vector<int> lengths_of(const std::vector<Row>& rows);

// What a selector, or one of its series, must read to keep a share of the dense answers: the
// smallest KV read among the settings that were run and keep it. Nothing is interpolated.
struct EqualAccuracy {
  struct Goal {
    int percent;             // of the answers that are right when dense
    const Row* best;         // null: no setting keeps so many
    double to_topk, to_psa;  // its KV read over theirs for the same goal; NaN where either has none
  };
  int length;
  std::string name, selector;
  bool is_series;  // of a selector that has several
  std::vector<Goal> goals;
};
inline constexpr int kGoals[] = {95, 98, 100};
// The setting that did it, without what name says already; "-": none.
std::string setting_of(const EqualAccuracy& equal, const EqualAccuracy::Goal& goal);
std::vector<EqualAccuracy> equal_accuracy(const std::vector<Row>& rows);

// A row's line and the line that closes a comparison.
cli::Json compare_row_json(const Row& row);
cli::Json summary_json(const std::vector<Row>& rows);

// All rows in one table, the paper's defaults marked with '*', and the table of equal accuracy.
std::string compare_text(const std::vector<Row>& rows);

}  // namespace riffle::eval
