// Results of riffle bench --arrivals, as tables and as JSON.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/settings.h"
#include "measure/commands/bench/arrivals.h"
#include "measure/commands/bench/bench.h"

namespace riffle::cli {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double ratio(double a, double b) { return b > 0 ? a / b : kNaN; }
double hit_pct(const ReplayResult& r) {
  return r.pool_lookups
             ? 100 * static_cast<double>(r.pool_hits) / static_cast<double>(r.pool_lookups)
             : kNaN;
}
double per_iteration(double sum, const ReplayResult& r) {
  return ratio(sum, static_cast<double>(r.decode_iterations));
}
double rate(uint64_t n, const ReplayResult& r) { return ratio(static_cast<double>(n), r.seconds); }

std::string fixed(double v, int digits) {
  return std::isfinite(v) ? text_of("%.*f", digits, v) : "-";
}
std::string ms(double seconds) {
  return std::isfinite(seconds) ? text_of("%.1f ms", 1e3 * seconds) : "-";
}
std::string sec(double seconds) {
  return std::isfinite(seconds) ? text_of("%.3f s", seconds) : "-";
}

Json spread_json(const std::vector<double>& v) {
  return {{"mean", number(mean(v))},
          {"p50", number(percentile(v, 50))},
          {"p99", number(percentile(v, 99))},
          {"max", number(percentile(v, 100))}};
}

// Returns the blocks of the simulated model. The counts are of one layer, so only the KV heads
// differ.
double prefill_kv_blocks(const ArrivalsReport& report, const ReplayResult& r) {
  return r.prefill_kv_blocks * (report.cost ? report.cost->kv_heads / report.run.kv_heads : 1);
}

Json result_json(const ArrivalsReport& report, const ReplayResult& r) {
  const double scale = report.cost ? block_scale(*report.cost, report.run) : 1;
  return {
      {"requests", r.requests},
      {"done", r.done},
      {"failed", r.failed},
      {"error", r.failed ? Json(r.error) : Json(nullptr)},
      {"seconds", number(r.seconds)},
      {"ttft_s", spread_json(r.ttft)},
      {"tbt_s", spread_json(r.gaps)},
      {"delay_s", spread_json(r.delays)},
      {"prompt_tokens", r.prompt_tokens},
      {"reused_tokens", r.reused_tokens},
      {"output_tokens", r.output_tokens},
      {"output_tokens_per_second", number(rate(r.output_tokens, r))},
      {"tokens_per_second", number(rate(r.prompt_tokens + r.output_tokens, r))},
      {"requests_per_second", number(rate(r.done - r.failed, r))},
      {"iterations", r.iterations},
      {"decode_iterations", r.decode_iterations},
      {"decode_rows_per_iteration", number(per_iteration(static_cast<double>(r.decode_rows), r))},
      {"blocks_loaded_per_iteration", number(per_iteration(r.blocks_loaded * scale, r))},
      {"blocks_read_per_iteration", number(per_iteration(r.blocks_read * scale, r))},
      {"pool_hit_pct", number(hit_pct(r))},
      {"skipped", r.skipped},
      {"working_set_blocks", number(per_iteration(r.working_set * scale, r))},
      {"available_blocks", number(per_iteration(r.available * scale, r))},
      {"longest_stall_s", number(r.longest_stall)},
      {"prefill_kv_blocks", number(prefill_kv_blocks(report, r))},
      {"cost_seconds", !report.cost ? Json(nullptr)
                                    : Json{{"decode", r.decode_seconds},
                                           {"load", r.load_seconds},
                                           {"prefill", r.prefill_seconds}}}};
}

Json cost_json(const CostModel& cost) {
  Json j;
  for (const auto& [name, value] : cost_model_values(cost)) j[name] = value;
  return j;
}

Json scheduler_json(const ArrivalsOptions& t) {
  const Options& s = t.scheduler;
  return {{"max_seqs", s.count("max-seqs")},
          {"working_set_steps", s.count("working-set-steps")},
          {"no_ws_control", !s.on("ws-control")},
          {"max_skips", s.count("max-skips")},
          {"prefill_mode", s.text("prefill-mode")},
          {"max_inject_tokens", s.count("max-inject-tokens")},
          {"max_tokens", s.count("max-iteration-tokens")},
          {"no_prefix_reuse", !s.on("prefix-reuse")},
          {"all_resident", t.all_resident}};
}

}  // namespace

