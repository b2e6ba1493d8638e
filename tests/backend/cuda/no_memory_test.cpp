// Calls that run out of GPU memory or of pinned host memory: the Nth allocation of a call fails,
// for N from 1 up. The call must say RIFFLE_OUT_OF_MEMORY or succeed all the same; the same call
// without a failure must work then; and when all is freed, nothing may be left over.
// tests/capi/no_memory.c does the same with the host's memory. The CUDA runtime's functions are
// replaced in this program (ld --wrap).
#include <atomic>
#include <filesystem>

#include "tests/backend/cuda/integrated_gpu.h"
#include "tests/engine/session_files.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

enum class Memory { DEVICE, PINNED };

struct Allocations {
  std::atomic<long> until_failure{0};  // 0: none is to come
  std::atomic<long> asked{0}, live{0};
};
Allocations allocations[2];  // by Memory
std::atomic<bool> counting{false};

// Counts an allocation and tells whether it is to fail.
bool fails(Memory memory) {
  Allocations& a = allocations[static_cast<size_t>(memory)];
  if (!counting) return false;
  ++a.asked;
  return a.until_failure > 0 && --a.until_failure == 0;
}

cudaError_t count(Memory memory, cudaError_t status) {
  if (status == cudaSuccess) ++allocations[static_cast<size_t>(memory)].live;
  return status;
}

long live() { return allocations[0].live + allocations[1].live; }

}  // namespace

extern "C" {
cudaError_t __real_cudaMalloc(void** data, size_t bytes);
cudaError_t __wrap_cudaMalloc(void** data, size_t bytes) {
  if (fails(Memory::DEVICE)) return cudaErrorMemoryAllocation;
  return count(Memory::DEVICE, __real_cudaMalloc(data, bytes));
}
cudaError_t __real_cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t __wrap_cudaHostAlloc(void** data, size_t bytes, unsigned flags) {
  if (fails(Memory::PINNED)) return cudaErrorMemoryAllocation;
  if (pretence.no_gpu) {
    *data = pretence.host_alloc == cudaSuccess ? pretence.take_pinned(bytes) : nullptr;
    if (*data) std::memset(*data, 0xff, bytes);
    return *data || pretence.host_alloc != cudaSuccess ? pretence.host_alloc.load()
                                                       : cudaErrorMemoryAllocation;
  }
  return count(Memory::PINNED, __real_cudaHostAlloc(data, bytes, flags));
}
cudaError_t __real_cudaFree(void* data);
cudaError_t __wrap_cudaFree(void* data) {
  if (pretence.no_gpu) return std::free(data), cudaSuccess;
  if (data) --allocations[static_cast<size_t>(Memory::DEVICE)].live;
  return __real_cudaFree(data);
}
cudaError_t __real_cudaFreeHost(void* data);
cudaError_t __wrap_cudaFreeHost(void* data) {
  if (pretence.no_gpu) return cudaSuccess;
  if (data) --allocations[static_cast<size_t>(Memory::PINNED)].live;
  return __real_cudaFreeHost(data);
}
}

