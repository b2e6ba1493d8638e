// `riffle eval --compare`: cost and kept answers of all settings, side by side, as tables and JSON.
// measure/commands/eval/html.h has the pictures.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "measure/commands/eval/heatmap.h"
#include "measure/commands/eval/report.h"

namespace riffle::eval {

// A figure of a row. A new figure needs only a line in columns(): tables, JSON and the report take
// it from there.
struct Column {
  enum class Form { COUNT, PERCENT, NLL, DIVERGENCE, SHARE, TOKENS, BYTES, MS };
  const char* key;    // in JSON
  const char* title;  // title of the table's column; empty: only in JSON and on hover
  Form form;
  double (*value)(const Row& row);  // NaN: not measured
  const char* meaning;
  Interval (*interval)(const Row& row) = nullptr;  // interval of a percentage, shown after it

  std::string text(const Row& row) const;
};
const std::vector<Column>& columns();

// One curve: the rows of one length whose settings differ in one number.
struct Series {
  std::string name;              // "psa stop=veto"
  std::string selector;          // "psa"
  std::vector<const Row*> rows;  // in the order in which they were asked for
};
// Returns the series of a length in order of appearance, without dense.
std::vector<Series> series_of(const std::vector<Row>& rows, int length);
std::vector<int> lengths_of(const std::vector<Row>& rows);

// The part of the KV that a selector, or one of its series, must read to keep a share of the dense
// answers: the smallest part read by a setting that was run and keeps them. Nothing is
// interpolated.
struct EqualAccuracy {
  struct Goal {
    int percent;             // percentage to keep of the answers right with dense attention
    const Row* best;         // null: no setting keeps that many
    double to_topk, to_psa;  // its KV read over theirs for the same goal; NaN if either has none
  };
  int length;
  std::string name, selector;
  bool is_series;  // one series of a selector that has several
  std::vector<Goal> goals;
};
inline constexpr int kGoals[] = {95, 98, 100};
// Returns the name of the goal's setting, without the parts that are in the name of equal; "-":
// there is none.
std::string setting_of(const EqualAccuracy& equal, const EqualAccuracy::Goal& goal);
std::vector<EqualAccuracy> equal_accuracy(const std::vector<Row>& rows);

// Return a row's line, and the line that closes a comparison.
cli::Json compare_row_json(const Row& row);
cli::Json summary_json(const std::vector<Row>& rows);

// Returns all rows in one table, the papers' defaults marked with '*', and the table of equal
// accuracy.
std::string compare_text(const std::vector<Row>& rows);

}  // namespace riffle::eval
