// One run of riffle bench --arrivals: requests go to the scheduler when they are due, by the wall
// clock, or by a virtual clock that advances by the cost of each iteration.
#include <algorithm>
#include <cmath>
#include <thread>
#include <unordered_map>
#include <utility>

#include "measure/commands/bench/arrivals.h"

namespace riffle::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxIdle =
    1000;  // far more than the failed requests in a row, each of which takes an idle iteration

struct SchedulerDeleter {
  void operator()(riffle_scheduler* p) const { riffle_scheduler_free(p); }
};

class Replay {
 public:
  Replay(const ReplaySetup& setup, const std::vector<TimedRequest>& requests)
      : setup_(setup), requests_(requests), states_(requests.size()) {}

  ReplayResult run() {
    riffle_scheduler* scheduler = nullptr;
    check(riffle_scheduler_create(setup_.context, setup_.scheduler->get(), this, &scheduler),
          setup_.context);
    riffle_scheduler_on_token(scheduler, [](void* self, uint64_t id, const riffle_token* token) {
      return static_cast<Replay*>(self)->on_token(id, token->id);
    });
    riffle_scheduler_on_end(
        scheduler, [](void* self, uint64_t id, riffle_status status, const riffle_info* end) {
          static_cast<Replay*>(self)->on_end(id, status, Facts(end));
        });
    scheduler_.reset(scheduler);
    result_.requests = requests_.size();
    const Facts before = stats_ = context_stats(setup_.context);
    started_ = Clock::now();
    try {
      while (done_ < requests_.size()) {
        submit_due();
        if (done_ < submitted_) step();
        else wait_until(requests_[submitted_].arrival);
      }
    } catch (const Exit& e) {
      if (e.code() != EXIT_INTERRUPTED) throw;
    }
    result_.done = done_;
    result_.machine_seconds = machine_seconds();
    const Facts after = context_stats(setup_.context);
    result_.pool_lookups =
        static_cast<uint64_t>(after.count("pool_lookups") - before.count("pool_lookups"));
    result_.pool_hits = static_cast<uint64_t>(after.count("pool_hits") - before.count("pool_hits"));
    return std::move(result_);
  }

 private:
  struct State {
    uint32_t tokens = 0;
    double last = 0;     // time of its last token
    int64_t blocks = 0;  // reserved for it
  };

  bool on_wall() const { return setup_.cost == nullptr; }
  double machine_seconds() const {
    return std::chrono::duration<double>(Clock::now() - started_).count();
  }
  double now() const { return on_wall() ? machine_seconds() : virtual_now_; }

