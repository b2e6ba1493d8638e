#include "measure/commands/eval/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace riffle::eval {
namespace {

using cli::Json;
using cli::number;
using cli::text_of;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr double kZ =
    1.959964;  // 95% of a normal distribution lies within this number of standard deviations

double percentile(std::vector<float> values, double share) {
  const size_t k =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(k), values.end());
  return static_cast<double>(values[k]);
}

template <typename T>
void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace

double ratio(double a, double b) { return b > 0 ? a / b : kNan; }

std::string fixed(double value, int decimals) {
  return std::isnan(value) ? "-" : text_of("%.*f", decimals, value);
}

// ---- counting ----

void Usage::add(const cli::Facts& stats) {
  const auto count = [&](const char* name) { return static_cast<uint64_t>(stats.count(name)); };
  steps += count("decode_steps");
  blocks_total += count("kv_blocks_total");
  blocks_read += count("kv_blocks_read");
  tokens_total += count("kv_tokens_total");
  tokens_read += count("kv_tokens_read");
  index_bytes_read += count("index_bytes_read");
  selections += count("selections");
  cached_selections += count("cached_selections");
  kv_bytes_read += count("kv_bytes_read");
  pool_lookups += count("pool_lookups");
  pool_hits += count("pool_hits");
  loaded_bytes += count("loaded_bytes");
  seconds += stats.number("decode_seconds");
}

void Usage::add(const riffle_row_report& report) {
  const size_t n = static_cast<size_t>(report.layer) + 1, i = n - 1;
  grow(layer_total, n), grow(layer_read, n), grow(layer_blocks, n), grow(layer_rows, n);
  grow(layer_coverage, n), grow(layer_heads, n);
  layer_total[i] += static_cast<uint64_t>(report.n_tokens);
  layer_read[i] += static_cast<uint64_t>(report.n_tokens_read);
  layer_blocks[i] += static_cast<uint64_t>(report.n_read);
  ++layer_rows[i];
  if (!report.coverage) return;
  for (int h = 0; h < report.n_group; ++h) {
    coverage.push_back(report.coverage[h]);
    layer_coverage[i] += report.coverage[h];
    ++layer_heads[i];
  }
}

