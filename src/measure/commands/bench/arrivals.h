// riffle bench --arrivals in parts: many requests arrive at a scheduler, and each one's waiting
// times are measured. _workload makes the requests, _cost says how long an iteration takes where
// the clock is a virtual one, _replay runs them, _report tells; arrivals.cpp has the flags and the
// search for the highest rate.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

struct BenchOptions;

using ReadFile = std::string(const std::string& path);  // read_file of common.h
// Reads the file that a flag names in place of one of its words. Throws Exit as a usage error, with
// `otherwise` first, if it cannot be read.
std::string read_given(ReadFile* read, const std::string& path, const std::string& otherwise);

// ---- requests ----

// Random numbers that are the same on every platform: SplitMix64 (Steele, Lea and Flood, OOPSLA
// 2014). Streams of one seed with different numbers are independent.
class RequestRandom {
 public:
  RequestRandom(uint64_t seed, uint64_t stream);
  uint64_t next();
  uint64_t below(uint64_t n);  // 0 to n - 1; n < 2^32
  double uniform();            // [0,1), a multiple of 2^-53
  // Exponentially distributed with mean 1, only by comparisons and additions (von Neumann, "Various
  // techniques used in connection with random digits", 1951), so that no platform's log() matters.
  double exponential();

 private:
  uint64_t state_;
};

struct RequestLength {
  int32_t prompt = 0, output = 0;  // tokens
};

// The value of --lengths: "longbench", "longbench:SCALE", "PROMPT:OUTPUT", or the name of a file
// with a line "PROMPT OUTPUT" for each request. Files are read here and checked: throws Exit,
// naming file and line.
struct RequestLengths {
  RequestLengths(const std::string& spec, ReadFile* read);
  // n of them: a file's in order, from its beginning again when they run out. n_ctx 0: no limit.
  // Random prompts are cut to fit; others that do not fit throw Exit.
  std::vector<RequestLength> draw(size_t n, uint64_t seed, int64_t n_ctx) const;
  bool random() const { return given.empty(); }

  std::string spec;
  double scale = 1;                  // scale of random prompts
  std::vector<RequestLength> given;  // empty: random ones, as LongBench's
};

// Quantile functions, linear between these knots: percent, tokens. They are riffle's own choice,
// near log-normal ones with a mean of about 9,600 tokens, which is LongBench's published average of
// 6,711 words (Bai et al., ACL 2024) at 1.4 tokens a word (median 6,900, sigma 0.8), and answers
// from a line to LongBench's longest, 512 tokens.
inline constexpr std::pair<int, int> kLongBenchPrompt[] = {
    {0, 500},    {1, 1070},   {5, 1850},   {10, 2480},  {25, 4020},  {50, 6900},
    {75, 11840}, {90, 19240}, {95, 25730}, {99, 44370}, {100, 64000}};
inline constexpr std::pair<int, int> kLongBenchOutput[] = {
    {0, 16}, {10, 40}, {25, 70}, {50, 128}, {75, 220}, {90, 330}, {99, 500}, {100, 512}};
// The quantile at millionth / 10^6, in whole numbers.
int32_t quantile_of(const std::pair<int, int>* knots, size_t n_knots, uint32_t millionth);

// Arrival times in seconds, not decreasing, Poisson at `rate` a second; 0: all at 0. The same seed
// at another rate is the same process at another speed.
std::vector<double> poisson_arrivals(size_t n, double rate, uint64_t seed);

// Random token ids above control and byte pieces, after the model's first token if it has one.
// Prompts of all requests of a seed have the first shared_prefix in common.
std::vector<int32_t> random_prompt(size_t n_tokens, size_t shared_prefix, uint64_t seed,
                                   uint64_t request, const Facts& info);

struct TimedRequest {
  double arrival = 0;
  std::vector<int32_t> prompt;
  int32_t output = 0;
};

// ---- what an iteration costs ----

// A model on a device, as far as the time of an iteration goes. K and V take 2 bytes a value.
struct CostModel {
  double layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double layer_params = 0, output_params = 0;  // in all layers' matrices; in the output matrix
  double param_bytes = 2;
  double memory_gb_s = 0;       // weights, KV and indexes are read at
  double linear_tflops = 0;     // products with weights
  double attention_tflops = 0;  // prefill's attention
  double load_gb_s = 0,
         flush_gb_s = 0;  // blocks to the device and back, by one kernel (FlashH2D, FlashD2H)
  double copy_load_gb_s = 0, copy_flush_gb_s = 0;  // the same by a copy for each block
  double step_us = 0;        // time of each iteration with decode rows, whatever they are
  double row_us = 0;         // time of each decode row that selects
  double first_row_us = 0;   // more of the first one
  double overlap_loads = 0;  // share of the loads' time that overlaps the step's other work: 0,
                             // they wait for each other
  double reload =
      1;  // 1: prefill in chunks loads the earlier chunks' KV again; 0: it stays on the device
};

