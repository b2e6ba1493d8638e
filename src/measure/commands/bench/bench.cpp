// riffle bench: prefill speed by length, decode speed by depth and selector, next to the memory
// bandwidth of the machine. It runs a model file, or a shape with synthetic weights, with the
// model's attention or with synthetic attention.
#include "measure/commands/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/help.h"
#include "cli/settings.h"
#include "measure/commands/commands.h"

namespace riffle::cli {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Repeats of one measurement stop once they took this long together: a long measurement, such as a
// prefill of 30,000 tokens, has little noise.
constexpr double kEnoughSeconds = 20;
constexpr int kProfileSteps = 4;
constexpr int64_t kMostContext = int64_t{1} << 28;  // longest context that -c accepts

class Bench {
 public:
  explicit Bench(BenchOptions& o) : o_(o) {}

  int run() {
    std::vector<int64_t> lengths = parse_size_list("--prefill", o_.prefill);
    std::vector<int64_t> depths = parse_size_list("--depth", o_.depth);
    std::vector<std::string> selectors;
    for (const std::string& name : split(o_.selectors, ','))
      selectors.push_back(parse_selector(name));
    std::erase(lengths, 0);
    if (o_.synthetic) lengths.clear();  // prompts are filled in, which is no prefill
    model_ = o_.shape.empty() ? load_model(o_.common) : make_synthetic(o_.shape, o_.weights());
    info_ = model_info(model_.get());
    int64_t longest =
        std::max<int64_t>(*std::max_element(depths.begin(), depths.end()), 1) + steps_held();
    for (const int64_t n : lengths) longest = std::max(longest, n);
    Options& context = o_.common.options;
    // The trained length of a shape does not matter, and memory is taken for the whole context.
    if (!o_.shape.empty() && context.count("ctx") == 0)
      context.set("ctx", std::min<int64_t>(longest, kMostContext));
    context.set("sessions", o_.batch);
    if (o_.synthetic) riffle_options_set_synthetic_attention(context.get(), &o_.attention);
    results_.plan = plan_of(model_.get(), context);
    // Sessions are filled completely here, and without this error a machine whose memory runs out
    // would end the process without a message.
    if (!o_.shape.empty() && !results_.plan.text("context_note").empty())
      throw Exit(EXIT_MEMORY, text_of("%s: try a smaller --depth, --batch or --shape",
                                      results_.plan.text("context_note").c_str()));
    context_ = create_context(model_.get(), context, o_.common.quiet);
    results_.notice = say_notice(context_.get(), o_.common.quiet);
    for (int i = 0; i < o_.batch; ++i) sessions_.push_back(create_session(context_.get()));
    const auto n_ctx = static_cast<int64_t>(riffle_context_length(context_.get()));
    if (longest > n_ctx)
      throw Exit(
          EXIT_USAGE,
          text_of(
              "--prefill or --depth (with --steps) needs %lld tokens, the context has %lld: see -c",
              static_cast<long long>(longest), static_cast<long long>(n_ctx)));
    make_tokens(static_cast<size_t>(longest));
    InterruptGuard guard(context_.get());
    try {
      for (const int64_t n : lengths) measure_prefill(static_cast<size_t>(n));
      // Deepest first: truncating keeps the tokens that smaller depths need.
      std::sort(depths.rbegin(), depths.rend());
      for (const Session& s : sessions_)
        go_to(s.get(), static_cast<size_t>(std::max<int64_t>(
                           depths.front(), 1)));  // a step needs something to attend to
      for (const int64_t d : depths)
        for (const std::string& s : selectors) measure_decode(static_cast<size_t>(d), s);
    } catch (const Exit& e) {
      if (e.code() != EXIT_INTERRUPTED) throw;
      results_.interrupted = true;
      const size_t done = results_.prefill.size() + results_.decode.size();
      notice(o_.common.quiet, "[stopped after %zu measurement%s]", done, done == 1 ? "" : "s");
    }
    std::stable_sort(results_.decode.begin(), results_.decode.end(),
                     [](const auto& a, const auto& b) { return a.depth < b.depth; });
    results_.stats = context_stats(context_.get());
    // It takes memory, so it comes after the counts. A rate that cannot be measured is not known.
    if (!results_.prefill.empty() && !results_.interrupted)
      riffle_product_rate(context_.get(), &results_.product_rate);
    results_.notice = say_notice(context_.get(), o_.common.quiet, results_.notice);
    if (o_.common.json) print_json(bench_json(o_, results_));
    else print_bench(o_, results_);
    return results_.interrupted ? EXIT_INTERRUPTED : EXIT_OK;
  }