void Usage::add(const Usage& other) {
  steps += other.steps, blocks_total += other.blocks_total, blocks_read += other.blocks_read;
  tokens_total += other.tokens_total, tokens_read += other.tokens_read;
  index_bytes_read += other.index_bytes_read, selections += other.selections;
  cached_selections += other.cached_selections;
  kv_bytes_read += other.kv_bytes_read, pool_lookups += other.pool_lookups,
      pool_hits += other.pool_hits;
  loaded_bytes += other.loaded_bytes, seconds += other.seconds;
  coverage.insert(coverage.end(), other.coverage.begin(), other.coverage.end());
  const auto sum = [](auto& to, const auto& from) {
    grow(to, from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  sum(layer_total, other.layer_total);
  sum(layer_read, other.layer_read);
  sum(layer_blocks, other.layer_blocks);
  sum(layer_rows, other.layer_rows);
  sum(layer_coverage, other.layer_coverage);
  sum(layer_heads, other.layer_heads);
}

double Usage::read_pct() const {
  return 100 * ratio(static_cast<double>(tokens_read), static_cast<double>(tokens_total));
}
double Usage::bytes_read_pct() const {
  const double bytes_of_token =
      ratio(static_cast<double>(kv_bytes_read), static_cast<double>(tokens_read));
  return 100 * ratio(static_cast<double>(kv_bytes_read + index_bytes_read),
                     static_cast<double>(tokens_total) * bytes_of_token);
}
double Usage::blocks_read_pct() const {
  return 100 * ratio(static_cast<double>(blocks_read), static_cast<double>(blocks_total));
}
double Usage::pool_hit_pct() const {
  return 100 * ratio(static_cast<double>(pool_hits), static_cast<double>(pool_lookups));
}
double Usage::reused_pct() const {
  return cached_selections
             ? 100 * ratio(static_cast<double>(cached_selections), static_cast<double>(selections))
             : kNan;
}
double Usage::index_bytes_per_step() const {
  return ratio(static_cast<double>(index_bytes_read), static_cast<double>(steps));
}
double Usage::ms_per_step() const { return 1e3 * ratio(seconds, static_cast<double>(steps)); }
double Usage::kv_bytes_per_step() const {
  return ratio(static_cast<double>(kv_bytes_read), static_cast<double>(steps));
}
double Usage::host_bytes_per_step() const {
  return ratio(static_cast<double>(pool_lookups > 0 ? loaded_bytes : kv_bytes_read),
               static_cast<double>(steps));
}

double Usage::coverage_mean() const {
  double sum = 0;
  for (float c : coverage) sum += static_cast<double>(c);
  return ratio(sum, static_cast<double>(coverage.size()));
}

double Usage::coverage_p1() const { return coverage.empty() ? kNan : percentile(coverage, 0.01); }

std::vector<double> Usage::layer_read_pct() const {
  std::vector<double> pct;
  for (size_t i = 0; i < layer_total.size(); ++i) {
    pct.push_back(100 *
                  ratio(static_cast<double>(layer_read[i]), static_cast<double>(layer_total[i])));
  }
  return pct;
}

Json Usage::json() const {
  Json j;
  j["steps"] = steps;
  j["kv_read_pct"] = number(read_pct());
  j["bytes_read_pct"] = number(bytes_read_pct());
  j["kv_blocks_total"] = blocks_total;
  j["kv_blocks_read"] = blocks_read;
  j["kv_tokens_total"] = tokens_total;
  j["kv_tokens_read"] = tokens_read;
  j["kv_bytes_read"] = kv_bytes_read;
  j["index_bytes_read"] = index_bytes_read;
  j["selections"] = selections;
  j["cached_selections"] = cached_selections;
  j["pool_hit_pct"] = number(pool_hit_pct());
  j["pool_lookups"] = pool_lookups;
  j["loaded_bytes"] = loaded_bytes;
  j["ms_per_step"] = number(ms_per_step());
  j["coverage_mean"] = number(coverage_mean());
  j["coverage_p1"] = number(coverage_p1());
  j["layers"] = Json::array();
  const std::vector<double> pct = layer_read_pct();
  for (size_t i = 0; i < pct.size(); ++i) {
    Json layer;
    layer["kv_read_pct"] = number(pct[i]);
    layer["kv_blocks_read"] = layer_blocks[i];
    // Mean over steps and KV heads.
    layer["blocks_per_step"] =
        number(ratio(static_cast<double>(layer_blocks[i]), static_cast<double>(layer_rows[i])));
    layer["coverage_mean"] = number(ratio(layer_coverage[i], static_cast<double>(layer_heads[i])));
    j["layers"].push_back(layer);
  }
  return j;
}

void Marks::add(const Marks& m) {
  n += m.n, dense += m.dense, sparse += m.sparse, both += m.both,
      dense_in_order += m.dense_in_order;
}

double Marks::kept() const { return ratio(both, dense); }

Json Marks::json() const {
  Json j;
  j["questions"] = n;
  j["dense_right"] = dense;
  j["sparse_right"] = sparse;
  j["both_right"] = both;
  j["lost"] = dense - both;
  j["gained"] = sparse - both;
  j["kept"] = number(kept());
  const Interval right = share_interval(sparse, n), stay = share_interval(both, dense);
  j["sparse_right_low_pct"] = number(right.low);
  j["sparse_right_high_pct"] = number(right.high);
  j["kept_low_pct"] = number(stay.low);
  j["kept_high_pct"] = number(stay.high);
  j["dense_right_in_order"] = dense_in_order;
  return j;
}

void Agreement::add(const Agreement& other) {
  answers += other.answers, identical += other.identical, same += other.same,
      until_parting += other.until_parting;
  divergence.insert(divergence.end(), other.divergence.begin(), other.divergence.end());
}

double Agreement::same_pct() const {
  return 100 * ratio(static_cast<double>(same), static_cast<double>(divergence.size()));
}
double Agreement::identical_pct() const {
  return 100 * ratio(static_cast<double>(identical), static_cast<double>(answers));
}
double Agreement::tokens_until_parting() const {
  return ratio(static_cast<double>(until_parting), static_cast<double>(answers));
}
double Agreement::tokens() const {
  return ratio(static_cast<double>(divergence.size()), static_cast<double>(answers));
}

double Agreement::divergence_mean() const {
  double sum = 0;
  for (float d : divergence) sum += static_cast<double>(d);
  return ratio(sum, static_cast<double>(divergence.size()));
}

double Agreement::divergence_p99() const {
  return divergence.empty() ? kNan : percentile(divergence, 0.99);
}

Interval Agreement::same_interval() const {
  return share_interval(static_cast<double>(same), static_cast<double>(divergence.size()));
}

Json Agreement::json() const {
  double sum = 0, squares = 0;
  for (float d : divergence)
    sum += static_cast<double>(d), squares += static_cast<double>(d) * static_cast<double>(d);
  const double n = static_cast<double>(divergence.size());
  const Interval interval = same_interval();
  Json j;
  j["answers"] = answers;
  j["identical"] = identical;
  j["steps"] = divergence.size();
  j["same_first_pct"] = number(same_pct());
  j["same_first_low_pct"] = number(interval.low);
  j["same_first_high_pct"] = number(interval.high);
  j["divergence_mean"] = number(divergence_mean());
  j["divergence_error"] = number(mean_error(sum, squares, n));
  j["divergence_p99"] = number(divergence_p99());
  j["tokens_until_parting"] = number(tokens_until_parting());
  j["tokens"] = number(tokens());
  return j;
}

std::string Interval::text(int decimals) const {
  return std::isnan(low) ? "-" : fixed(low, decimals) + "-" + fixed(high, decimals);
}

Interval share_interval(double successes, double n) {
  if (n == 0) return {kNan, kNan};
  const double p = successes / n, scale = 1 + kZ * kZ / n;
  const double centre = (p + kZ * kZ / (2 * n)) / scale;
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / scale;
  // At 0 and 1, rounding must not put the share outside the interval.
  return {100 * std::min(p, std::max(0.0, centre - half)),
          100 * std::max(p, std::min(1.0, centre + half))};
}

double mean_error(double sum, double squares, double n) {
  if (n < 2) return kNan;
  return kZ * std::sqrt(std::max(0.0, squares - sum * sum / n) / (n - 1) / n);
}

int Row::asked() const {
  int n = 0;
  for (const Marks& m : tasks) n += m.n;
  return n;
}

Marks Row::total() const {
  Marks sum;
  for (int t = 0; t < kTasks; ++t)
    if (has_answer(static_cast<Task>(t))) sum.add(tasks[t]);
  return sum;
}

double Row::text_nll_increase() const {
  return ratio(text_nll_sparse - text_nll_dense, static_cast<double>(text_tokens));
}

double Row::tiles_pct() const {
  return 100 * ratio(static_cast<double>(tiles_read), static_cast<double>(tiles_seen));
}

double Row::text_nll_error() const {
  return mean_error(text_nll_sparse - text_nll_dense, text_nll_squares,
                    static_cast<double>(text_tokens));
}

Interval Row::kept_interval() const {
  const Marks m = total();
  return share_interval(m.both, m.dense);
}

Json Row::json() const {
  Json j;
  j["type"] = "row";
  j["length"] = length;
  j["setting"] = setting.label;
  j["selection"] = cli::selection_json(setting.selection);
  j["total"] = total().json();
  Json text_json = text.json();
  text_json["tokens"] = text_tokens;
  text_json["nll_dense"] = number(ratio(text_nll_dense, static_cast<double>(text_tokens)));
  text_json["nll_sparse"] = number(ratio(text_nll_sparse, static_cast<double>(text_tokens)));
  text_json["nll_increase_error"] = number(text_nll_error());
  j["answers"] = answers.json();
  j["agreement"] = agreement.json();
  j["text"] = text_json;
  j["tasks"] = Json::object();
  for (int t = 0; t < kTasks; ++t) {
    if (tasks[t].n > 0) j["tasks"][task_name(static_cast<Task>(t))] = tasks[t].json();
  }
  if (tiles_seen > 0) j["prefill_tiles_read_pct"] = number(tiles_pct());
  j["seconds"] = number(seconds);
  return j;
}

// ---- tables ----

std::string rows_text(const std::vector<Row>& rows) {
  bool covered = false, pooled = false, text = false, tiled = false;
  for (const Row& r : rows) {
    covered |= !r.answers.coverage.empty();
    pooled |= r.answers.pool_lookups > 0;
    text |= r.text_tokens > 0;
    tiled |= r.tiles_seen > 0;
  }
  std::vector<std::string> header = {"setting",    "asked",   "right",      "kept",
                                     "95%",        "KV read", "same first", "same 95%",
                                     "divergence", "its p99", "same for"};
  if (text) header.insert(header.end(), {"text nll", "+", "95%", "KV read"});
  if (covered) header.insert(header.end(), {"coverage", "1%"});
  if (pooled) header.push_back("pool hits");
  if (tiled) header.push_back("tiles");
  header.insert(header.end(), {"ms/step", "s", "KV read % by layer"});
  cli::Table table(header);
  for (const Row& r : rows) {
    const Marks m = r.total();
    const Agreement& a = r.agreement;
    std::vector<std::string> line = {
        r.setting.label,
        std::to_string(m.n),
        std::to_string(m.sparse),
        cli::percent(100 * m.kept()),
        r.kept_interval().text(1),
        cli::percent(r.answers.read_pct()),
        a.answers ? cli::percent(a.same_pct()) : "-",
        a.answers ? a.same_interval().text(1) : "-",
        fixed(a.divergence_mean(), 4),
        fixed(a.divergence_p99(), 3),
        a.answers ? fixed(a.tokens_until_parting(), 1) + " of " + fixed(a.tokens(), 1) : "-"};
    if (text) {
      line.push_back(fixed(ratio(r.text_nll_sparse, static_cast<double>(r.text_tokens)), 4));
      line.push_back(fixed(r.text_nll_increase(), 4));
      line.push_back("\u00b1" + fixed(r.text_nll_error(), 4));
      line.push_back(cli::percent(r.text.read_pct()));
    }
    if (covered) {
      line.push_back(fixed(r.answers.coverage_mean(), 3));
      line.push_back(fixed(r.answers.coverage_p1(), 3));
    }
    if (pooled) line.push_back(cli::percent(r.answers.pool_hit_pct()));
    if (tiled) line.push_back(r.tiles_seen > 0 ? cli::percent(r.tiles_pct()) : "-");
    line.push_back(fixed(r.answers.ms_per_step(), 2));
    line.push_back(fixed(r.seconds, 1));
    std::string layers;
    for (double pct : r.answers.layer_read_pct())
      layers += (layers.empty() ? "" : " ") + fixed(pct, 0);
    line.push_back(layers);
    table.add(line);
  }
  std::vector<std::string> task_header = {"right by task (95%)"};
  std::vector<int> shown;
  for (int t = 0; t < kTasks; ++t) {
    if (rows.empty() || rows[0].tasks[t].n == 0 || !has_answer(static_cast<Task>(t))) continue;
    shown.push_back(t);
    task_header.push_back(task_name(static_cast<Task>(t)));
  }
  cli::Table by_task(task_header);
  for (const Row& r : rows) {
    std::vector<std::string> line = {r.setting.label};
    for (int t : shown) {
      const Marks& m = r.tasks[t];
      line.push_back(
          text_of("%d/%d (%s%%)", m.sparse, m.n, share_interval(m.sparse, m.n).text(1).c_str()) +
          (m.dense > m.both ? text_of(" -%d", m.dense - m.both) : ""));
    }
    by_task.add(line);
  }
  const char* legend =
      "asked: questions. right: answers that are right with the setting. kept: share of the "
      "answers right with dense attention that stay right.\n"
      "same first: share of steps with the same most likely token as dense. divergence: "
      "Kullback-Leibler, from dense, in nats a step. same for: tokens until the texts differ.\n";
  const char* prompts =
      "prompt=X: the prompt chose key tiles with --prefill-share X. tiles: key tiles that it "
      "read.\n";
  return table.text() + (rows.empty() ? "" : legend) + (tiled ? prompts : "") +
         (shown.empty() ? "" : "\n" + by_task.text());
}

// ---- dense scores ----

std::string PositionBucket::name() const { return text_of("%d-%d", begin, end); }

std::vector<PositionBucket> position_buckets(int segment) {
  std::vector<PositionBucket> buckets;
  constexpr int kEdges[] = {0, 1024, 4096, 16384, 32768};
  for (size_t i = 0; i + 1 < std::size(kEdges) && kEdges[i] < segment; ++i) {
    buckets.push_back({kEdges[i], std::min(kEdges[i + 1], segment)});
  }
  return buckets;
}

bool shares_differ(double a, int n, double b, int m) {
  // Two virtual cases, one right and one wrong, keep the pooled share away from 0 and 1, where the
  // variance would be 0.
  const double pooled = (a * n + b * m + 1) / (n + m + 2);
  const double error = std::sqrt(pooled * (1 - pooled) * (1.0 / n + 1.0 / m));
  return !(std::fabs(a - b) <= 2.6 * error);
}

std::string dense_text(const std::vector<Row>& rows, const std::vector<PositionBucket>& buckets,
                       const Json& reference) {
  constexpr int kReferenceCases = 20;  // number of cases behind each figure in the reference file
  const auto expected = [&](const char* group, const std::string& name) {
    if (!reference.is_object() || !reference.contains(group) || !reference[group].contains(name))
      return kNan;
    const Json& value = reference[group][name];
    return value.is_number() ? value.get<double>() : kNan;
  };
  cli::Table table(
      {"dense", "length", "asked", "right", "share", "95%", "in order", "95%", "reference", ""});
  for (const Row& r : rows) {
    for (int t = 0; t < kTasks; ++t) {
      const Marks& m = r.tasks[t];
      if (m.n == 0 || !has_answer(static_cast<Task>(t))) continue;
      const std::string name = task_name(static_cast<Task>(t));
      const double wanted = expected("tasks", name + "@" + std::to_string(r.length));
      const double in_order = ratio(m.dense_in_order, m.n);
      std::string verdict;
      if (!std::isnan(wanted)) {
        verdict =
            shares_differ(in_order, m.n, wanted, kReferenceCases) ? "DIFFERS" : "within chance";
      }
      table.add({name, std::to_string(r.length), std::to_string(m.n), std::to_string(m.dense),
                 cli::percent(100 * ratio(m.dense, m.n)), share_interval(m.dense, m.n).text(1),
                 cli::percent(100 * in_order), share_interval(m.dense_in_order, m.n).text(1),
                 std::isnan(wanted) ? "-" : cli::percent(100 * wanted), verdict});
    }
  }
  std::string text = table.text();
  if (!buckets.empty()) {
    cli::Table nll({"held-out nll at", "tokens", "nll", "reference"});
    for (const PositionBucket& b : buckets) {
      nll.add({b.name(), std::to_string(b.n), fixed(ratio(b.sum, static_cast<double>(b.n)), 4),
               fixed(expected("nll", b.name()), 4)});
    }
    text += "\n" + nll.text();
  }
  return text;
}

}  // namespace riffle::eval