// "NAME[,copies][,KEY=VALUE...]", NAME one of cost_model_names() or a file of lines "KEY = VALUE",
// the first maybe a NAME; without a NAME the first of them. Throws Exit, naming key, file and line.
CostModel parse_cost_model(const std::string& spec, ReadFile* read);
std::string cost_model_names();
std::vector<std::pair<const char*, double>> cost_model_values(const CostModel& cost);  // every key

// The model that really runs.
struct RunShape {
  double layers = 0, kv_heads = 0, head_dim = 0, block_size = 0;
};

// Work of one iteration of the model that really runs.
struct IterationWork {
  double decode_rows = 0, kv_bytes = 0, index_bytes = 0, blocks_loaded = 0;
  double token_layers = 0, pairs = 0;  // work of prefill; pairs in one head
  double prompt_tokens = 0;            // tokens of the prompt that is being read
  bool chunks = false;                 // its prefill goes through all layers
  bool selects = true;                 // decode rows choose their blocks
  bool resident = false;               // all KV stays on the device
};

struct IterationCost {
  double decode = 0, load = 0, prefill = 0;  // seconds; load: beyond what decode hides
  double total() const { return decode + load + prefill; }
};

// Blocks of the model stood for, for each block of the one that runs: their (layer, KV head) pairs.
double block_scale(const CostModel& cost, const RunShape& run);
double block_bytes(const CostModel& cost, const RunShape& run);
IterationCost cost_of(const CostModel& cost, const RunShape& run, const IterationWork& work);

// ---- a run ----

struct ArrivalsOptions {
  bool on = false;  // --arrivals
  double rate = 1;
  int requests = 0;  // 0: 100, or a line of the file each
  std::string lengths = "longbench";
  uint64_t seed = 1;
  uint64_t shared_prefix = 0;
  std::string cost;  // "": the clock on the wall
  uint64_t pool_mem = 0;
  bool all_resident = false;
  bool goodput = false;
  double tbt_limit = 0;    // seconds; 0: 25 lone decode steps
  double delay_limit = 2;  // seconds
  uint64_t max_seqs = 0;
  Options scheduler;
};

struct ReplaySetup {
  riffle_context* context = nullptr;
  const Options* scheduler = nullptr;
  const CostModel* cost = nullptr;  // null: the clock on the wall
  RunShape run;
  bool selects = true;
  int64_t resident_blocks = 0;  // 0: no limit; else requests are held back until all their KV fits
                                // in addition to the others'
};

struct ReplayResult {
  double seconds = 0;  // from the first arrival's zero to the last token
  std::vector<double> ttft, gaps,
      delays;  // seconds: arrival to first token; between tokens; arrival to begin of its prefill
  uint64_t requests = 0, done = 0;  // fewer done: Ctrl-C ended the run; figures until then
  uint64_t failed = 0, prompt_tokens = 0, reused_tokens = 0, output_tokens = 0;
  std::string error;  // error of the first that failed
  uint64_t iterations = 0, decode_iterations = 0, decode_rows = 0, skipped = 0;
  double blocks_loaded = 0, blocks_read = 0;  // blocks of the model that runs
  uint64_t pool_lookups = 0, pool_hits = 0;
  double working_set = 0, available = 0;  // sums over decode iterations
  double longest_stall = 0;  // longest wait of decoding sequences for one piece of prefill
  double prefill_kv_blocks =
      0;  // the most that the device held for prompts (riffle_scheduler_iteration)
  double decode_seconds = 0, load_seconds = 0, prefill_seconds = 0;  // with a cost model
  // Seconds on this machine, also where the clock is a virtual one: until the first token, in all.
  double machine_first_token = 0, machine_seconds = 0;
};

// Sends the requests to a scheduler of their own when they are due, and runs it until all are over,
// or until Ctrl-C. Throws Exit.
ReplayResult replay(const ReplaySetup& setup, const std::vector<TimedRequest>& requests);

// ---- reports ----

// NaN of nothing.
inline double mean(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}
// The smallest value that p percent of them do not exceed; NaN of nothing.
inline double percentile(std::vector<double> v, int p) {
  if (v.empty()) return std::numeric_limits<double>::quiet_NaN();
  const size_t rank = (v.size() * static_cast<size_t>(p) + 99) / 100;  // rounded up, from 1
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

struct GoodputProbe {
  double rate = 0, tbt_p99 = 0, delay = 0;
  bool within = false;
};

struct ArrivalsReport {
  Facts plan, stats;
  std::optional<CostModel> cost;
  RunShape run;
  double lone_step = 0, tbt_limit = 0;  // seconds
  std::optional<ReplayResult> result;
  double goodput = 0;    // requests a second; 0: none found
  bool bounded = false;  // a higher rate was beyond the limits
  std::vector<GoodputProbe> probes;
  bool interrupted = false;
  std::string notice;
};
Json arrivals_json(const BenchOptions& options, const ArrivalsReport& report);
void print_arrivals(const BenchOptions& options, const ArrivalsReport& report);

void add_arrivals_flags(CLI::App& app, ArrivalsOptions& options);
int run_arrivals(BenchOptions& options);

}  // namespace riffle::cli
