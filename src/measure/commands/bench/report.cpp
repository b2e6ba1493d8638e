// Results of riffle bench, as tables and as JSON.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "measure/commands/bench/bench.h"

namespace riffle::cli {
namespace {

// Returns slowest minus fastest, in percent of the median. It shows how far to trust the figure.
double spread_pct(const std::vector<double>& v) {
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  return 100 * (*high - *low) / median(v);
}

// Returns a count of the decode steps divided by their tokens; NaN if the device has no such count.
double per_token(double count, const DecodeRow& r, bool known) {
  if (!known || !r.stats.count("decode_tokens")) return std::numeric_limits<double>::quiet_NaN();
  return count / r.stats.number("decode_tokens");
}
double loaded_per_token(const DecodeRow& r) {
  return per_token(r.stats.number("loaded_bytes"), r, r.stats.count("pool_slots") > 0);
}
double syncs_per_token(const DecodeRow& r) {
  return per_token(r.stats.number("host_syncs"), r, r.stats.count("peak_device_bytes") > 0);
}
// Returns the tokens that a step gave each of its sequences: more than one if tokens were computed
// ahead.
double tokens_per_step(const BenchOptions& o, const DecodeRow& r) {
  if (o.common.options.count("lookup") == 0)
    return 1;  // a small pool may count a step's groups as steps
  return r.stats.number("decode_tokens") / (r.stats.number("decode_steps") * o.batch);
}
double seconds_per_step(const BenchOptions& o, const DecodeRow& r) {
  return median(r.seconds) * tokens_per_step(o, r);
}
double bandwidth_used_pct(const BenchOptions& o, const DecodeRow& r) {
  return r.bandwidth > 0 ? 100 * r.bytes / seconds_per_step(o, r) / r.bandwidth
                         : std::numeric_limits<double>::quiet_NaN();
}
double known(double bandwidth) {
  return bandwidth > 0 ? bandwidth / 1e9 : std::numeric_limits<double>::quiet_NaN();
}
// Returns operations per second.
double rate(const PrefillRow& r) { return r.operations / median(r.seconds); }
double peak_share_pct(const BenchResults& results, const PrefillRow& r) {
  return results.product_rate > 0 ? 100 * rate(r) / results.product_rate
                                  : std::numeric_limits<double>::quiet_NaN();
}

std::string fixed(double v, int digits) {
  return std::isfinite(v) ? text_of("%.*f", digits, v) : "-";
}

Json timing_json(const Facts& t) {
  return {{"linear_us", 1e6 * t.number("linear")},
          {"attention_score_us", 1e6 * t.number("attention_score")},
          {"attention_rank_us", 1e6 * t.number("attention_rank")},
          {"attention_attend_us", 1e6 * t.number("attention_attend")},
          {"other_us", 1e6 * t.number("other")},
          {"total_us", 1e6 * t.number("total")},
          {"copy_gb_per_second", number(known(t.number("copy_bandwidth")))},
          {"link_gb_per_second", number(known(t.number("link_bandwidth")))}};
}

std::string subject(const BenchOptions& o) {
  return o.shape.empty() ? o.common.model_path : o.shape + " " + o.weights();
}
std::string tokens_from(const BenchOptions& o) { return o.text.empty() ? "random tokens" : o.text; }

}  // namespace

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

Json synthetic_attention_json(const BenchOptions& o) {
  if (!o.synthetic) return nullptr;
  return {{"sparsity", number(o.attention.sparsity)},
          {"weight", number(o.attention.weight)},
          {"overlap", number(o.attention.overlap)},
          {"seed", o.attention.seed}};
}

Json bench_json(const BenchOptions& o, const BenchResults& results) {
  Json prefill = Json::array(), decode = Json::array();
  for (const PrefillRow& r : results.prefill) {
    const double s = median(r.seconds);
    prefill.push_back({{"tokens", r.tokens},
                       {"tokens_per_second", static_cast<double>(r.tokens) / s},
                       {"seconds", s},
                       {"spread_pct", spread_pct(r.seconds)},
                       {"tiles_read_pct", number(r.tiles_read_pct)},
                       {"operations", r.operations},
                       {"tflops", rate(r) / 1e12},
                       {"peak_share_pct", number(peak_share_pct(results, r))},
                       {"samples", r.seconds}});
  }
  for (const DecodeRow& r : results.decode) {
    const double s = median(r.seconds), step = seconds_per_step(o, r);
    decode.push_back({{"depth", r.depth},
                      {"selector", r.selector},
                      {"tokens_per_second", o.batch / s},
                      {"seconds_per_token", s / o.batch},
                      {"seconds_per_step", number(step)},
                      {"spread_pct", spread_pct(r.seconds)},
                      {"tokens_per_step", number(tokens_per_step(o, r))},
                      {"lookup_proposed", r.stats.count("lookup_proposed")},
                      {"lookup_accepted", r.stats.count("lookup_accepted")},
                      {"kv_read_pct", number(kv_read_pct(r.stats))},
                      {"pool_hit_pct", number(pool_hit_pct(r.stats))},
                      {"loaded_bytes_per_token", number(loaded_per_token(r))},
                      {"host_syncs_per_token", number(syncs_per_token(r))},
                      {"bytes_per_step", r.bytes},
                      {"bytes_per_token", number(r.bytes / o.batch / tokens_per_step(o, r))},
                      {"gb_per_second", number(r.bytes / step / 1e9)},
                      {"memory_gb_per_second", number(known(r.bandwidth))},
                      {"bandwidth_used_pct", number(bandwidth_used_pct(o, r))},
                      {"parts", r.timing ? timing_json(*r.timing) : Json(nullptr)},
                      {"samples", r.seconds}});
  }
  return {
      {"model", o.shape.empty() ? Json(o.common.model_path) : Json(nullptr)},
      {"shape", o.shape.empty() ? Json(nullptr) : Json(o.shape)},
      {"weights", !o.shape.empty() || !o.common.options.text("weights").empty() ? Json(o.weights())
                                                                                : Json(nullptr)},
      {"synthetic_attention", synthetic_attention_json(o)},
      {"device", results.plan.text("device")},
      {"isa", results.plan.text("isa")},
      {"threads", results.plan.count("n_threads")},
      {"n_ctx", results.plan.count("n_ctx")},
      {"everything_below", results.plan.count("everything_below")},
      {"batch", o.batch},
      {"steps", o.steps},
      {"text", tokens_from(o)},
      {"prefill", prefill},
      {"peak_tflops", results.product_rate > 0 ? Json(results.product_rate / 1e12) : Json(nullptr)},
      {"decode", decode},
      {"interrupted", results.interrupted},
      {"peak_rss_bytes", results.stats.count("peak_rss_bytes")},
      {"device_bytes", results.stats.count("device_bytes")},
      {"peak_device_bytes", results.stats.count("peak_device_bytes")},
      {"pinned_bytes", results.stats.count("pinned_bytes")},
      {"notice", results.notice.empty() ? Json(nullptr) : Json(results.notice)},
      {"options", context_json(o.common.options)},
      {"version", riffle_version()}};
}

static void print_decode(const BenchOptions& o, const std::vector<DecodeRow>& rows) {
  const bool lookup = o.common.options.count("lookup") > 0;
  std::vector<std::string> head = {"depth",         "selector",
                                   "tokens/s",      o.batch > 1 && !lookup ? "ms/step" : "ms/token",
                                   "spread",        "KV read",
                                   "pool hits",     "loaded MB/token",
                                   "syncs/token",   o.batch > 1 || lookup ? "MB/step" : "MB/token",
                                   "GB/s",          "memory GB/s",
                                   "bandwidth used"};
  if (lookup) head.push_back("tokens/step");
  Table t(head);
  for (const DecodeRow& r : rows) {
    const double s = median(r.seconds);
    std::vector<std::string> row = {std::to_string(r.depth),
                                    r.selector,
                                    fixed(o.batch / s, 1),
                                    fixed(1e3 * s, 2),
                                    r.seconds.size() > 1 ? percent(spread_pct(r.seconds)) : "-",
                                    percent(kv_read_pct(r.stats)),
                                    percent(pool_hit_pct(r.stats)),
                                    fixed(loaded_per_token(r) / 1e6, 2),
                                    fixed(syncs_per_token(r), 1),
                                    fixed(r.bytes / 1e6, 1),
                                    fixed(r.bytes / seconds_per_step(o, r) / 1e9, 1),
                                    fixed(known(r.bandwidth), 1),
                                    percent(bandwidth_used_pct(o, r))};
    if (lookup) row.push_back(fixed(tokens_per_step(o, r), 2));
    t.add(row);
  }
  t.print();
}

static void print_parts(const std::vector<DecodeRow>& rows) {
  Table parts({"depth", "selector", "linear", "score", "rank", "attend", "other", "total"});
  const Facts* first = nullptr;
  for (const DecodeRow& r : rows) {
    if (!r.timing) continue;
    const Facts& p = *r.timing;
    if (!first) first = &p;
    parts.add({std::to_string(r.depth), r.selector, fixed(1e6 * p.number("linear"), 0),
               fixed(1e6 * p.number("attention_score"), 0),
               fixed(1e6 * p.number("attention_rank"), 0),
               fixed(1e6 * p.number("attention_attend"), 0), fixed(1e6 * p.number("other"), 0),
               fixed(1e6 * p.number("total"), 0)});
  }
  if (!first) return;
  write_out("\nmicroseconds of a step, part by part\n");
  parts.print();
  write_out(text_of("\ndevice memory copy %s GB/s (read + write), host to device %s GB/s\n",
                    fixed(known(first->number("copy_bandwidth")), 0).c_str(),
                    fixed(known(first->number("link_bandwidth")), 1).c_str()));
}

void print_bench(const BenchOptions& o, const BenchResults& results) {
  const Facts& plan = results.plan;
  write_out(text_of("%s: %s, %s, %d threads, %s\n", subject(o).c_str(),
                    plan.empty() ? "?" : plan.text("device").c_str(),
                    plan.empty() ? "?" : plan.text("isa").c_str(), plan.id("n_threads"),
                    tokens_from(o).c_str()));
  if (o.synthetic)
    write_out(text_of(
        "synthetic attention: %g%% of the weight in %g%% of the blocks, %g%% of them kept from "
        "step to step\n",
        100 * static_cast<double>(o.attention.weight),
        100 * static_cast<double>(o.attention.sparsity),
        100 * static_cast<double>(o.attention.overlap)));
  if (o.batch > 1) write_out(text_of("%d sequences step together\n", o.batch));
  if (o.common.options.count("lookup") > 0)
    write_out(text_of("greedy answers; a step computes up to %d tokens ahead\n",
                      static_cast<int>(o.common.options.count("lookup"))));
  write_out("\n");
  if (!results.prefill.empty()) {
    Table t(
        {"prefill", "tokens/s", "seconds", "spread", "key tiles read", "TFLOP/s", "share of peak"});
    const auto tera = [](double operations) {
      return fixed(operations / 1e12, operations < 1e13 ? 3 : 1);
    };
    for (const PrefillRow& r : results.prefill) {
      const double s = median(r.seconds);
      t.add({std::to_string(r.tokens), fixed(static_cast<double>(r.tokens) / s, 0), fixed(s, 2),
             r.seconds.size() > 1 ? percent(spread_pct(r.seconds)) : "-",
             std::isfinite(r.tiles_read_pct) ? percent(r.tiles_read_pct) : "all", tera(rate(r)),
             percent(peak_share_pct(results, r))});
    }
    t.print();
    if (results.product_rate > 0)
      write_out("peak, a large product alone: " + tera(results.product_rate) + " TFLOP/s\n");
    write_out("\n");
  }
  if (!results.decode.empty()) print_decode(o, results.decode);
  print_parts(results.decode);
  const auto bytes = [&](const char* name) { return human_bytes(results.stats.number(name)); };
  std::string memory = "\npeak memory " + bytes("peak_rss_bytes");
  if (results.stats.count("peak_device_bytes"))
    memory += ", on the device " + bytes("peak_device_bytes") + ", pinned " + bytes("pinned_bytes");
  write_out(memory + "\n");
}

}  // namespace riffle::cli
