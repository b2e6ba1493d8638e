// riffle bench --arrivals in parts: many requests arrive at a scheduler, and each request's waiting
// times are measured. _workload makes the requests, _cost gives the time of an iteration on the
// virtual clock, _replay runs the requests, _report prints the results. arrivals.cpp has the flags
// and the search for the highest rate.
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
// Reads the file that a flag names instead of one of its words. If it cannot be read, throws Exit
// as a usage error whose text begins with `otherwise`.
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
  // Returns n lengths: a file's in order, from its beginning again when they run out. n_ctx 0: no
  // limit. Random prompts are cut to fit; other lengths that do not fit throw Exit.
  std::vector<RequestLength> draw(size_t n, uint64_t seed, int64_t n_ctx) const;
  bool random() const { return given.empty(); }

  std::string spec;
  double scale = 1;                  // scale of random prompts
  std::vector<RequestLength> given;  // empty: random lengths, similar to LongBench
};

// Quantile functions, linear between these knots: percent, tokens. They are riffle's own choice.
// Prompts are near log-normal (median 6,900, sigma 0.8) with a mean of about 9,600 tokens, which is
// LongBench's published average of 6,711 words (Bai et al., ACL 2024) at 1.4 tokens a word. Answers
// go from a line to LongBench's longest, 512 tokens.
inline constexpr std::pair<int, int> kLongBenchPrompt[] = {
    {0, 500},    {1, 1070},   {5, 1850},   {10, 2480},  {25, 4020},  {50, 6900},
    {75, 11840}, {90, 19240}, {95, 25730}, {99, 44370}, {100, 64000}};
inline constexpr std::pair<int, int> kLongBenchOutput[] = {
    {0, 16}, {10, 40}, {25, 70}, {50, 128}, {75, 220}, {90, 330}, {99, 500}, {100, 512}};
// Returns the quantile at millionth / 10^6, in whole numbers.
int32_t quantile_of(const std::pair<int, int>* knots, size_t n_knots, uint32_t millionth);

// Returns arrival times in seconds, in order, of a Poisson process with `rate` a second; 0: all at
// 0. The same seed at another rate gives the same process at another speed.
std::vector<double> poisson_arrivals(size_t n, double rate, uint64_t seed);

// Returns random token ids above control and byte pieces, after the beginning-of-sequence token if
// the model has one. Prompts of all requests of a seed have the first shared_prefix in common.
std::vector<int32_t> random_prompt(size_t n_tokens, size_t shared_prefix, uint64_t seed,
                                   uint64_t request, const Facts& info);

struct TimedRequest {
  double arrival = 0;
  std::vector<int32_t> prompt;
  int32_t output = 0;
};

// ---- cost of an iteration ----

// The properties of a model and a device that give the time of an iteration. K and V take 2 bytes a
// value.
struct CostModel {
  double layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double layer_params = 0, output_params = 0;  // parameters of all layers; of the output matrix
  double param_bytes = 2;
  double memory_gb_s = 0;       // rate of reading weights, KV and indexes
  double linear_tflops = 0;     // products with weights
  double attention_tflops = 0;  // prefill's attention
  double load_gb_s = 0,
         flush_gb_s = 0;  // blocks to the device and back, by one kernel (FlashH2D, FlashD2H)
  double copy_load_gb_s = 0, copy_flush_gb_s = 0;  // the same with one copy for each block
  double step_us = 0;                              // fixed time of each iteration with decode rows
  double row_us = 0;                               // time of each decode row that selects
  double first_row_us = 0;                         // extra time of the first of these rows
  double overlap_loads = 0;  // share of the load time that overlaps the step's other work
  double reload =
      1;  // 1: prefill in chunks loads the earlier chunks' KV again; 0: it stays on the device
};

