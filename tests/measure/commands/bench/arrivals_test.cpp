#include "measure/commands/bench/arrivals.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/common/splitmix64.h"

namespace riffle::cli {
namespace {

std::map<std::string, std::string> files;  // by name

std::string read(const std::string& path) {
  const auto at = files.find(path);
  if (at == files.end()) throw Exit(EXIT_RUN, path + ": no such file");
  return at->second;
}
RequestLengths lengths_of(const std::string& spec) { return RequestLengths(spec, read); }
CostModel cost_model_of(const std::string& spec) { return parse_cost_model(spec, read); }

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Exit& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST_CASE("bench --arrivals: random numbers are SplitMix64's and streams differ", "[bench]") {
  // Reference values of the published generator from state 0 (Vigna's splitmix64.c).
  CHECK(splitmix64_mix(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu);
  CHECK(splitmix64_mix(2 * 0x9E3779B97F4A7C15u) == 0x6E789E6AA1B965F4u);
  RequestRandom a(7, 1), b(7, 1), c(7, 2), d(8, 1);
  for (int i = 0; i < 100; ++i) {
    const uint64_t x = a.next();
    CHECK(x == b.next());
    CHECK(x != c.next());
    CHECK(x != d.next());
  }
  std::vector<int> hits(10);
  for (int i = 0; i < 100000; ++i) {
    const uint64_t v = a.below(10);
    REQUIRE(v < 10);
    ++hits[v];
  }
  for (const int n : hits) CHECK(std::abs(n - 10000) < 500);  // 5 sigma
}

TEST_CASE("bench --arrivals: exponential numbers have that distribution", "[bench]") {
  RequestRandom random(3, 9);
  const int n = 200000;
  double sum = 0, squares = 0;
  std::vector<double> all;
  for (int i = 0; i < n; ++i) {
    const double x = random.exponential();
    REQUIRE(x >= 0);
    sum += x;
    squares += x * x;
    all.push_back(x);
  }
  CHECK(std::abs(sum / n - 1) <= 5 / std::sqrt(n));
  CHECK(std::abs(squares / n - 2) <= 5 * std::sqrt(20.0 / n));  // variance of x^2: 24 - 4
  // Kolmogorov-Smirnov: one seed in a thousand exceeds 1.95 / sqrt(n) by chance, and this is one
  // seed.
  std::sort(all.begin(), all.end());
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    const double f = 1 - std::exp(-all[i]);
    worst = std::max({worst, std::abs(f - i / double(n)), std::abs(f - (i + 1) / double(n))});
  }
  CHECK(worst <= 1.95 / std::sqrt(n));
}

TEST_CASE("bench --arrivals: arrivals", "[bench]") {
  const std::vector<double> slow = poisson_arrivals(1000, 0.5, 4),
                            fast = poisson_arrivals(1000, 2, 4);
  CHECK(std::is_sorted(slow.begin(), slow.end()));
  CHECK(slow.front() > 0);
  for (size_t i = 0; i < slow.size(); ++i) CHECK(slow[i] == 4 * fast[i]);  // powers of two: exact
  CHECK(std::abs(fast.back() - 500) <= 5 * std::sqrt(1000.0) / 2);
  CHECK(poisson_arrivals(3, 0, 4) == std::vector<double>{0, 0, 0});
  CHECK(poisson_arrivals(10, 1, 4) != poisson_arrivals(10, 1, 5));
}

TEST_CASE("bench --arrivals: quantiles between knots", "[bench]") {
  const std::pair<int, int> knots[] = {{0, 100}, {50, 200}, {100, 1000}};
  CHECK(quantile_of(knots, 3, 0) == 100);
  CHECK(quantile_of(knots, 3, 250000) == 150);
  CHECK(quantile_of(knots, 3, 500000) == 200);
  CHECK(quantile_of(knots, 3, 750000) == 600);
  CHECK(quantile_of(knots, 3, 999999) == 999);
  CHECK(quantile_of(kLongBenchPrompt, std::size(kLongBenchPrompt), 500000) == 6900);
  CHECK(quantile_of(kLongBenchPrompt, std::size(kLongBenchPrompt), 1000000) == 64000);
}

TEST_CASE("bench --arrivals: LongBench-like lengths have the mean that is told, and fit",
          "[bench]") {
  const RequestLengths lengths = lengths_of("longbench");
  CHECK(lengths.random());
  double prompts = 0, outputs = 0;
  const size_t n = 50000;
  for (const RequestLength& l : lengths.draw(n, 1, 0)) {
    CHECK((l.prompt >= 500 && l.prompt <= 64000 && l.output >= 16 && l.output <= 512));
    prompts += l.prompt;
    outputs += l.output;
  }
  CHECK(std::abs(prompts / n - 9600) <= 250);
  CHECK(std::abs(outputs / n - 160) <= 10);
  for (const RequestLength& l : lengths.draw(1000, 1, 4096)) CHECK(l.prompt + l.output <= 4096);
  const auto whole = lengths.draw(100, 2, 0),
             quarter = lengths_of("longbench:0.25").draw(100, 2, 0);
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(quarter[i].prompt == whole[i].prompt / 4);
    CHECK(quarter[i].output == whole[i].output);
  }
  CHECK(lengths.draw(100, 3, 0)[99].prompt != whole[99].prompt);
  CHECK(has(error_of([&] { lengths.draw(10, 1, 16); }), "do not fit the context of 16"));
}

TEST_CASE("bench --arrivals: lengths given", "[bench]") {
  const RequestLengths fixed = lengths_of("1000:20");
  CHECK_FALSE(fixed.random());
  const auto drawn = fixed.draw(3, 1, 1020);
  CHECK((drawn.size() == 3 && drawn[2].prompt == 1000 && drawn[2].output == 20));
  CHECK(has(error_of([&] { fixed.draw(3, 1, 1019); }),
            "1000 and 20 more tokens do not fit the context of 1019"));

  files["three"] = "# prompt output\n100 5\r\n\n 200\t 6 \n300 7";
  const RequestLengths three = lengths_of("three");
  REQUIRE(three.given.size() == 3);
  const auto again = three.draw(4, 1, 0);
  CHECK((again[1].prompt == 200 && again[1].output == 6 && again[2].output == 7 &&
         again[3].prompt == 100));

  for (const char* bad : {"100", "100 x", "100 5 6", "0 5", "5 0", "-3 4", "100 5.5", "1e3 4",
                          "99999999999999999999 1", "268435457 1", "100x5", "a"}) {
    files["wrong"] = "10 1\n" + std::string(bad) + "\n20 2\n";
    const std::string error = error_of([&] { lengths_of("wrong"); });
    INFO(bad << ": " << error);
    CHECK(has(error, "wrong, line 2: '" + std::string(bad) + "'"));
  }
  files["empty"] = "\n# nothing\n";
  CHECK(has(error_of([&] { lengths_of("empty"); }), "there is no line"));
  CHECK_FALSE(error_of([] { lengths_of("no/such/file"); }).empty());
  for (const char* bad :
       {"longbench:", "longbench:x", "longbench:0", "longbench:1e9", "longbench:1x"})
    CHECK(has(error_of([&] { lengths_of(bad); }), "--lengths '" + std::string(bad) + "'"));
}

TEST_CASE("bench --arrivals: prompts", "[bench]") {
  Facts info;
  info.set("vocab_size", 1024);
  info.set("bos_id", 1);
  const auto a = random_prompt(500, 100, 5, 0, info), b = random_prompt(500, 100, 5, 1, info),
             c = random_prompt(50, 100, 5, 2, info);
  CHECK((a.size() == 500 && a[0] == 1 && c.size() == 50));
  CHECK(std::equal(a.begin(), a.begin() + 100, b.begin()));
  CHECK(std::equal(c.begin(), c.end(), a.begin()));
  CHECK(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin() < 104);
  for (size_t i = 1; i < a.size(); ++i) CHECK((a[i] >= 300 && a[i] < 1024));
  CHECK(a == random_prompt(500, 100, 5, 0, info));
  info.set("bos_id", -1);
  info.set("vocab_size", 2);
  for (const int32_t t : random_prompt(50, 0, 5, 0, info)) CHECK((t == 1));
}

TEST_CASE("bench --arrivals: means and percentiles", "[bench]") {
  std::vector<double> v;
  for (int i = 200; i >= 1; --i) v.push_back(i);
  CHECK(mean(v) == 100.5);
  CHECK(percentile(v, 50) == 100);
  CHECK(percentile(v, 99) == 198);
  CHECK(percentile(v, 100) == 200);
  CHECK(percentile(v, 0) == 1);
  CHECK(percentile({5}, 99) == 5);
  CHECK(percentile({3, 1, 2}, 50) == 2);
  CHECK(percentile({4, 1, 2, 3}, 99) == 4);
  CHECK(std::isnan(percentile({}, 50)));
  CHECK(std::isnan(mean({})));
}

// Returns a model of round numbers. Its 4 layers of 2 KV heads run as 2 layers of 1, and its heads
// of 8 as heads of 4. So a block counts as 4, a byte of KV as 8.
CostModel round_model() {
  CostModel c;
  c.layers = 4;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.layer_params = 4e6;
  c.output_params = 1e6;
  c.memory_gb_s = 1;          // 10 MB of weights: 10 ms
  c.linear_tflops = 1e-3;     // 1e9/s
  c.attention_tflops = 1e-4;  // 1e8/s
  c.load_gb_s = 0.5;
  c.flush_gb_s = 0.001;
  c.copy_load_gb_s = 0.05;
  c.copy_flush_gb_s = 0.0001;
  c.step_us = 100;
  c.row_us = 10;
  return c;
}
const RunShape kRun{2, 1, 4, 16};

TEST_CASE("bench --arrivals: the cost of decode steps, by hand", "[bench]") {
  CostModel c = round_model();
  CHECK(block_scale(c, kRun) == 4);
  CHECK(block_bytes(c, kRun) == 16 * 8 * 4);
  IterationWork w;
  CHECK(cost_of(c, kRun, w).total() == 0);
  w.decode_rows = 1;
  w.selects = false;
  // One row: reading two bytes a parameter takes 10 ms, and 2 x 5e6 operations take 10 ms too.
  CHECK(cost_of(c, kRun, w).decode == Approx(10e-3 + 100e-6));
  w.decode_rows = 3;
  CHECK(cost_of(c, kRun, w).decode == Approx(30e-3 + 100e-6));
  w.selects = true;
  CHECK(cost_of(c, kRun, w).decode == Approx(30e-3 + 130e-6));
  w.kv_bytes = 1000;
  w.index_bytes = 250;  // 1,250 bytes count as 10,000: 10 us
  CHECK(cost_of(c, kRun, w).decode == Approx(30e-3 + 140e-6));
  CHECK(cost_of(c, kRun, w).load == 0);
  w.blocks_loaded = 100;  // 400 blocks of 512 bytes at 0.5 GB/s
  CHECK(cost_of(c, kRun, w).load == Approx(409.6e-6));
  CHECK(cost_of(c, kRun, w).total() == Approx(30e-3 + 140e-6 + 409.6e-6));
  c.first_row_us = 50;
  CHECK(cost_of(c, kRun, w).decode == Approx(30e-3 + 190e-6));
  w.selects = false;
  CHECK(cost_of(c, kRun, w).decode == Approx(30e-3 + 110e-6));
  w.selects = true;
  c.first_row_us = 0;
  c.overlap_loads = 0.5;
  CHECK(cost_of(c, kRun, w).load == Approx(204.8e-6));
  w.blocks_loaded = 100000;  // 409.6 ms, of which half of the step's 30.14 ms are hidden
  CHECK(cost_of(c, kRun, w).load == Approx(409.6e-3 - 15.07e-3));
  w.resident = true;
  CHECK(cost_of(c, kRun, w).load == 0);
}

TEST_CASE("bench --arrivals: the cost of prefill, by hand", "[bench]") {
  const CostModel c = round_model();
  IterationWork w;
  w.prompt_tokens = 10;
  w.token_layers = 20;  // the whole prompt: 40 token-layers of the simulated 4 layers
  w.pairs = 110;        // 55 a layer: 220
  w.resident = true;
  // 2 x 1e6 x 40 operations take 80 ms, more than the 8 ms for 8 MB of weights of 4 layers.
  // Attention: 4 x 8 x 4 x 220 = 28,160 operations take 0.2816 ms.
  CHECK(cost_of(c, kRun, w).prefill == Approx(80e-3 + 0.2816e-3));
  CHECK(cost_of(c, kRun, w).decode == 0);
  w.token_layers = 10;  // half of the layers
  w.pairs = 55;
  CHECK(cost_of(c, kRun, w).prefill == Approx(40e-3 + 0.1408e-3));
  CostModel fast = c;
  fast.linear_tflops = 1;  // weights of two layers: 4 ms
  CHECK(cost_of(fast, kRun, w).prefill == Approx(4e-3 + 0.1408e-3));
  // To the host, 2 KV heads x 8 x 4 bytes x 20 token-layers = 1,280 bytes at 1 MB/s: 1.28 ms,
  // hidden.
  w.resident = false;
  CHECK(cost_of(c, kRun, w).prefill == Approx(40e-3 + 0.1408e-3));
  CostModel slow = c;
  slow.flush_gb_s = 1e-5;  // 128 ms: not hidden
  CHECK(cost_of(slow, kRun, w).prefill == Approx(128e-3));
}

TEST_CASE("bench --arrivals: chunks read what came before them again", "[bench]") {
  CostModel c = round_model();
  IterationWork w;
  w.chunks = true;
  w.prompt_tokens = 100;
  w.token_layers = 20;  // a chunk of 10 tokens in both layers
  // After 30 tokens: 10 x 30 + 55 pairs in each layer.
  w.pairs = 2 * (300 + 55);
  const double compute = 80e-3 + 4 * 8 * 4 * 1420 / 1e8;
  // 30 tokens x 4 layers x 64 bytes at 0.5 GB/s.
  CHECK(cost_of(c, kRun, w).prefill == Approx(compute + 7680 / 0.5e9).epsilon(1e-9));
  c.reload = 0;
  CHECK(cost_of(c, kRun, w).prefill == Approx(compute).epsilon(1e-9));
  c.reload = 1;
  w.resident = true;
  CHECK(cost_of(c, kRun, w).prefill == Approx(compute).epsilon(1e-9));
  w.resident = false;
  w.pairs = 110;  // the first chunk
  CHECK(cost_of(c, kRun, w).prefill == Approx(80e-3 + 4 * 8 * 4 * 220 / 1e8).epsilon(1e-9));
}

TEST_CASE("bench --arrivals: cost models by name, file and key", "[bench]") {
  const CostModel h200 = cost_model_of("h200-8b");
  // The measurements from which the model was made (gpu.md): dense decode at 1,024 tokens 220.8
  // tokens/s, prefill of 32,768 tokens 21,886 tokens/s.
  const RunShape same{32, 8, 128, 32};
  IterationWork step;
  step.decode_rows = 1;
  step.selects = false;
  step.kv_bytes = 1024 * 32 * 8 * 128 * 4.0;
  CHECK(1 / cost_of(h200, same, step).decode == Approx(220.8).epsilon(0.05));
  IterationWork prompt;
  prompt.prompt_tokens = 32768;
  prompt.token_layers = 32 * 32768.0;
  prompt.pairs = 32 * 32768.0 * 32769 / 2;
  CHECK(32768 / cost_of(h200, same, prompt).prefill == Approx(21886).epsilon(0.05));

  CHECK(cost_model_of("h200-8b,copies").load_gb_s == h200.copy_load_gb_s);
  CHECK(cost_model_of("h200-8b,copies").flush_gb_s == h200.copy_flush_gb_s);
  CHECK(cost_model_of("load_gb_s=7").load_gb_s == 7);
  CHECK(cost_model_of("a100-lwm-7b, load_gb_s = 7,step_us=0").load_gb_s == 7);
  CHECK(cost_model_of("a100-lwm-7b").kv_heads == 32);
  files["mine"] = "a100-8b  # as the paper's\n\nstep_us = 5\n";
  CHECK(cost_model_of("mine").memory_gb_s == 1300);
  CHECK(cost_model_of("mine,row_us=3").step_us == 5);
  CHECK(cost_model_of("mine,row_us=3").row_us == 3);
  files["wrong"] = "a100-8b\nstep_us = five\n";
  files["unknown"] = "a100-8b\n\nsteps = 5\n";
  CHECK(has(error_of([&] { cost_model_of("wrong"); }), "wrong, line 2: step_us is 'five'"));
  CHECK(has(error_of([&] { cost_model_of("unknown"); }), "unknown, line 3: 'steps' is not known"));
  for (const char* bad : {"h200-8b,", "h200-8b,nan", "h200-8b,step_us", "h200-8b,step_us=nan",
                          "h200-8b,memory_gb_s=0", "h200-8b,step_us=-1", "h200-8b,load_gb_s=5x",
                          "overlap_loads=2", "h200-9b", ""}) {
    INFO(bad);
    CHECK_FALSE(error_of([&] { cost_model_of(bad); }).empty());
  }
}

}  // namespace
}  // namespace riffle::cli