 private:
  // Returns the number of tokens that decoding adds to a depth. Synthetic queries depend only on
  // the position, so a step repeated at the same position would find its blocks in the pool. With
  // them, each repeat continues where the last one ended.
  int64_t steps_held() const {
    return 1 + (o_.synthetic ? o_.warmup_steps() + (int64_t{o_.reps} + 1) * o_.steps
                             : std::max(o_.steps, o_.warmup_steps()));
  }

  // Makes n tokens: those of the text, repeated if it is short; without a text, random ids above
  // the control and byte pieces.
  void make_tokens(size_t n) {
    std::vector<int32_t> text;
    if (!o_.text.empty()) {
      text = tokenize(model_.get(), read_file(o_.text), 0);
      if (text.empty()) throw Exit(EXIT_RUN, o_.text + ": the text is empty");
    }
    uint64_t state = 1;
    const auto vocab = static_cast<uint64_t>(info_.count("vocab_size")),
               low = std::min<uint64_t>(300, vocab / 2);
    if (info_.id("bos_id") >= 0) tokens_.push_back(info_.id("bos_id"));
    while (tokens_.size() < n) {
      if (!text.empty()) {
        tokens_.push_back(text[tokens_.size() % text.size()]);
        continue;
      }
      state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
      tokens_.push_back(static_cast<int32_t>(low + (state >> 33) % (vocab - low)));
    }
  }

  // Cuts the session to n tokens. If it cannot be cut there, the missing tokens are read again.
  void truncate(riffle_session* session, size_t n) {
    const size_t reached = riffle_session_reach(session, n);
    check(riffle_session_truncate(session, reached), context_.get());
    if (reached < n)
      check(riffle_prefill(session, tokens_.data() + reached, n - reached, nullptr, nullptr),
            context_.get());
  }
  void truncate_all(size_t n) {
    for (const Session& s : sessions_) truncate(s.get(), n);
  }

  void go_to(riffle_session* session, size_t depth) {
    const size_t held = riffle_session_length(session);
    if (held >= depth) return truncate(session, depth);
    Progress progress(text_of("%s up to %zu tokens", o_.synthetic ? "filling" : "reading", depth),
                      o_.common.quiet);
    check(
        riffle_prefill(session, tokens_.data() + held, depth - held, Progress::callback, &progress),
        context_.get());
  }

  void measure_prefill(size_t n) {
    PrefillRow row{n, {}};
    riffle_session* const session = sessions_.front().get();
    double spent = 0;
    // A first short prefill brings the weights into memory.
    if (results_.prefill.empty()) {
      truncate(session, 0);
      go_to(session, std::min<size_t>(n, 512));
    }
    riffle_reset_stats(context_.get());
    for (int i = 0; i < o_.reps && (i == 0 || spent < kEnoughSeconds); ++i) {
      truncate(session, 0);
      const Clock::time_point start = Clock::now();
      go_to(session, n);
      row.seconds.push_back(seconds_since(start));
      spent += row.seconds.back();
    }
    row.tiles_read_pct = tiles_read_pct(context_stats(context_.get()));
    const riffle_operations o = riffle_prompt_operations(model_.get(), n);
    const double read = std::isfinite(row.tiles_read_pct) ? row.tiles_read_pct / 100 : 1;
    row.operations = o.products + o.window_attention + o.attention * read;
    results_.prefill.push_back(std::move(row));
  }

