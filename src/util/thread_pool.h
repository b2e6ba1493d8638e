// The one pool of threads of a context. parallel_for hands out items dynamically; every computation
// in riffle is written so that its result does not depend on which thread took which item.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace riffle {

// Call it in the body of a loop that waits for another thread or device.
inline void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // ISB delays the core a little; YIELD does nothing on most cores
#endif
}

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // n_threads >= 1; the caller is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Calls body(item, thread) for item in [0, n), thread in [0, size()). Returns when all are done.
  // The first exception of a body is then rethrown; the work of other items is not undone.
  // Requires: body does not call parallel_for; one thread at a time calls it.
  template <class Body>
  void parallel_for(int64_t n, Body&& body) {
    if (n <= 0) return;
    if (n == 1 || n_threads_ == 1) {
      for (int64_t i = 0; i < n; ++i) body(i, 0);
      return;
    }
    using B = std::remove_reference_t<Body>;
    run(
        n, [](void* b, int64_t i, int t) { (*static_cast<B*>(b))(i, t); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* body, int64_t item, int thread);
  void run(int64_t n, Call call, void* body);
  void work(int thread);
  void take_items(int thread);
  void stop();

  int n_threads_;
  std::vector<int> processors_;  // those that workers run on; empty: all that the process may use
  std::vector<std::thread> workers_;
  Call call_ = nullptr;
  void* body_ = nullptr;
  int64_t n_items_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // a new job, or the end
  alignas(64) std::atomic<int> busy_{0};        // workers that have not finished the job
  std::atomic<bool> stop_{false}, failed_{false};
  std::exception_ptr error_;
};

}  // namespace riffle
