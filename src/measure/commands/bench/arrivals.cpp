// riffle bench --arrivals: flags, the context, and the search for the highest rate that keeps the
// limits.
#include "measure/commands/bench/arrivals.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/settings.h"
#include "measure/commands/bench/bench.h"

namespace riffle::cli {
namespace {

constexpr int kRequests = 100;  // default number of requests
constexpr int kMaxSeqs = 16;
constexpr int64_t kContext = 32768;  // context of a shape, for random lengths
constexpr int kLoneTokens = 32;
constexpr double kTbtLimit = 25;    // lone decode steps (SparseServe, section 4.2)
constexpr double kAccuracy = 1.05;  // factor to which the highest rate is found
constexpr int kMaxDoublings = 12;
constexpr int kUsualRates = 10;  // number of rates that a search for the highest one tries
// The time of a run is estimated from one request: number of tokens of its answer, and least
// seconds that its prompt must take.
constexpr int kTryTokens = 8;
constexpr double kTrySeconds = 0.3;
constexpr double kLong = 120;  // seconds; for longer runs the notice names --requests

class ArrivalsBench {
 public:
  explicit ArrivalsBench(BenchOptions& o)
      : o_(o), t_(o.arrivals), lengths_(t_.lengths, read_file) {}

  int run() {
    fill_in();
    create();
    InterruptGuard guard(context_.get());
    if (!o_.common.json) print_head();
    try {
      if (!o_.common.quiet) say_estimate();
      if (report_.cost || (t_.goodput && t_.tbt_limit <= 0)) report_.lone_step = lone_step();
      if (t_.goodput) find_goodput();
      else whole(*(report_.result = replay_at(t_.rate)));
    } catch (const Exit& e) {
      if (e.code() != EXIT_INTERRUPTED) throw;
      report_.interrupted = true;
      const size_t rates = report_.probes.size();
      if (t_.goodput)
        notice(o_.common.quiet, "[stopped after %zu rate%s]", rates, rates == 1 ? "" : "s");
      else
        notice(o_.common.quiet, "[stopped after %llu of %d requests]",
               static_cast<unsigned long long>(report_.result ? report_.result->done : 0),
               t_.requests);
    }
    report_.stats = context_stats(context_.get());
    report_.notice = say_notice(context_.get(), o_.common.quiet, report_.notice);
    if (o_.common.json) print_json(arrivals_json(o_, report_));
    else print_arrivals(o_, report_);
    if (report_.interrupted) return EXIT_INTERRUPTED;
    return report_.result && report_.result->failed ? EXIT_RUN : EXIT_OK;
  }

 private:
  // Fills in missing settings, and refuses those that exclude each other.
  void fill_in() {
    Options& c = o_.common.options;
    if (!t_.cost.empty()) {
      if (!c.is("device", "auto") && !c.is("device", "emu"))
        throw Exit(EXIT_USAGE,
                   text_of("--cost is for --device emu, not %s, which has a clock of its own",
                           c.text("device").c_str()));
      report_.cost = parse_cost_model(t_.cost, read_file);
      c.set("device", "emu");
      if (o_.shape.empty() && o_.common.model_path.empty()) {
        o_.shape = "tiny";
        o_.synthetic = true;
      }
    } else if (t_.pool_mem) {
      throw Exit(EXIT_USAGE, "--pool-mem needs --cost; without it, use --slots or --gpu-mem");
    }
    if (t_.pool_mem && (c.count("slots") || c.size("gpu-mem")))
      throw Exit(EXIT_USAGE, "--pool-mem replaces --slots and --gpu-mem: give only one of them");
    if (t_.requests == 0)
      t_.requests = static_cast<int>(lengths_.given.size() > 1 ? lengths_.given.size() : kRequests);
    if (t_.max_seqs == 0) t_.max_seqs = kMaxSeqs;
    t_.scheduler.set("max-seqs", t_.max_seqs);
    if (t_.all_resident) t_.scheduler.set("ws-control", false);  // there is nothing to control
    c.set("sessions", t_.max_seqs);
    if (o_.synthetic) {
      o_.attention.run_prompts = !report_.cost;
      riffle_options_set_synthetic_attention(c.get(), &o_.attention);
    }
  }