// Parses "NAME[,copies][,KEY=VALUE...]". NAME is one of cost_model_names(), or a file of lines
// "KEY = VALUE" whose first line may be a name; without a name, the first model is used. Throws
// Exit, naming key, file and line.
CostModel parse_cost_model(const std::string& spec, ReadFile* read);
std::string cost_model_names();
std::vector<std::pair<const char*, double>> cost_model_values(const CostModel& cost);  // every key

// Shape of the model that really runs.
struct RunShape {
  double layers = 0, kv_heads = 0, head_dim = 0, block_size = 0;
};

// Work of one iteration of the model that really runs.
struct IterationWork {
  double decode_rows = 0, kv_bytes = 0, index_bytes = 0, blocks_loaded = 0;
  double token_layers = 0, pairs = 0;  // work of prefill; pairs in one head
  double prompt_tokens = 0;            // tokens of the prompt that is being read
  bool chunks = false;                 // each piece of prefill goes through all layers
  bool selects = true;                 // decode rows choose their blocks
  bool resident = false;               // all KV stays on the device
};

struct IterationCost {
  double decode = 0, load = 0, prefill = 0;  // seconds; load: the part that decode does not hide
  double total() const { return decode + load + prefill; }
};

// Returns the number of blocks of the simulated model for each block of the model that runs: the
// ratio of their (layer, KV head) pairs.
double block_scale(const CostModel& cost, const RunShape& run);
double block_bytes(const CostModel& cost, const RunShape& run);
IterationCost cost_of(const CostModel& cost, const RunShape& run, const IterationWork& work);

// ---- a run ----

struct ArrivalsOptions {
  bool on = false;  // --arrivals
  double rate = 1;
  int requests = 0;  // 0: 100, or one for each line of the file
  std::string lengths = "longbench";
  uint64_t seed = 1;
  uint64_t shared_prefix = 0;
  std::string cost;  // "": the wall clock
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
  const CostModel* cost = nullptr;  // null: the wall clock
  RunShape run;
  bool selects = true;
  int64_t resident_blocks = 0;  // 0: no limit; else a request is held back until its whole KV fits
                                // besides the others'
};

struct ReplayResult {
  double seconds = 0;  // from time 0 to the last token
  std::vector<double> ttft, gaps,
      delays;  // seconds: arrival to first token; between tokens; arrival to start of its prefill
  uint64_t requests = 0, done = 0;  // fewer done: Ctrl-C ended the run; the figures are until then
  uint64_t failed = 0, prompt_tokens = 0, reused_tokens = 0, output_tokens = 0;
  std::string error;  // error of the first request that failed
  uint64_t iterations = 0, decode_iterations = 0, decode_rows = 0, skipped = 0;
  double blocks_loaded = 0, blocks_read = 0;  // blocks of the model that runs
  uint64_t pool_lookups = 0, pool_hits = 0;
  double working_set = 0, available = 0;  // sums over decode iterations
  double longest_stall = 0;  // longest wait of decoding sequences for a part of a prefill
  double prefill_kv_blocks =
      0;  // the most blocks that the device held for prompts (riffle_scheduler_iteration)
  double decode_seconds = 0, load_seconds = 0, prefill_seconds = 0;  // with a cost model
  // Seconds on this machine, even with a virtual clock: until the first token, and in total.
  double machine_first_token = 0, machine_seconds = 0;
};

// Sends the requests to a new scheduler when they are due, and runs it until all have ended or
// until Ctrl-C. Throws Exit.
ReplayResult replay(const ReplaySetup& setup, const std::vector<TimedRequest>& requests);

// ---- reports ----

// Returns the mean; NaN if v is empty.
inline double mean(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}
// Returns the smallest value that p percent of the values do not exceed; NaN if v is empty.
inline double percentile(std::vector<double> v, int p) {
  if (v.empty()) return std::numeric_limits<double>::quiet_NaN();
  const size_t rank = (v.size() * static_cast<size_t>(p) + 99) / 100;  // rounded up, 1 = smallest
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
