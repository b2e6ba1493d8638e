// Measures the memory bandwidth of threads that only read.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "measure/commands/bench/bench.h"

namespace riffle::cli {
namespace {

using Clock = std::chrono::steady_clock;
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

}  // namespace

double read_bandwidth(size_t bytes, int n_threads) {
  bytes =
      std::min<size_t>(bytes, size_t{2} << 30);  // larger than any cache, so more changes nothing
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
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const double once = std::max(pass(2) / 2, 1e-6);
  const int passes = static_cast<int>(std::clamp(0.05 / once, 2.0, 10000.0));
  double best = 0;
  for (int i = 0; i < 3; ++i)
    best =
        std::max(best, static_cast<double>(each * threads * sizeof(Lanes)) * passes / pass(passes));
  return best;
}

}  // namespace riffle::cli