  void create() {
    model_ = o_.shape.empty() ? load_model(o_.common) : make_synthetic(o_.shape, o_.weights());
    info_ = model_info(model_.get());
    Options& c = o_.common.options;
    const bool free_length = !o_.shape.empty() && c.count("ctx") == 0;
    const int64_t n_ctx = !free_length
                              ? (c.count("ctx") ? c.count("ctx") : info_.count("n_ctx_train"))
                          : lengths_.random() ? kContext
                                              : 0;
    sizes_ = lengths_.draw(static_cast<size_t>(t_.requests), t_.seed, n_ctx);
    if (free_length) {
      int64_t longest = 0;
      for (const RequestLength& l : sizes_)
        longest = std::max<int64_t>(longest, int64_t{l.prompt} + l.output);
      c.set("ctx", std::min<int64_t>(longest, int64_t{1} << 28));
    }
    run_ = {info_.number("n_layers"), info_.number("n_kv_heads"), info_.number("head_dim"),
            c.number("block")};
    report_.run = run_;
    if (t_.pool_mem) {
      const double bytes = block_bytes(*report_.cost, run_) * block_scale(*report_.cost, run_);
      const auto slots = static_cast<int64_t>(static_cast<double>(t_.pool_mem) / bytes);
      c.set("slots", std::min<int64_t>(slots, INT32_MAX));
      if (slots < 1)
        throw Exit(EXIT_USAGE, text_of("--pool-mem: one block of the simulated model takes %s",
                                       human_bytes(bytes).c_str()));
    }
    report_.plan = plan_of(model_.get(), c);
    context_ = create_context(model_.get(), c, o_.common.quiet);
    report_.notice = say_notice(context_.get(), o_.common.quiet);
    setup_.context = context_.get();
    setup_.scheduler = &t_.scheduler;
    setup_.cost = report_.cost ? &*report_.cost : nullptr;
    setup_.run = run_;
    setup_.selects = report_.plan.text("selector") != "dense";
    if (t_.all_resident) {
      setup_.resident_blocks = report_.plan.count("slots");
      if (setup_.resident_blocks < 1)
        throw Exit(EXIT_USAGE,
                   "--all-resident needs a pool of limited size: use --device emu or cuda");
    }
    requests_.resize(sizes_.size());
    for (size_t i = 0; i < sizes_.size(); ++i) {
      requests_[i].output = sizes_[i].output;
      requests_[i].prompt =
          random_prompt(static_cast<size_t>(sizes_[i].prompt), t_.shared_prefix, t_.seed, i, info_);
    }
  }

  // Runs a single request, with a prompt of at most n tokens.
  ReplayResult replay_alone(int64_t n, int32_t output) {
    TimedRequest r;
    r.output = output;
    n = std::min<int64_t>(n, report_.plan.count("n_ctx") - output);
    r.prompt = random_prompt(static_cast<size_t>(std::max<int64_t>(n, 1)), 0, t_.seed,
                             requests_.size(), info_);
    const ReplayResult result = replay(setup_, {r});
    whole(result);
    return result;
  }

  double prompt_tokens(int64_t& longest) const {
    double sum = 0;
    for (const RequestLength& l : sizes_) {
      sum += l.prompt;
      longest = std::max<int64_t>(longest, l.prompt);
    }
    return sum;
  }

  // Estimates the seconds that the run takes on this machine. It runs a single request, whose
  // prompt grows until its time can be measured. Requests that run side by side may be faster, and
  // attention over longer prompts is slower.
  double estimate() {
    int64_t longest = 0;
    const double prompts = prompt_tokens(longest);
    double outputs = 0;
    for (const RequestLength& l : sizes_) outputs += l.output;
    const auto output =
        static_cast<int32_t>(std::clamp<int64_t>(report_.plan.count("n_ctx") - 1, 1, kTryTokens));
    for (int64_t n = std::min<int64_t>(64, longest);; n = std::min(4 * n, longest)) {
      const ReplayResult result = replay_alone(n, output);
      if (result.failed) return 0;  // the run itself reports the error
      if (result.machine_first_token < kTrySeconds && n < longest) continue;
      const double step =
          (result.machine_seconds - result.machine_first_token) / std::max(output - 1, 1);
      const double work =
          prompts * result.machine_first_token / static_cast<double>(n) + outputs * step;
      if (t_.goodput) return kUsualRates * work;
      const bool waits = !report_.cost && t_.rate > 0;  // for arrivals, by the wall clock
      return waits ? std::max(work, t_.requests / t_.rate) : work;
    }
  }

