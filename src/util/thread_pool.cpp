#include "util/thread_pool.h"

#include "util/cpu_limits.h"
#include "util/error.h"

namespace riffle {

// A decode step is a few hundred short jobs: a sleeping thread would cost more to wake than most of
// them take, so threads spin for about 50 us before they sleep. They must sleep: if another program
// needs the core, a spinning thread would hold up the very one that it waits for. ARM's ISB takes
// about a quarter of the time of x86's PAUSE.
#if defined(__aarch64__)
static constexpr int kSpins = 4000;
#else
static constexpr int kSpins = 1000;
#endif

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {
  try {
    if (n_threads_ > 1)
      if (const CpuLimits limits; n_threads_ <= limits.cores())
        processors_ = limits.fast_processors();
    workers_.reserve(n_threads_ - 1);
    for (int t = 1; t < n_threads_; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (const std::exception& e) {
    const size_t started = workers_.size() + 1;
    stop();
    fail(RIFFLE_OUT_OF_MEMORY, "could not start %d threads, only %zu: %s", n_threads_, started,
         e.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::take_items(int thread) {
  for (;;) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= n_items_) return;
    try {
      call_(body_, i, thread);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }
}

void ThreadPool::run(int64_t n, Call call, void* body) {
  call_ = call;
  body_ = body;
  n_items_ = n;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(n_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_items(0);
  int busy;
  for (int spins = 0; (busy = busy_.load(std::memory_order_acquire)) != 0;) {
    if (++spins < kSpins) relax_cpu();
    else busy_.wait(busy, std::memory_order_acquire);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::work(int thread) {
  run_on(processors_);
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    uint32_t now;
    while ((now = epoch_.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpins) relax_cpu();
      else epoch_.wait(seen, std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load()) return;
    take_items(thread);
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
  }
}

}  // namespace riffle