  // Runs n steps: calls `step` with the sessions and the next token for each.
  template <class StepFn>
  void each_step(int n, StepFn&& step) {
    std::vector<riffle_session*> sessions;
    for (const Session& s : sessions_) sessions.push_back(s.get());
    for (int i = 0; i < n; ++i) {
      const std::vector<int32_t> tokens(sessions.size(),
                                        tokens_[riffle_session_length(sessions.front())]);
      check(step(sessions.data(), tokens.data(), sessions.size()), context_.get());
    }
  }
  void steps(int n) {
    each_step(n, [&](riffle_session* const* sessions, const int32_t* tokens, size_t count) {
      return riffle_step(context_.get(), sessions, tokens, count);
    });
  }

  // Runs steps as greedy answers of the model: tokens computed ahead are accepted only if an answer
  // draws them. Returns the seconds that the answers took.
  double answer(size_t depth, int n) {
    // An answer begins with logits, which come from running a token.
    truncate_all(depth - 1);
    std::vector<riffle_session*> sessions;
    for (const Session& s : sessions_) sessions.push_back(s.get());
    for (riffle_session* s : sessions) go_to(s, depth);
    Options options;
    options.set("max-tokens", n + 1);  // the last one is drawn, but takes no step
    options.set("temp", 0);
    options.set("ignore-eos", true);
    const std::vector<const riffle_options*> all(sessions.size(), options.get());
    const Clock::time_point start = Clock::now();
    check(riffle_generate_many(context_.get(), sessions.data(), all.data(), sessions.size(),
                               nullptr, nullptr, nullptr),
          context_.get());
    const double seconds = seconds_since(start);
    if (interrupted()) throw Exit(EXIT_INTERRUPTED, "");
    return seconds;
  }

  // Returns the seconds of n steps, or of answers of n tokens.
  double timed_steps(size_t depth, int n) {
    if (o_.common.options.count("lookup") > 0) return answer(depth, n);
    if (!o_.synthetic) truncate_all(depth);
    const Clock::time_point start = Clock::now();
    steps(n);
    return seconds_since(start);
  }

  void measure_decode(size_t depth, const std::string& selector) {
    Options selection = o_.common.options;
    selection.set("selector", selector);
    check(riffle_context_select(context_.get(), selection.get()), context_.get());
    DecodeRow row{depth, selector, {}, {}, {}};
    depth = std::max<size_t>(depth, 1);
    truncate_all(depth);
    steps(o_.warmup_steps());
    riffle_reset_stats(context_.get());
    double spent = 0;
    for (int i = 0; i < o_.reps && (i == 0 || spent < kEnoughSeconds); ++i) {
      const double s = timed_steps(depth, o_.steps);
      row.seconds.push_back(s / o_.steps);
      spent += s;
    }
    row.stats = context_stats(context_.get());
    if (!o_.synthetic) truncate_all(depth);
    row.timing = take_apart();
    truncate_all(depth);
    row.bytes = weights_of_step();
    if (row.stats.count("decode_steps"))
      row.bytes += row.stats.number("kv_bytes_read") / row.stats.number("decode_steps");
    if (row.timing) row.bandwidth = row.timing->number("copy_bandwidth");
    else if (!results_.plan.on("device_memory"))
      row.bandwidth = read_bandwidth(static_cast<size_t>(row.bytes), results_.plan.id("n_threads"));
    results_.decode.push_back(std::move(row));
  }