Json arrivals_json(const BenchOptions& o, const ArrivalsReport& report) {
  const ArrivalsOptions& t = o.arrivals;
  Json probes = Json::array();
  for (const GoodputProbe& p : report.probes)
    probes.push_back({{"rate", p.rate},
                      {"tbt_p99_s", number(p.tbt_p99)},
                      {"delay_mean_s", number(p.delay)},
                      {"within", p.within}});
  return {{"model", o.shape.empty() ? Json(o.common.model_path) : Json(nullptr)},
          {"shape", o.shape.empty() ? Json(nullptr) : Json(o.shape)},
          {"synthetic_attention", synthetic_attention_json(o)},
          {"device", report.plan.text("device")},
          {"n_ctx", report.plan.count("n_ctx")},
          {"slots", report.plan.count("slots")},
          {"clock", report.cost ? "virtual" : "wall"},
          {"cost", report.cost ? cost_json(*report.cost) : Json(nullptr)},
          {"workload",
           {{"rate", t.rate},
            {"requests", t.requests},
            {"lengths", t.lengths},
            {"seed", t.seed},
            {"shared_prefix", t.shared_prefix}}},
          {"scheduler", scheduler_json(t)},
          {"lone_step_s", report.lone_step > 0 ? Json(report.lone_step) : Json(nullptr)},
          {"tbt_limit_s", report.tbt_limit > 0 ? Json(report.tbt_limit) : Json(nullptr)},
          {"delay_limit_s", t.goodput ? Json(t.delay_limit) : Json(nullptr)},
          {"goodput", t.goodput ? Json(report.goodput) : Json(nullptr)},
          {"goodput_bounded", t.goodput ? Json(report.bounded) : Json(nullptr)},
          {"probes", t.goodput ? probes : Json(nullptr)},
          {"result", report.result ? result_json(report, *report.result) : Json(nullptr)},
          {"interrupted", report.interrupted},
          {"peak_rss_bytes", report.stats.count("peak_rss_bytes")},
          {"peak_device_bytes", report.stats.count("peak_device_bytes")},
          {"notice", report.notice.empty() ? Json(nullptr) : Json(report.notice)},
          {"options", context_json(o.common.options)},
          {"version", riffle_version()}};
}

void print_arrivals(const BenchOptions& o, const ArrivalsReport& report) {
  const ArrivalsOptions& t = o.arrivals;
  const bool searched = t.goodput && !report.interrupted;
  if (t.goodput && (searched || report.goodput > 0))
    write_out(
        report.goodput > 0
            ? text_of("\ngoodput %s%.4g requests/s (P99 between tokens within %.1f ms, mean delay "
                      "within %.1f s)\n",
                      report.bounded && searched ? "" : "at least ", report.goodput,
                      1e3 * report.tbt_limit, t.delay_limit)
            : text_of("\nno rate is within limits: P99 between tokens %.1f ms, mean delay %.1f s\n",
                      1e3 * report.tbt_limit, t.delay_limit));
  if (!report.result) return;
  const ReplayResult& r = *report.result;
  const double scale = report.cost ? block_scale(*report.cost, report.run) : 1;
  if (t.goodput) write_out("\nat that rate\n");
  Table times({"", "mean", "P50", "P99", "longest"});
  times.add({"first token", sec(mean(r.ttft)), sec(percentile(r.ttft, 50)),
             sec(percentile(r.ttft, 99)), sec(percentile(r.ttft, 100))});
  times.add({"between tokens", ms(mean(r.gaps)), ms(percentile(r.gaps, 50)),
             ms(percentile(r.gaps, 99)), ms(percentile(r.gaps, 100))});
  times.add({"delay before prefill", sec(mean(r.delays)), sec(percentile(r.delays, 50)),
             sec(percentile(r.delays, 99)), sec(percentile(r.delays, 100))});
  times.print();
  write_out("\n");
  const auto count = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  Table facts({"requests", (r.done < r.requests ? text_of("%llu of ", count(r.done)) : "") +
                               text_of("%llu, %llu failed", count(r.requests), count(r.failed))});
  const auto fact = [&](const char* name, const std::string& value) { facts.add({name, value}); };
  fact("time", sec(r.seconds));
  fact("output tokens/s", fixed(rate(r.output_tokens, r), 1));
  fact("all tokens/s", fixed(rate(r.prompt_tokens + r.output_tokens, r), 0));
  if (r.reused_tokens)
    fact("prompt tokens reused", percent(100 * ratio(static_cast<double>(r.reused_tokens),
                                                     static_cast<double>(r.prompt_tokens))));
  fact("iterations",
       text_of("%llu, %llu with decode steps", static_cast<unsigned long long>(r.iterations),
               static_cast<unsigned long long>(r.decode_iterations)));
  fact("sequences in a step", fixed(per_iteration(static_cast<double>(r.decode_rows), r), 2));
  fact("skipped", std::to_string(r.skipped));
  fact("blocks read an iteration", fixed(per_iteration(r.blocks_read * scale, r), 0));
  fact("blocks loaded an iteration", fixed(per_iteration(r.blocks_loaded * scale, r), 1));
  fact("pool hits", percent(hit_pct(r)));
  fact("working set", fixed(per_iteration(r.working_set * scale, r), 0) + " of " +
                          fixed(per_iteration(r.available * scale, r), 0) + " blocks");
  fact("longest stall by a prompt", ms(r.longest_stall));
  if (r.prefill_kv_blocks > 0)
    fact("KV of prompts on the device", fixed(prefill_kv_blocks(report, r), 0) + " blocks at most");
  if (report.lone_step > 0) fact("lone decode step", ms(report.lone_step));
  if (report.cost)
    fact("time by --cost", text_of("decode %.1f s, loads %.1f s, prefill %.1f s", r.decode_seconds,
                                   r.load_seconds, r.prefill_seconds));
  facts.print_left();
  if (r.failed) write_out("\nfirst failure: " + r.error + "\n");
}

}  // namespace riffle::cli