  void say_estimate() {
    const double seconds = estimate();
    riffle_reset_stats(context_.get());  // the figures do not include the estimate
    if (!(seconds > 0)) return;
    const std::string time = seconds < 100 ? text_of("%.0f s", std::ceil(seconds))
                                           : text_of("%.0f minutes", std::ceil(seconds / 60));
    if (seconds <= kLong) notice(false, "[this takes about %s]", time.c_str());
    else
      notice(false, "[this takes about %s for %d requests; --requests N replays fewer]",
             time.c_str(), t_.requests);
  }

  ReplayResult replay_at(double rate) {
    const std::vector<double> arrivals = poisson_arrivals(requests_.size(), rate, t_.seed);
    for (size_t i = 0; i < requests_.size(); ++i) requests_[i].arrival = arrivals[i];
    return replay(setup_, requests_);
  }

  static void whole(const ReplayResult& result) {
    if (result.done < result.requests) throw Exit(EXIT_INTERRUPTED, "");
  }

  // Returns the median time of a decode step of one sequence with the median prompt, run alone.
  double lone_step() {
    std::vector<double> prompts;
    for (const RequestLength& l : sizes_) prompts.push_back(l.prompt);
    const auto output =
        static_cast<int32_t>(std::clamp<int64_t>(report_.plan.count("n_ctx") - 1, 1, kLoneTokens));
    const ReplayResult result = replay_alone(static_cast<int64_t>(percentile(prompts, 50)), output);
    const double step = percentile(result.gaps, 50);
    if (result.failed || !(step > 0))
      throw Exit(EXIT_RUN, "a lone request failed: " + result.error);
    return step;
  }

  bool probe(double rate) {
    ReplayResult result = replay_at(rate);
    whole(result);
    const GoodputProbe p{rate, percentile(result.gaps, 99), mean(result.delays), false};
    report_.probes.push_back(p);
    // Answers of one token have no time between tokens: the percentile is NaN and within the limit.
    const bool within =
        !(p.tbt_p99 > report_.tbt_limit) && p.delay <= t_.delay_limit && result.failed == 0;
    report_.probes.back().within = within;
    report_.bounded |= !within;
    if (!o_.common.json)
      write_out(text_of("  %8.4g requests/s: P99 between tokens %8.1f ms, mean delay %8.2f s: %s\n",
                        rate, 1e3 * p.tbt_p99, p.delay, within ? "within" : "beyond"));
    if (within && rate > report_.goodput) {
      report_.goodput = rate;
      report_.result = std::move(result);
    }
    return within;
  }

  void find_goodput() {
    report_.tbt_limit = t_.tbt_limit > 0 ? t_.tbt_limit : kTbtLimit * report_.lone_step;
    if (!o_.common.json)
      write_out(text_of("limits: P99 between tokens %.1f ms, mean delay %.1f s\n",
                        1e3 * report_.tbt_limit, t_.delay_limit));
    double low = t_.rate > 0 ? t_.rate : 1, high = low;
    if (probe(low)) {
      for (int i = 0; i < kMaxDoublings && probe(high *= 2); ++i) low = high;
    } else {
      do low = high /= 2;
      while (!probe(low) && report_.probes.size() <= kMaxDoublings);
      high = 2 * low;
    }
    if (!(report_.goodput > 0)) return;
    while (high > low * kAccuracy) {
      const double middle = std::sqrt(low * high);
      (probe(middle) ? low : high) = middle;
    }
  }

  void print_head() {
    double prompts = 0, outputs = 0;
    for (const RequestLength& l : sizes_) {
      prompts += l.prompt;
      outputs += l.output;
    }
    const double n = static_cast<double>(sizes_.size());
    write_out(
        text_of("%s: %s, %d requests, prompts of %.0f and answers of %.0f tokens on average (%s)\n",
                o_.shape.empty() ? o_.common.model_path.c_str() : o_.shape.c_str(),
                report_.plan.empty() ? "?" : report_.plan.text("device").c_str(), t_.requests,
                prompts / n, outputs / n, t_.lengths.c_str()));
    if (!t_.goodput)
      write_out(t_.rate > 0 ? text_of("arriving at %g a second\n", t_.rate)
                            : std::string("all arriving at once\n"));
    if (report_.cost)
      write_out(
          text_of("virtual clock: --cost %s; a block counts as %g, the pool of %lld as %s\n",
                  t_.cost.c_str(), block_scale(*report_.cost, run_),
                  static_cast<long long>(report_.plan.count("slots")),
                  human_bytes(static_cast<double>(report_.plan.count("slots")) *
                              block_scale(*report_.cost, run_) * block_bytes(*report_.cost, run_))
                      .c_str()));
    write_out("\n");
  }