namespace {

// One of everything that a program has, each made by the call of its name, which returns at once
// where it has been made before.
class Program {
 public:
  explicit Program(SelectorKind selector) : selector_(selector), tokens_(some_tokens(600, 3)) {}
  ~Program() {
    riffle_scheduler_free(scheduler_);
    riffle_session_free(fork_);
    riffle_session_free(loaded_);
    riffle_session_free(session_);
    riffle_session_file_free(file_);
    riffle_context_free(context_);
    riffle_model_free(model_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  riffle_status load() {
    if (model_) return RIFFLE_OK;
    return riffle_model_load(shipped_model(), nullptr, &model_, error_, sizeof error_);
  }
  riffle_status context() {
    if (context_) return RIFFLE_OK;
    ContextOptions o = options();
    o.device = DeviceKind::CUDA;
    o.selection.selector = selector_;
    o.n_ctx = 1024;
    o.n_sessions = 2;
    return context_create(model_, &o, &context_, error_, sizeof error_);
  }
  riffle_status session() {
    return session_ ? RIFFLE_OK : riffle_session_create(context_, &session_);
  }
  riffle_status prefill() {
    return riffle_prefill_to(session_, tokens_.data(), tokens_.size(), nullptr, nullptr);
  }
  riffle_status generate() {
    GenerateOptions g;
    g.max_tokens = 40;
    g.ignore_eos = true;
    g.sampling.repeat_penalty = 1.1f;
    g.sampling.logprobs = true;
    return test::generate(session_, &g, nullptr, nullptr, nullptr);
  }
  riffle_status save() {
    return riffle_session_save(session_, path().c_str(), 0, nullptr, 0, nullptr, nullptr);
  }
  riffle_status open() {
    if (file_) return RIFFLE_OK;
    return riffle_session_file_open(path().c_str(), &file_, error_, sizeof error_);
  }
  riffle_status load_session() {
    return loaded_ ? RIFFLE_OK : riffle_session_load(context_, file_, &loaded_, nullptr, nullptr);
  }
  // Forks inside a block. The fork copies that block when it goes on.
  riffle_status fork() {
    if (!fork_) {
      const riffle_status status = riffle_session_fork(session_, tokens_.size() - 5, &fork_);
      if (status != RIFFLE_OK) return status;
    }
    return riffle_step(context_, &fork_, tokens_.data(), 1);
  }
  // To a selector that keeps something else of every session.
  riffle_status select() {
    Selection s;
    const auto others = here({SelectorKind::TOKENSELECT, SelectorKind::SHARE, SelectorKind::DENSE});
    s.selector = others[others[0] == selector_];
    s.select_tokens = 64, s.init_tokens = 16, s.local_tokens = 64;
    const riffle_status status = set_selection(context_, &s);
    if (status != RIFFLE_OK) return status;
    riffle_session* both[] = {session_, fork_};
    return riffle_step(context_, both, tokens_.data(), 2);
  }
  riffle_status schedule() {
    if (!scheduler_) {
      const riffle_status status = scheduler_create(context_, nullptr, this, &scheduler_);
      if (status != RIFFLE_OK) return status;
      riffle_scheduler_on_end(scheduler_,
                              [](void* user, uint64_t, riffle_status ended, const riffle_info*) {
                                auto* p = static_cast<Program*>(user);
                                ++p->ended_;
                                if (ended != RIFFLE_OK) p->end_ = ended;
                              });
    }
    GenerateOptions g;
    g.max_tokens = 6;
    g.ignore_eos = true;
    ended_ = 0, end_ = RIFFLE_OK;
    for (const size_t n : {tokens_.size() - 100, tokens_.size()}) {
      const riffle_status status = scheduler_submit(scheduler_, tokens_.data(), n, &g, nullptr);
      if (status != RIFFLE_OK) return status;  // the submitted requests end with the next call
    }
    while (ended_ < 2) {
      const riffle_status status = scheduler_step(scheduler_, nullptr);
      if (status != RIFFLE_OK) return status;
    }
    return end_;
  }
  std::string error() const { return context_ ? riffle_context_error(context_) : error_; }

 private:
  std::string path() const { return temp_ / "no_memory.kv"; }

  SelectorKind selector_;
  std::vector<int32_t> tokens_;
  const TempDir temp_;
  riffle_model* model_ = nullptr;
  riffle_context* context_ = nullptr;
  riffle_session *session_ = nullptr, *loaded_ = nullptr, *fork_ = nullptr;
  riffle_scheduler* scheduler_ = nullptr;
  int ended_ = 0;
  riffle_status end_ = RIFFLE_OK;
  riffle_session_file* file_ = nullptr;
  char error_[512] = "";
};

struct Step {
  const char* name;
  riffle_status (Program::*call)();
};
// In this order; what stands before a step must have worked.
constexpr Step kSteps[] = {
    {"load", &Program::load},         {"context", &Program::context},
    {"session", &Program::session},   {"prefill", &Program::prefill},
    {"generate", &Program::generate}, {"save", &Program::save},
    {"open", &Program::open},         {"load_session", &Program::load_session},
    {"fork", &Program::fork},         {"select", &Program::select},
    {"schedule", &Program::schedule},
};

// Lets the step's nth allocation of this memory fail. Returns false if the step made fewer
// allocations.
bool fail_nth(SelectorKind selector, size_t step, Memory memory, long n) {
  Program p(selector);
  const auto call = [&](size_t i) { return (p.*kSteps[i].call)(); };
  for (size_t i = 0; i < step; ++i) {
    INFO("before it, " << kSteps[i].name << ": " << p.error());
    REQUIRE(call(i) == RIFFLE_OK);
  }
  Allocations& a = allocations[static_cast<size_t>(memory)];
  a.asked = 0;
  a.until_failure = n;
  counting = true;
  const riffle_status status = call(step);
  counting = false;
  a.until_failure = 0;
  const bool failed = a.asked >= n;
  INFO(riffle_status_name(status) << ": " << p.error());
  if (status != RIFFLE_OK) {
    CHECK(failed);
    CHECK(status == RIFFLE_OUT_OF_MEMORY);
    const riffle_status again = call(step);
    INFO("then " << riffle_status_name(again) << ": " << p.error());
    CHECK(again == RIFFLE_OK);
  }
  // Later steps work with the state that the call has left.
  for (size_t i = step + 1; failed && i < std::size(kSteps); ++i) {
    INFO("after it, " << kSteps[i].name << ": " << p.error());
    CHECK(call(i) == RIFFLE_OK);
  }
  return failed;
}

void fail_each(SelectorKind selector, Memory memory) {
  // N from 1 to 12 one by one, then in steps of N / 4; other selectors take larger steps.
  const bool first = selector == SelectorKind::SHARE;
  const long dense = first ? 12 : 3, sparse = first ? 4 : 2;
  for (size_t step = 0; step < std::size(kSteps); ++step) {
    for (long n = 1;; n += n < dense ? 1 : n / sparse) {
      INFO("selector " << selector << ", " << (memory == Memory::DEVICE ? "device" : "pinned")
                       << " memory, " << kSteps[step].name << ", N " << n);
      const long before = live();
      const bool failed = fail_nth(selector, step, memory, n);
      CHECK(live() == before);
      if (!failed) break;
    }
  }
}

// All that a GPU runs.
const std::vector<SelectorKind> kFailing =
    here({SelectorKind::SHARE, SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TWILIGHT,
          SelectorKind::TOPK, SelectorKind::TOKENSELECT});

}  // namespace

TEST_CASE("cuda: device memory that runs out is an error, and the next call works",
          "[cuda][no_memory]") {
  if (skip()) return;
  for (const SelectorKind selector : kFailing) fail_each(selector, Memory::DEVICE);
}

TEST_CASE("cuda: pinned memory that runs out is an error, and the next call works",
          "[cuda][no_memory]") {
  if (skip()) return;
  for (const SelectorKind selector : kFailing) fail_each(selector, Memory::PINNED);
}