  // Returns the bytes of weights that a step reads.
  double weights_of_step() const {
    const double experts = info_.number("expert_bytes"),
                 dense = info_.number("n_params") - info_.number("expert_params");
    double others = info_.number("weight_bytes") - experts;
    // With a separate output matrix, a step reads only single rows of the embedding.
    if (!info_.on("tied_output") && dense > 0)
      others *= 1 - info_.number("vocab_size") * info_.number("dim") / dense;
    if (info_.count("n_experts") == 0) return others;
    // A step reads the experts of a layer to which any of its tokens is routed. If tokens choose
    // evenly and independently, this share of the experts is unread on average.
    const double unread =
        std::pow(1 - info_.number("n_experts_used") / info_.number("n_experts"), o_.batch);
    return others + experts * (1 - unread);
  }

  // Returns the mean times of a few steps that run part by part; nothing if the device, such as the
  // CPU, does not time its parts.
  std::optional<Facts> take_apart() {
    bool timed = true;
    const int n = std::min(kProfileSteps, o_.steps);
    Facts sum, last;
    each_step(n, [&](riffle_session* const* sessions, const int32_t* tokens, size_t count) {
      const riffle_info* timing = nullptr;
      const riffle_status status =
          riffle_profile_step(context_.get(), sessions, tokens, count, &timing);
      if (timing) sum.add(last = Facts(timing));
      timed &= status != RIFFLE_UNSUPPORTED;
      return timed ? status : RIFFLE_OK;
    });
    if (!timed) return std::nullopt;
    for (const char* part :
         {"linear", "attention_score", "attention_rank", "attention_attend", "other", "total"})
      sum.set(part, sum.number(part) / n);
    for (const char* rate : {"copy_bandwidth", "link_bandwidth"}) sum.set(rate, last.number(rate));
    return sum;
  }

  BenchOptions& o_;
  Model model_;
  Context context_;
  std::vector<Session> sessions_;
  Facts info_;
  std::vector<int32_t> tokens_;
  BenchResults results_;
};

}  // namespace

Model make_synthetic(const std::string& shape, const std::string& weights) {
  riffle_model* model = nullptr;
  char err[1024] = "";
  const riffle_status status =
      riffle_model_synthetic(shape.c_str(), weights.c_str(), &model, err, sizeof err);
  if (status != RIFFLE_OK)
    throw Exit(status == RIFFLE_BAD_ARGUMENT ? EXIT_USAGE : exit_code_of(status), err);
  return Model(model);
}

static void add_bench_notes(CLI::App& command) {
  set_notes(
      command, "",
      R"(Columns: MB/token: the weights (for experts: the ones that a step reads on average), and the K
and V of the blocks read. memory GB/s: the rate of the same threads when they read a buffer of
that size (on a GPU: copying, read + write). bandwidth used: the share of that rate that decoding
reaches. loaded: KV copied from host memory to the pool. syncs: number of times the host waited
for the GPU. spread: slowest minus fastest repeat, as a share of the median. TFLOP/s: 10^12
operations a second of a prompt: products with weights, and attention to the keys that it reads.
share of peak: that rate as a share of one large product's (on a GPU two 8,192 x 8,192 matrices by
cuBLAS; on a CPU the model's largest matrix and 512 rows).
--shape: llama-3.1-8b, llama-3.2-1b, llama-3.2-3b, qwen3-8b, qwen3-30b-a3b, qwen3.8-27b, qwen3.5-9b,
qwen3.6-35b-a3b, nemotron-3-nano-30b-a3b, gemma-4-26b-a4b, glm-4.7-flash, muse-glimmer-30b,
llama-3-70b-layer or tiny. The weights are synthetic, of type --weights (default: q8_0). The speed
is real; the answers are meaningless.
With --lookup, decode is measured with greedy answers to the text, and ms/token is the time of an
answer divided by its tokens. tokens/step: tokens that a step gave each sequence.
With --arrivals: first token, time between tokens and delay (arrival to start of prefill) are as a
client sees them. Sequences in a step, blocks and working set are means over iterations with decode
steps; with --cost, they are those of the model that it simulates.)");
}