  BenchOptions& o_;
  ArrivalsOptions& t_;
  RequestLengths lengths_;
  std::vector<RequestLength> sizes_;
  std::vector<TimedRequest> requests_;
  Model model_;
  Context context_;
  Facts info_;
  RunShape run_;
  ReplaySetup setup_;
  ArrivalsReport report_;
};

}  // namespace

int run_arrivals(BenchOptions& o) { return ArrivalsBench(o).run(); }

static Flag add_value(CLI::App& app, const char* flag, std::string& target, const char* what) {
  return add_text(app, flag, target, what);
}
template <typename Number>
static Flag add_value(CLI::App& app, const char* flag, Number& target, const char* what) {
  return add_number(app, flag, target, what);
}

void add_arrivals_flags(CLI::App& app, ArrivalsOptions& t) {
  const std::string heading = "Requests that arrive over time (--arrivals)";
  const Flag arrivals = add_switch(app, "--arrivals", t.on,
                                   "replay requests that arrive over time, through the scheduler");
  const auto option = [&](const char* flag, auto& target, const char* what, const char* type) {
    return add_value(app, flag, target, what)
        .value(type)
        .needs(arrivals)
        .group(heading)
        .shows_default();
  };
  const auto flag = [&](const char* name, bool& target, const char* what) {
    return add_switch(app, name, target, what).needs(arrivals).group(heading);
  };
  // Numbers with K, M, G.
  const auto size = [&](const char* name, auto& target, Unit unit, const char* what) {
    using T = std::remove_reference_t<decltype(target)>;
    add_text(
        app, name,
        [&target, name, unit](const std::string& s) {
          const uint64_t v = parse_size(name, s, unit);
          if (v > static_cast<uint64_t>(std::numeric_limits<T>::max()))
            refuse_value(name, "'" + s + "' is too large");
          target = static_cast<T>(v);
        },
        what)
        .value(unit == Unit::BYTES ? "SIZE" : "N")
        .needs(arrivals)
        .group(heading)
        .standard(std::to_string(target));
  };
  option("--request-rate", t.rate, "requests a second (Poisson process); 0: all at once", "R")
      .range(0.0, 1e9);
  option("--requests", t.requests,
         "number of requests; 0: the number of lines in the file of --lengths, else 100", "N")
      .range(0, 10000000);
  option("--lengths", t.lengths,
         "tokens of prompts and answers: longbench[:SCALE] (random, similar to LongBench), "
         "PROMPT:OUTPUT, or a file with a line PROMPT OUTPUT for each request",
         "L");
  option("--seed", t.seed, "seed of arrivals, lengths and prompts", "N");
  size("--shared-prefix", t.shared_prefix, Unit::COUNT,
       "number of first tokens that all prompts have in common");
  option("--cost", t.cost,
         "run on emu with a virtual clock: an iteration takes the time that this cost model gives. "
         "MODEL: h200-8b, a100-8b, a100-lwm-7b or a file of lines KEY = VALUE; then ,copies (each "
         "block is copied separately) and ,KEY=VALUE. Without -m and --shape it runs --shape tiny "
         "--synthetic-attention",
         "MODEL")
      .check([](const std::string& text) {
        return text.empty()
                   ? "nothing is given, expected one of " + cost_model_names() + ", or a file"
                   : "";
      });
  size("--pool-mem", t.pool_mem, Unit::BYTES,
       "size of the pool for the KV of the model that --cost simulates; replaces --slots");
  flag("--all-resident", t.all_resident,
       "no offloading: a request waits until its whole KV fits in the pool with the others'");
  size("--max-seqs", t.max_seqs, Unit::COUNT, "number of sequences that hold KV at once; 0: 16");
  for (Flag& added : add_setting_flags(app, "scheduler", t.scheduler, true)) added.needs(arrivals);
  const Flag goodput = flag("--goodput", t.goodput,
                            "find the highest rate within the limits, from --request-rate on");
  option("--tbt-limit", t.tbt_limit,
         "limit of the time between tokens, P99, in seconds; 0: 25 lone decode steps", "S")
      .range(0.0, 1e6)
      .needs(goodput);
  option("--delay-limit", t.delay_limit,
         "limit of the mean delay (arrival to start of prefill), in seconds", "S")
      .range(0.0, 1e6)
      .needs(goodput);
}

}  // namespace riffle::cli
