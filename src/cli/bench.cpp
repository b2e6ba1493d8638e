// riffle bench: prefill speed by length, decode speed by depth and selector, beside the memory bandwidth of the
// machine.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <thread>

#include "cli/common.h"

namespace riffle::cli {
namespace {

struct BenchOptions {
  CommonOptions common;
  std::string prefill = "512,4096", depth = "0,4096,16384", selectors = "dense,psa", text;
  int steps = 32, reps = 3;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Repeats of one measurement stop once they took this long together: a 30,000 token prefill is not noise.
constexpr double kEnoughSeconds = 20;

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
// Distance of fastest and slowest, as a share of the median: how far to trust the figure.
double spread_pct(const std::vector<double>& v) {
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  return 100 * (*high - *low) / median(v);
}

// ---- memory bandwidth ----

typedef uint64_t Lanes __attribute__((vector_size(64)));

uint64_t sum(const Lanes* p, size_t n) {
  Lanes a{}, b{}, c{}, d{};
  for (size_t i = 0; i + 4 <= n; i += 4) {
    a += p[i];
    b += p[i + 1];
    c += p[i + 2];
    d += p[i + 3];
  }
  const Lanes t = a + b + c + d;
  return t[0] + t[1] + t[2] + t[3] + t[4] + t[5] + t[6] + t[7];
}

// Bytes per second at which n_threads read a buffer of that size over and over: what one token's weights and KV could
// at best be read at, with whatever cache the machine has for a set of that size.
double read_bandwidth(size_t bytes, int n_threads) {
  const size_t threads = static_cast<size_t>(std::max(n_threads, 1));
  const size_t each = std::max<size_t>(bytes / threads / sizeof(Lanes) / 4 * 4, 4);
  struct Free {
    void operator()(Lanes* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  const std::unique_ptr<Lanes, Free> buffer(
      static_cast<Lanes*>(::operator new (each* threads * sizeof(Lanes), std::align_val_t{64})));
  std::memset(static_cast<void*>(buffer.get()), 1, each * threads * sizeof(Lanes));
  std::vector<uint64_t> sums(threads * 8);  // one cache line each
  const auto pass = [&](int passes) {
    const Clock::time_point start = Clock::now();
    std::vector<std::thread> workers;
    const auto work = [&](size_t t) {
      uint64_t s = 0;
      for (int i = 0; i < passes; ++i) {
        s += sum(buffer.get() + t * each, each);
        asm volatile("" : "+r"(s)::"memory");  // the next pass must read again
      }
      sums[t * 8] = s;
    };
    for (size_t t = 1; t < threads; ++t) workers.emplace_back(work, t);
    work(0);
    for (std::thread& w : workers) w.join();
    return seconds_since(start);
  };
  const double once = std::max(pass(2) / 2, 1e-6);
  const int passes = static_cast<int>(std::clamp(0.05 / once, 2.0, 10000.0));
  double best = 0;
  for (int i = 0; i < 3; ++i)
    best = std::max(best, static_cast<double>(each * threads * sizeof(Lanes)) * passes / pass(passes));
  return best;
}

// ---- measurements ----

struct PrefillRow {
  size_t tokens;
  std::vector<double> seconds;
};

struct DecodeRow {
  size_t depth;
  riffle_selector selector;
  std::vector<double> seconds;  // per token
  riffle_stats stats;
  double bytes = 0, bandwidth = 0;  // read per token; bytes per second that memory gives for a set of that size
};

class Bench {
 public:
  explicit Bench(BenchOptions& o) : o_(o) {}

  int run() {
    std::vector<int64_t> lengths = parse_size_list("--prefill", o_.prefill);
    std::vector<int64_t> depths = parse_size_list("--depth", o_.depth);
    std::vector<riffle_selector> selectors;
    for (size_t at = 0; at <= o_.selectors.size();) {
      const size_t comma = std::min(o_.selectors.find(',', at), o_.selectors.size());
      selectors.push_back(parse_selector(o_.selectors.substr(at, comma - at)));
      at = comma + 1;
    }
    std::erase(lengths, 0);
    model_ = load_model(o_.common);
    info_ = model_info(model_.get());
    plan_.struct_size = sizeof plan_;
    char err[1024] = "";
    if (riffle_plan_memory(model_.get(), &o_.common.context, &plan_, err, sizeof err) != RIFFLE_OK) plan_.n_threads = 0;
    context_ = create_context(model_.get(), o_.common.context);
    session_ = create_session(context_.get());
    const int64_t n_ctx = plan_.n_ctx;
    int64_t longest = *std::max_element(depths.begin(), depths.end()) + o_.steps + 1;
    for (const int64_t n : lengths) longest = std::max(longest, n);
    if (longest > n_ctx)
      throw Exit(EXIT_USAGE,
                 text_of("--prefill or --depth (with --steps) wants %lld tokens, the context has %lld: see -c",
                         static_cast<long long>(longest), static_cast<long long>(n_ctx)));
    make_tokens(static_cast<size_t>(longest));
    InterruptGuard guard(context_.get());
    for (const int64_t n : lengths) measure_prefill(static_cast<size_t>(n));
    // Deepest first: truncating keeps what the shallower ones need.
    std::sort(depths.rbegin(), depths.rend());
    go_to(static_cast<size_t>(std::max<int64_t>(depths.front(), 1)));  // a step needs something to attend to
    for (const int64_t d : depths)
      for (const riffle_selector s : selectors) measure_decode(static_cast<size_t>(d), s);
    std::stable_sort(decode_.begin(), decode_.end(), [](const auto& a, const auto& b) { return a.depth < b.depth; });
    if (o_.common.json) print_json(json());
    else print();
    return EXIT_OK;
  }

 private:
  // A text's tokens, over and over if it is short; without one, random ids above the control and byte pieces.
  void make_tokens(size_t n) {
    std::vector<int32_t> text;
    if (!o_.text.empty()) {
      text = tokenize(model_.get(), read_file(o_.text), 0);
      if (text.empty()) throw Exit(EXIT_RUN, o_.text + ": the text is empty");
    }
    uint64_t state = 1;
    const auto vocab = static_cast<uint64_t>(info_.vocab_size), low = std::min<uint64_t>(300, vocab / 2);
    if (info_.bos_id >= 0) tokens_.push_back(info_.bos_id);
    while (tokens_.size() < n) {
      if (!text.empty()) {
        tokens_.push_back(text[tokens_.size() % text.size()]);
        continue;
      }
      state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
      tokens_.push_back(static_cast<int32_t>(low + (state >> 33) % (vocab - low)));
    }
  }

  void truncate(size_t n) { check(riffle_session_truncate(session_.get(), n), context_.get()); }

  void go_to(size_t depth) {
    const size_t held = riffle_session_length(session_.get());
    if (held >= depth) return truncate(depth);
    Progress progress(text_of("reading up to %zu tokens", depth), o_.common.quiet);
    check(riffle_prefill(session_.get(), tokens_.data() + held, depth - held, Progress::callback, &progress),
          context_.get());
  }

  void measure_prefill(size_t n) {
    PrefillRow row{n, {}};
    double spent = 0;
    // The first short prefill also pages the weights in.
    if (prefill_.empty()) {
      truncate(0);
      go_to(std::min<size_t>(n, 512));
    }
    for (int i = 0; i < o_.reps && (i == 0 || spent < kEnoughSeconds); ++i) {
      truncate(0);
      const Clock::time_point start = Clock::now();
      go_to(n);
      row.seconds.push_back(seconds_since(start));
      spent += row.seconds.back();
    }
    prefill_.push_back(std::move(row));
  }

  void steps(size_t depth, int n) {
    riffle_session* session = session_.get();
    for (int i = 0; i < n; ++i)
      check(riffle_step(context_.get(), &session, &tokens_[depth + static_cast<size_t>(i)], 1), context_.get());
  }

  void measure_decode(size_t depth, riffle_selector selector) {
    riffle_selection selection = o_.common.context.selection;
    selection.selector = selector;
    check(riffle_set_selection(context_.get(), &selection), context_.get());
    DecodeRow row{depth, selector, {}, {}};
    depth = std::max<size_t>(depth, 1);
    truncate(depth);
    steps(depth, std::min(2, o_.steps));  // buffers and caches of this setting
    riffle_reset_stats(context_.get());
    double spent = 0;
    for (int i = 0; i < o_.reps && (i == 0 || spent < kEnoughSeconds); ++i) {
      truncate(depth);
      const Clock::time_point start = Clock::now();
      steps(depth, o_.steps);
      const double s = seconds_since(start);
      row.seconds.push_back(s / o_.steps);
      spent += s;
    }
    truncate(depth);
    row.stats = context_stats(context_.get());
    // A separate output matrix leaves all but one row of the embedding unread.
    double weights = static_cast<double>(info_.weight_bytes);
    if (!info_.tied_output && info_.n_params)
      weights *= 1 - static_cast<double>(info_.vocab_size) * info_.dim / static_cast<double>(info_.n_params);
    row.bytes = weights;
    if (row.stats.decode_steps)
      row.bytes += static_cast<double>(row.stats.kv_bytes_read) / static_cast<double>(row.stats.decode_steps);
    row.bandwidth = read_bandwidth(static_cast<size_t>(row.bytes), plan_.n_threads);
    decode_.push_back(std::move(row));
  }

  Json json() const {
    Json prefill = Json::array(), decode = Json::array();
    for (const PrefillRow& r : prefill_) {
      const double s = median(r.seconds);
      prefill.push_back({{"tokens", r.tokens},
                         {"tokens_per_second", static_cast<double>(r.tokens) / s},
                         {"seconds", s},
                         {"spread_pct", spread_pct(r.seconds)},
                         {"samples", r.seconds}});
    }
    for (const DecodeRow& r : decode_) {
      const double s = median(r.seconds);
      decode.push_back({{"depth", r.depth},
                        {"selector", selector_name(r.selector)},
                        {"tokens_per_second", 1 / s},
                        {"seconds_per_token", s},
                        {"spread_pct", spread_pct(r.seconds)},
                        {"kv_read_pct", number(kv_read_pct(r.stats))},
                        {"pool_hit_pct", number(pool_hit_pct(r.stats))},
                        {"bytes_per_token", r.bytes},
                        {"gb_per_second", r.bytes / s / 1e9},
                        {"memory_gb_per_second", r.bandwidth / 1e9},
                        {"share_of_memory_pct", 100 * r.bytes / s / r.bandwidth},
                        {"samples", r.seconds}});
    }
    return {{"model", o_.common.model_path},
            {"device", plan_.device ? plan_.device : ""},
            {"isa", plan_.isa ? plan_.isa : ""},
            {"threads", plan_.n_threads},
            {"steps", o_.steps},
            {"text", o_.text.empty() ? Json("random tokens") : Json(o_.text)},
            {"prefill", prefill},
            {"decode", decode},
            {"peak_rss_bytes", context_stats(context_.get()).peak_rss_bytes},
            {"options", context_json(o_.common.context)},
            {"version", riffle_version()}};
  }

  void print() const {
    write_out(text_of("%s: %s, %s, %d threads, %s\n\n", o_.common.model_path.c_str(), plan_.device, plan_.isa,
                      plan_.n_threads, o_.text.empty() ? "random tokens" : o_.text.c_str()));
    if (!prefill_.empty()) {
      Table t({"prefill", "tokens/s", "seconds", "spread"});
      for (const PrefillRow& r : prefill_) {
        const double s = median(r.seconds);
        t.add({std::to_string(r.tokens), text_of("%.0f", static_cast<double>(r.tokens) / s), text_of("%.2f", s),
               r.seconds.size() > 1 ? percent(spread_pct(r.seconds)) : "-"});
      }
      t.print();
      write_out("\n");
    }
    Table t({"depth", "selector", "tokens/s", "ms/token", "spread", "KV read", "pool hits", "MB/token", "GB/s",
             "memory GB/s", "share"});
    for (const DecodeRow& r : decode_) {
      const double s = median(r.seconds);
      t.add({std::to_string(r.depth), selector_name(r.selector), text_of("%.1f", 1 / s), text_of("%.2f", 1e3 * s),
             r.seconds.size() > 1 ? percent(spread_pct(r.seconds)) : "-", percent(kv_read_pct(r.stats)),
             percent(pool_hit_pct(r.stats)), text_of("%.1f", r.bytes / 1e6), text_of("%.1f", r.bytes / s / 1e9),
             text_of("%.1f", r.bandwidth / 1e9), percent(100 * r.bytes / s / r.bandwidth)});
    }
    t.print();
    write_out(text_of("\npeak memory %s\n",
                      human_bytes(static_cast<double>(context_stats(context_.get()).peak_rss_bytes)).c_str()));
  }

  BenchOptions& o_;
  Model model_;
  Context context_;
  Session session_;
  riffle_model_info info_{};
  riffle_plan plan_{};
  std::vector<int32_t> tokens_;
  std::vector<PrefillRow> prefill_;
  std::vector<DecodeRow> decode_;
};

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* sub = app.add_subcommand("bench", "Measure prefill speed by length and decode speed by depth");
  sub->footer(
      "Figures are medians of --reps. MB/token: the weights, and the K and V of the blocks read. memory GB/s: what "
      "the\n"
      "same threads reach reading a buffer of that size over and over; share: how near decode comes to it.");
  sub->add_option("--prefill", o->prefill, "prompt lengths")->type_name("N,N")->capture_default_str();
  sub->add_option("--depth", o->depth, "tokens held when decode begins (0: one token)")
      ->type_name("N,N")
      ->capture_default_str();
  sub->add_option("--selectors", o->selectors, "selectors to compare (in place of --selector)")
      ->type_name("S,S")
      ->capture_default_str();
  sub->add_option("--text", o->text, "text to run on; default: random tokens")->type_name("FILE");
  sub->add_option("--steps", o->steps, "decode steps per measurement")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  sub->add_option("--reps", o->reps, "repeats of each measurement")->check(CLI::Range(1, 1000))->capture_default_str();
  add_common_flags(*sub, o->common, CONTEXT_FLAGS | SELECTION_FLAGS | JSON_FLAG);
  sub->final_callback([o, &chosen] { chosen = [o] { return Bench(*o).run(); }; });
}

}  // namespace riffle::cli