// Adds the flags for the things to measure and the number of repeats.
static Flag add_measured_flags(CLI::App& command, BenchOptions& o) {
  const Flag prefill =
      add_text(command, "--prefill", o.prefill, "prompt lengths whose prefill is measured; 0: none")
          .value("N,N")
          .shows_default();
  add_text(command, "--depth", o.depth, "tokens held when decode begins; 0: one token")
      .value("N,N")
      .shows_default();
  add_text(
      command, "--selectors", o.selectors,
      "selectors whose decode speed is measured; --selector NAME in its place measures NAME alone")
      .value("NAME,NAME")
      .shows_default();
  const Flag text = add_text(command, "--text", o.text, "text to run on; default: random tokens")
                        .group(kMeasureGroup)
                        .value("FILE");
  add_text(command, "--shape", o.shape,
           "synthetic weights of this shape in place of a model; the end of --help-all lists the "
           "names")
      .value("NAME")
      .excludes(flag_named(command, "--model"))
      .excludes(text);
  add_number(command, "--batch", o.batch, "sequences that step together")
      .range(1, 1024)
      .shows_default();
  add_number(command, "--reps", o.reps, "repeats of each measurement, whose median is shown")
      .range(1, 1000)
      .shows_default();
  add_number(command, "--steps", o.steps, "decode steps per measurement")
      .group(kMeasureGroup)
      .range(1, 100000)
      .shows_default();
  add_number(command, "--warmup", o.warmup,
             "steps before each measurement; default: 2, with --synthetic-attention 8")
      .group(kMeasureGroup)
      .value("N")
      .range(0, 100000);
  return prefill;
}

static Flag add_synthetic_flags(CLI::App& command, BenchOptions& o) {
  const std::string heading = "Synthetic attention";
  const Flag synthetic =
      add_switch(command, "--synthetic-attention", o.synthetic,
                 "use q, k and v of known sparsity, not the model's; prompts are filled in");
  const auto option = [&](const char* flag, auto& target, const char* what) {
    add_number(command, flag, target, what)
        .value("X")
        .needs(synthetic)
        .group(heading)
        .shows_default();
  };
  option("--synthetic-sparsity", o.attention.sparsity, "share of blocks that a query attends to");
  option("--synthetic-weight", o.attention.weight,
         "share of the attention weight that lies in these blocks");
  option("--synthetic-overlap", o.attention.overlap,
         "share of these blocks that the next query also attends to");
  option("--synthetic-seed", o.attention.seed, "seed that chooses these blocks");
  return synthetic;
}

void add_bench(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<BenchOptions>();
  // The plan includes key codes, because a plan for auto may have none and --selectors may need
  // them. If dense alone is measured, the plan is for dense.
  o->common.options.set("selector", "share");
  riffle_synthetic_attention_defaults(&o->attention);
  CLI::App& command =
      add_command(app, "bench", "Measure prefill speed by length and decode speed by depth");
  add_bench_notes(command);
  add_common_flags(command, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | COMPARISON_FLAGS | JSON_FLAG | WEIGHTS_FLAG);
  const Flag prefill = add_measured_flags(command, *o);
  const Flag synthetic = add_synthetic_flags(command, *o);
  add_arrivals_flags(command, o->arrivals);
  when_parsed(command, [o, &command, prefill, synthetic, &chosen] {
    if (o->arrivals.on) {
      for (const char* flag : {"--prefill", "--depth", "--selectors", "--text", "--steps", "--reps",
                               "--warmup", "--batch"})
        if (flag_named(command, flag).given()) refuse_both("--arrivals", flag);
      chosen = [o] { return run_arrivals(*o); };
      return;
    }
    if (synthetic.given() && prefill.given()) refuse_both("--synthetic-attention", "--prefill");
    const bool one = flag_named(command, "--selector").given();
    if (one && !flag_named(command, "--selectors").given())
      o->selectors = o->common.options.text("selector");
    if (!one && o->selectors == "dense") o->common.options.set("selector", "dense");
    chosen = [o] { return Bench(*o).run(); };
  });
}

}  // namespace riffle::cli
