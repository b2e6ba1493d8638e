#include "measure/commands/eval/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/args.h"

namespace riffle::eval {
namespace {

using cli::Json;
using cli::number;
using Form = Column::Form;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool keeps(const Row& row, int percent) {
  const Marks m = row.total();
  return m.dense > 0 && 100 * m.both >= percent * m.dense;
}

// Returns the row that reads least among the rows that keep `percent`; the first of equal rows.
const Row* cheapest(const std::vector<const Row*>& rows, int percent) {
  const Row* best = nullptr;
  for (const Row* r : rows) {
    if (!keeps(*r, percent) || std::isnan(r->answers.read_pct())) continue;
    if (!best || r->answers.read_pct() < best->answers.read_pct()) best = r;
  }
  return best;
}

double read_ratio(const Row* row, const Row* to) {
  return row && to ? ratio(row->answers.read_pct(), to->answers.read_pct()) : kNan;
}

std::vector<const Column*> shown_columns(const std::vector<Row>& rows) {
  std::vector<const Column*> shown;
  for (const Column& c : columns()) {
    const bool measured = std::any_of(rows.begin(), rows.end(),
                                      [&](const Row& r) { return !std::isnan(c.value(r)); });
    if (measured && *c.title) shown.push_back(&c);
  }
  return shown;
}

}  // namespace

const std::vector<Column>& columns() {
  static const std::vector<Column> all = {
      {"asked", "asked", Form::COUNT, [](const Row& r) { return double(r.total().n); },
       "questions that have a right answer"},
      {"right", "right", Form::COUNT, [](const Row& r) { return double(r.total().sparse); },
       "questions answered correctly"},
      {"kept_pct", "kept", Form::PERCENT, [](const Row& r) { return 100 * r.total().kept(); },
       "share of the answers right with dense attention that stay right (95% interval, Wilson)",
       [](const Row& r) { return r.kept_interval(); }},
      {"kept_low_pct", "", Form::PERCENT, [](const Row& r) { return r.kept_interval().low; },
       "lower end of its 95% interval (Wilson)"},
      {"kept_high_pct", "", Form::PERCENT, [](const Row& r) { return r.kept_interval().high; },
       "upper end of its 95% interval (Wilson)"},
      {"lost", "lost", Form::COUNT,
       [](const Row& r) { return double(r.total().dense - r.total().both); },
       "right with dense attention, wrong here"},
      {"gained", "gained", Form::COUNT,
       [](const Row& r) { return double(r.total().sparse - r.total().both); },
       "wrong with dense attention, right here"},
      {"kv_read_pct", "KV read", Form::PERCENT, [](const Row& r) { return r.answers.read_pct(); },
       "share of the tokens attended to while answering"},
      {"bytes_read_pct", "+ index", Form::PERCENT,
       [](const Row& r) { return r.answers.bytes_read_pct(); },
       "bytes of the KV attended to and of the data read to choose it, as a share of all KV"},
      {"kv_blocks_read_pct", "blocks", Form::PERCENT,
       [](const Row& r) { return r.answers.blocks_read_pct(); },
       "share of the blocks with at least one token attended to"},
      {"same_first_pct", "same first", Form::PERCENT,
       [](const Row& r) { return r.agreement.same_pct(); },
       "share of the steps of dense answers whose most likely token is that of dense attention "
       "(95% interval, Wilson)",
       [](const Row& r) {
         return share_interval(static_cast<double>(r.agreement.same),
                               static_cast<double>(r.agreement.divergence.size()));
       }},
      {"divergence_mean", "divergence", Form::DIVERGENCE,
       [](const Row& r) { return r.agreement.divergence_mean(); },
       "Kullback-Leibler divergence from dense over the steps of dense answers, nats, mean"},
      {"divergence_p99", "its p99", Form::DIVERGENCE,
       [](const Row& r) { return r.agreement.divergence_p99(); }, "its 99th percentile"},
      {"tokens_until_parting", "same for", Form::TOKENS,
       [](const Row& r) { return r.agreement.tokens_until_parting(); },
       "tokens until the text differs from the dense text, mean over answers"},
      {"answer_tokens", "of", Form::TOKENS, [](const Row& r) { return r.agreement.tokens(); },
       "tokens of a dense answer, mean"},
      {"text_nll_increase", "text nll", Form::NLL,
       [](const Row& r) { return r.text_nll_increase(); },
       "nll of held-out text minus that of dense, nats per token"},
      {"text_nll_error", "", Form::NLL, [](const Row& r) { return r.text_nll_error(); },
       "half the width of its 95% interval (normal approximation)"},
      {"text_kv_read_pct", "text KV read", Form::PERCENT,
       [](const Row& r) { return r.text.read_pct(); },
       "share of the tokens attended to in held-out text"},
      {"coverage_mean", "coverage", Form::SHARE,
       [](const Row& r) { return r.answers.coverage_mean(); },
       "share of the attention weight that was really covered while answering, mean over steps, "
       "layers and query heads"},
      {"coverage_p1", "1%", Form::SHARE, [](const Row& r) { return r.answers.coverage_p1(); },
       "its 1st percentile"},
      {"kv_bytes_per_step", "KV/step", Form::BYTES,
       [](const Row& r) { return r.answers.kv_bytes_per_step(); },
       "K and V attended to per decode step"},
      {"host_bytes_per_step", "host/step", Form::BYTES,
       [](const Row& r) { return r.answers.host_bytes_per_step(); },
       "K and V from host memory per decode step: all, or with a pool the part not in the pool"},
      {"index_bytes_per_step", "index/step", Form::BYTES,
       [](const Row& r) { return r.answers.index_bytes_per_step(); },
       "data read per decode step to choose the KV: digests, codes, keys that are only scored"},
      {"reused_pct", "reused", Form::PERCENT, [](const Row& r) { return r.answers.reused_pct(); },
       "share of selections reused from an earlier step"},
      {"pool_hit_pct", "pool hits", Form::PERCENT,
       [](const Row& r) { return r.answers.pool_hit_pct(); }, "share of blocks found in the pool"},
      {"ms_per_step", "ms/step", Form::MS, [](const Row& r) { return r.answers.ms_per_step(); },
       "time of a decode step, including the measurement of coverage"},
  };
  return all;
}

std::string Column::text(const Row& row) const {
  const double v = value(row);
  if (std::isnan(v)) return "-";
  switch (form) {
    case Form::COUNT: return fixed(v, 0);
    case Form::PERCENT:
      return cli::percent(v) + (interval ? " (" + interval(row).text(1) + ")" : "");
    case Form::NLL: return cli::text_of("%+.4f", v);
    case Form::DIVERGENCE: return fixed(v, 4);
    case Form::SHARE: return fixed(v, 3);
    case Form::TOKENS: return fixed(v, 1);
    case Form::BYTES: return cli::human_bytes(v);
    case Form::MS: return fixed(v, 2);
  }
  return "";
}

std::vector<int> lengths_of(const std::vector<Row>& rows) {
  std::vector<int> lengths;
  for (const Row& r : rows) {
    if (std::find(lengths.begin(), lengths.end(), r.length) == lengths.end())
      lengths.push_back(r.length);
  }
  return lengths;
}

std::vector<Series> series_of(const std::vector<Row>& rows, int length) {
  std::vector<Series> all;
  for (const Row& r : rows) {
    if (r.length != length || r.setting.selection.is("selector", "dense")) continue;
    const auto same = [&](const Series& s) { return s.name == r.setting.series; };
    auto found = std::find_if(all.begin(), all.end(), same);
    if (found == all.end()) {
      all.push_back({r.setting.series, r.setting.selection.text("selector"), {}});
      found = all.end() - 1;
    }
    found->rows.push_back(&r);
  }
  return all;
}

std::vector<EqualAccuracy> equal_accuracy(const std::vector<Row>& rows) {
  std::vector<EqualAccuracy> all;
  for (int length : lengths_of(rows)) {
    const std::vector<Series> series = series_of(rows, length);
    // Every selector with all its settings, in order of appearance.
    std::vector<Series> selectors;
    for (const Series& s : series) {
      const auto same = [&](const Series& other) { return other.selector == s.selector; };
      auto found = std::find_if(selectors.begin(), selectors.end(), same);
      if (found == selectors.end()) {
        selectors.push_back({s.selector, s.selector, {}});
        found = selectors.end() - 1;
      }
      found->rows.insert(found->rows.end(), s.rows.begin(), s.rows.end());
    }
    const auto best_of = [&](const char* selector, int percent) {
      for (const Series& s : selectors) {
        if (s.selector == selector) return cheapest(s.rows, percent);
      }
      return static_cast<const Row*>(nullptr);
    };
    const auto add = [&](const Series& s, bool is_series) {
      EqualAccuracy e{length, s.name, s.selector, is_series, {}};
      for (int percent : kGoals) {
        const Row* best = cheapest(s.rows, percent);
        e.goals.push_back({percent, best, read_ratio(best, best_of("topk", percent)),
                           read_ratio(best, best_of("psa", percent))});
      }
      all.push_back(e);
    };
    for (const Series& selector : selectors) {
      add(selector, false);
      const auto of_it = [&](const Series& s) { return s.selector == selector.selector; };
      if (std::count_if(series.begin(), series.end(), of_it) < 2) continue;
      for (const Series& s : series) {
        if (of_it(s)) add(s, true);
      }
    }
  }
  return all;
}

std::string setting_of(const EqualAccuracy& equal, const EqualAccuracy::Goal& goal) {
  if (!goal.best) return "-";
  const std::string& label = goal.best->setting.label;
  if (equal.is_series && !goal.best->setting.point.empty()) return goal.best->setting.point;
  return label.size() > equal.selector.size() ? label.substr(equal.selector.size() + 1) : label;
}

Json compare_row_json(const Row& row) {
  Json j = row.json();
  j["series"] = row.setting.series;
  j["point"] = row.setting.point;
  j["paper_default"] = row.setting.paper_default;
  for (const Column& c : columns()) j["figures"][c.key] = number(c.value(row));
  return j;
}

Json summary_json(const std::vector<Row>& rows) {
  Json j;
  j["type"] = "summary";
  j["lengths"] = lengths_of(rows);
  for (const Column& c : columns()) j["figures"][c.key] = c.meaning;
  j["equal_accuracy"] = Json::array();
  for (const EqualAccuracy& e : equal_accuracy(rows)) {
    Json one;
    one["length"] = e.length;
    one["selector"] = e.selector;
    one["series"] = e.is_series ? Json(e.name) : Json(nullptr);
    one["goals"] = Json::array();
    for (const EqualAccuracy::Goal& g : e.goals) {
      Json goal;
      goal["kept_at_least_pct"] = g.percent;
      goal["setting"] = g.best ? Json(g.best->setting.label) : Json(nullptr);
      goal["kv_read_pct"] = number(g.best ? g.best->answers.read_pct() : kNan);
      goal["to_topk"] = number(g.to_topk);
      goal["to_psa"] = number(g.to_psa);
      one["goals"].push_back(goal);
    }
    j["equal_accuracy"].push_back(one);
  }
  return j;
}

std::string compare_text(const std::vector<Row>& rows) {
  const std::vector<const Column*> shown = shown_columns(rows);
  std::vector<std::string> header = {"setting", "length"};
  for (const Column* c : shown) header.push_back(c->title);
  cli::Table table(header);
  bool starred = false;
  for (const Row& r : rows) {
    starred |= r.setting.paper_default;
    std::vector<std::string> line = {r.setting.label + (r.setting.paper_default ? " *" : ""),
                                     std::to_string(r.length)};
    for (const Column* c : shown) line.push_back(c->text(r));
    table.add(line);
  }
  std::string text = table.text();
  if (starred) text += "* as its paper runs it\n";

  std::vector<std::string> goals_header = {"KV read to keep", "length"};
  for (int percent : kGoals) {
    const std::string goal = std::to_string(percent) + "%";
    goals_header.insert(goals_header.end(), {goal, ": topk", ": psa", "by"});
  }
  cli::Table goals(goals_header);
  for (const EqualAccuracy& e : equal_accuracy(rows)) {
    std::vector<std::string> line = {(e.is_series ? "  " : "") + e.name, std::to_string(e.length)};
    for (const EqualAccuracy::Goal& g : e.goals) {
      line.insert(line.end(), {g.best ? cli::percent(g.best->answers.read_pct()) : "-",
                               fixed(g.to_topk, 2), fixed(g.to_psa, 2), setting_of(e, g)});
    }
    goals.add(line);
  }
  return text + "\n" + goals.text();
}

}  // namespace riffle::eval