  void wait_until(double time) {
    if (!on_wall()) virtual_now_ = std::max(virtual_now_, time);
    else
      while (now() < time) {  // in slices, so that Ctrl-C is noticed
        if (interrupted()) throw Exit(EXIT_INTERRUPTED, "");
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(time - now(), 0.1)));
      }
  }

  int64_t blocks_of(const TimedRequest& r) const {
    const double tokens = static_cast<double>(r.prompt.size()) + r.output;
    return static_cast<int64_t>(std::ceil(tokens / setup_.run.block_size) * setup_.run.layers *
                                setup_.run.kv_heads);
  }

  void submit_due() {
    while (submitted_ < requests_.size() && requests_[submitted_].arrival <= now()) {
      const TimedRequest& r = requests_[submitted_];
      const int64_t blocks = setup_.resident_blocks > 0 ? blocks_of(r) : 0;
      if (blocks > setup_.resident_blocks)
        throw Exit(
            EXIT_MEMORY,
            text_of("--all-resident: request %zu needs %lld blocks for a prompt of %zu and %d more "
                    "tokens, the pool has %lld",
                    submitted_ + 1, static_cast<long long>(blocks), r.prompt.size(), r.output,
                    static_cast<long long>(setup_.resident_blocks)));
      if (held_ + blocks > setup_.resident_blocks) return;  // no later request overtakes it
      Options g;
      g.set("max-tokens", static_cast<int64_t>(r.output));
      g.set("ignore-eos", true);
      g.set("temp", 0);
      uint64_t id = 0;
      check(
          riffle_scheduler_submit(scheduler_.get(), r.prompt.data(), r.prompt.size(), g.get(), &id),
          setup_.context);
      number_[id] = submitted_;
      states_[submitted_].blocks = blocks;
      held_ += blocks;
      ++submitted_;
    }
  }

  void step() {
    const double begin = now();
    check(riffle_scheduler_step(scheduler_.get()), setup_.context);
    const Facts it(riffle_scheduler_iteration(scheduler_.get()));
    const int64_t decode_rows = it.count("decode_rows");
    // First come, first served: the requests that no longer wait are the earliest ones.
    for (const size_t begun = submitted_ - static_cast<size_t>(it.count("n_waiting"));
         begun_ < begun; ++begun_)
      result_.delays.push_back(std::max(0.0, begin - requests_[begun_].arrival));
    double prefill = it.number("seconds") - it.number("decode_seconds");
    if (!on_wall()) {
      const Facts before = std::exchange(stats_, context_stats(setup_.context));
      IterationWork w;
      w.decode_rows = it.id("decode_rows");
      w.kv_bytes = stats_.number("kv_bytes_read") - before.number("kv_bytes_read");
      w.index_bytes = stats_.number("index_bytes_read") - before.number("index_bytes_read");
      w.blocks_loaded = it.number("blocks_loaded");
      w.token_layers = it.number("prefill_token_layers");
      w.pairs = it.number("prefill_pairs");
      // One prompt is read at a time: the last one that has begun.
      w.prompt_tokens = begun_ > 0 ? static_cast<double>(requests_[begun_ - 1].prompt.size()) : 0;
      w.chunks = setup_.scheduler->is("prefill-mode", "chunks");
      w.selects = setup_.selects;
      w.resident = setup_.resident_blocks > 0;
      const IterationCost cost = cost_of(*setup_.cost, setup_.run, w);
      virtual_now_ += cost.total();
      prefill = cost.prefill;
      result_.decode_seconds += cost.decode;
      result_.load_seconds += cost.load;
      result_.prefill_seconds += cost.prefill;
      for (const size_t i : events_) token_at(i, virtual_now_);
      events_.clear();
    }
    ++result_.iterations;
    result_.skipped += static_cast<uint64_t>(it.count("skipped"));
    result_.blocks_loaded += it.number("blocks_loaded");
    result_.blocks_read += it.number("blocks_read");
    result_.prefill_kv_blocks = std::max(result_.prefill_kv_blocks, it.number("prefill_kv_blocks"));
    idle_ = decode_rows > 0 || it.count("prefill_token_layers") > 0 ? 0 : idle_ + 1;
    if (idle_ > kMaxIdle)
      throw Exit(EXIT_RUN,
                 text_of("the scheduler did nothing for %d iterations, with %zu requests left",
                         kMaxIdle, requests_.size() - done_));
    if (decode_rows == 0) return;
    ++result_.decode_iterations;
    result_.decode_rows += static_cast<uint64_t>(decode_rows);
    result_.working_set += it.number("working_set");
    result_.available += it.number("available");
    result_.longest_stall = std::max(result_.longest_stall, prefill);
  }

  bool on_token(uint64_t id, int32_t token) {
    if (token < 0) return true;
    const size_t i = number_.at(id);
    if (result_.machine_first_token == 0) result_.machine_first_token = machine_seconds();
    if (on_wall()) token_at(i, now());
    else events_.push_back(i);
    return true;
  }

  void token_at(size_t i, double time) {
    State& s = states_[i];
    if (s.tokens++ == 0) result_.ttft.push_back(time - requests_[i].arrival);
    else result_.gaps.push_back(time - s.last);
    s.last = time;
    ++result_.output_tokens;
    result_.seconds = std::max(result_.seconds, time);
  }

  void on_end(uint64_t id, riffle_status status, const Facts& end) {
    const size_t i = number_.at(id);
    ++done_;
    held_ -= states_[i].blocks;
    result_.prompt_tokens += static_cast<uint64_t>(end.count("prompt_tokens"));
    result_.reused_tokens += static_cast<uint64_t>(end.count("reused_tokens"));
    const int n_tokens = end.id("n_tokens");
    if (status == RIFFLE_OK && n_tokens == requests_[i].output) return;
    if (result_.failed++ == 0)
      result_.error =
          text_of("request %zu: %s", i + 1,
                  status == RIFFLE_OK
                      ? text_of("%d tokens instead of %d", n_tokens, requests_[i].output).c_str()
                      : end.text("error").c_str());
  }

  const ReplaySetup& setup_;
  const std::vector<TimedRequest>& requests_;
  std::vector<State> states_;
  std::unordered_map<uint64_t, size_t> number_;  // number of a request, by its id
  std::vector<size_t> events_;                   // requests that got a token in this iteration
  std::unique_ptr<riffle_scheduler, SchedulerDeleter> scheduler_;
  size_t submitted_ = 0, begun_ = 0, done_ = 0;
  int64_t held_ = 0;
  double virtual_now_ = 0;
  Clock::time_point started_;
  Facts stats_;   // after the last iteration
  int idle_ = 0;  // number of idle iterations in a row
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const ReplaySetup& setup, const std::vector<TimedRequest>& requests) {
  return Replay(setup, requests).run();
}

}  // namespace riffle::cli
