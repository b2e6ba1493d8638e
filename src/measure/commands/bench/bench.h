// riffle bench in parts: bench.cpp measures, bandwidth.cpp measures the machine, report.cpp prints
// the results. arrivals.h has requests that arrive over time.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "measure/commands/bench/arrivals.h"
#include "riffle_measure.h"

namespace riffle::cli {

struct BenchOptions {
  CommonOptions common;
  std::string prefill = "512,4096", depth = "0,4096,16384", selectors = "dense,share", text;
  std::string shape;  // "": a model file
  // Returns the type of the weights of a shape.
  std::string weights() const {
    const std::string given = common.options.text("weights");
    return given.empty() ? "q8_0" : given;
  }
  bool synthetic = false;  // --synthetic-attention
  riffle_synthetic_attention attention;
  int steps = 32, reps = 3, batch = 1;
  std::optional<int> warmup;
  ArrivalsOptions arrivals;  // --arrivals
  // Returns the number of steps before a measurement. They fill buffers and caches, and with
  // synthetic attention the pool with the blocks of the last steps.
  int warmup_steps() const { return warmup.value_or(synthetic ? 8 : 2); }
};

// Makes a model of this shape with synthetic weights of this type. Throws Exit.
Model make_synthetic(const std::string& shape, const std::string& weights);

struct PrefillRow {
  size_t tokens;
  std::vector<double> seconds;
  // Percentage of key tiles that were read. NaN: no query tile chose, so all keys were read.
  double tiles_read_pct = std::numeric_limits<double>::quiet_NaN();
  double operations = 0;  // number needed; key tiles that were not read do not count
};

struct DecodeRow {
  size_t depth;
  std::string selector;
  std::vector<double> seconds;  // per step
  Facts stats;
  std::optional<Facts> timing;  // timing of one step, in parts
  double bytes = 0;             // read per step
  double bandwidth = 0;         // bytes per second of the device's memory; 0: not known
};

struct BenchResults {
  Facts plan;          // empty: there is none
  std::string notice;  // notice of the context
  std::vector<PrefillRow> prefill;
  std::vector<DecodeRow> decode;
  double product_rate = 0;   // riffle_product_rate; 0: not known, or nothing needs it
  Facts stats;               // at the end
  bool interrupted = false;  // by Ctrl-C: the results are those until then
};

double median(std::vector<double> values);

// Returns the bytes per second at which n_threads read a buffer of that size over and over. One
// token's weights and KV of that size cannot be read faster on this machine, its cache included.
double read_bandwidth(size_t bytes, int n_threads);

Json synthetic_attention_json(const BenchOptions& options);  // null without one
Json bench_json(const BenchOptions& options, const BenchResults& results);
void print_bench(const BenchOptions& options, const BenchResults& results);

}  // namespace riffle::cli
