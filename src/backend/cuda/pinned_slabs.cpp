#include "backend/cuda/pinned_slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "util/cpu_limits.h"
#include "util/error.h"

namespace riffle::cuda {

static constexpr size_t kHugePage = size_t(2) << 20, kSmallestPage = 4096, kSlabsAtOnce = 32;
static constexpr unsigned kMostThreads = 4;
// While a slab is being locked (2 ms, up to 20 where the machine's memory is new) most driver calls
// wait, and the driver's lock passes from one waiter to the next. So slabs are locked one at a
// time, with this pause for other calls.
static constexpr std::chrono::milliseconds kBetweenLocks(2);
static constexpr uint64_t kLeftToOthers = uint64_t(64) << 20;

// Address space of a slab: the page after it is never touched and keeps neighbours apart.
static size_t space(size_t bytes) { return (bytes + 2 * kHugePage - 1) / kHugePage * kHugePage; }

// Aligned to huge pages: fewer pages to lock, fewer misses in the TLB.
static std::byte* map(size_t bytes) {
  const size_t whole = bytes + kHugePage;
  // Not reserved: most of it will only be used later, or never.
  void* area = mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(area);
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (skip > 0) munmap(begin, skip);
  if (skip < kHugePage) munmap(begin + skip + bytes, kHugePage - skip);
  madvise(begin + skip, bytes, MADV_HUGEPAGE);
  return begin + skip;
}

Pinning pinning_of(const DeviceInfo& device, bool wanted) {
  return !wanted ? Pinning::REFUSE : device.integrated ? Pinning::ALLOCATE : Pinning::LOCK;
}

PinnedSlabs::PinnedSlabs(int ordinal, Pinning pinning) : ordinal_(ordinal), pinning_(pinning) {
  if (pinning == Pinning::ALLOCATE) return;  // no thread has anything to do
  const unsigned n = std::clamp(static_cast<unsigned>(default_threads()) / 2, 1u, kMostThreads);
  try {
    while (threads_.size() < n) threads_.emplace_back([this] { run(); });
  } catch (const std::exception&) {
    if (threads_.empty()) throw;  // one is enough
  }
}

PinnedSlabs::~PinnedSlabs() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
  for (const Slab& s : slabs_) {  // all except spares have been given back
    if (s.locked) cudaHostUnregister(s.data);
    if (s.allocated.size() == 0) munmap(s.data, space(s.bytes));
  }
  if (next_ != end_) munmap(next_, end_ - next_);
}

// The caller holds the mutex. Mapping waits while a slab is being locked, so it is done for many
// slabs at a time.
std::byte* PinnedSlabs::add(size_t bytes, bool spare) {
  const size_t each = space(bytes);
  if (size_t(end_ - next_) < each) {
    if (next_ != end_) munmap(next_, end_ - next_);
    next_ = end_ = nullptr;
    for (const size_t n : {kSlabsAtOnce, size_t(1)})
      if (!next_ && (next_ = map(n * each))) end_ = next_ + n * each;
    if (!next_) return nullptr;
  }
  try {
    slabs_.push_back({next_, bytes, spare});
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  next_ += each;
  changed_.notify_all();
  return slabs_.back().data;
}

// The caller holds the mutex. The driver does not promise zeroes, so the slab is zeroed here. The
// page at the end keeps neighbours apart.
std::byte* PinnedSlabs::allocate(size_t bytes) {
  const DeviceScope on(ordinal_);
  Buffer memory = pinned(bytes + kSmallestPage, "KV");
  auto* data = memory.as<std::byte>();
  std::memset(data, 0, bytes);
  slabs_.push_back({data, bytes, false, Slab::Stage::Tried, false, false, std::move(memory)});
  return data;
}

std::deque<PinnedSlabs::Slab>::iterator PinnedSlabs::find(const std::byte* data) {
  return std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.holds(data); });
}

std::byte* PinnedSlabs::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (Slab& s : slabs_)
    if (s.spare && s.bytes == bytes) {
      s.spare = false;
      return s.data;
    }
  if (!refuses() && limits_.available() < promised() + bytes + kLeftToOthers) return nullptr;
  return pinning_ == Pinning::ALLOCATE ? allocate(bytes) : add(bytes, false);
}

// A slab that a thread is pinning has a part of its pages; it counts as having none.
uint64_t PinnedSlabs::promised() const {
  uint64_t sum = 0;
  for (const Slab& s : slabs_) sum += s.tried() ? 0 : s.bytes;
  return sum;
}

void PinnedSlabs::lock_ahead(size_t bytes, size_t count) {
  const std::lock_guard lock(mutex_);
  if (pinning_ != Pinning::LOCK || spare_refused_ || !failed_.empty()) return;
  size_t ready = std::count_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.spare; });
  if (ready >= count) return;
  uint64_t needed = promised() + kLeftToOthers;
  const uint64_t available = limits_.available();
  for (; ready < count && (needed += bytes) <= available; ++ready)
    if (!add(bytes, true)) break;  // the caller that takes the next one gets the error
}

void PinnedSlabs::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.tried(); });
  });
}

void PinnedSlabs::give_back(std::byte* data, size_t bytes) {
  std::unique_lock lock(mutex_);
  find(data)->wanted = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return find(data)->tried(); });
  const auto slab = find(data);
  if (slab->locked) cudaHostUnregister(data);
  const Buffer allocated = std::move(slab->allocated);
  slabs_.erase(slab);
  lock.unlock();
  if (allocated.size() == 0) munmap(data, space(bytes));
}

void PinnedSlabs::add_unlocked(const std::byte* const* blocks, size_t n,
                               std::vector<std::byte*>& slabs) {
  const std::lock_guard lock(mutex_);
  auto slab = slabs_.end();
  for (size_t i = 0; i < n; ++i) {  // neighbours in the list mostly are in one slab
    if (!blocks[i] || (slab != slabs_.end() && slab->holds(blocks[i]))) continue;
    slab = find(blocks[i]);
    if (!slab->tried() && std::find(slabs.begin(), slabs.end(), slab->data) == slabs.end())
      slabs.push_back(slab->data);
  }
}

bool PinnedSlabs::wait(std::vector<std::byte*>& slabs) {
  std::unique_lock lock(mutex_);
  for (const std::byte* data : slabs) find(data)->wanted = true;
  if (!slabs.empty()) changed_.notify_all();
  changed_.wait(lock, [&] {
    return std::all_of(slabs.begin(), slabs.end(), [&](auto* data) { return find(data)->tried(); });
  });
  slabs.clear();
  return failed_.empty();
}

uint64_t PinnedSlabs::pinned_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const Slab& s : slabs_) sum += s.pinned() ? s.bytes : 0;
  return sum;
}

uint64_t PinnedSlabs::taken_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const Slab& s : slabs_) sum += s.spare ? 0 : s.bytes;
  return sum;
}

std::string PinnedSlabs::failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

// Makes the system allocate the pages, by writing 0 where 0 is already (a read would only map the
// zero page). The call for that, MADV_POPULATE_WRITE, would block every thread that maps memory,
// the driver's too; a page fault does not.
static void touch(std::byte* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kSmallestPage) {
    unsigned char expected = 0;
    std::atomic_ref(reinterpret_cast<unsigned char&>(data[at]))
        .compare_exchange_strong(expected, 0);
  }
}

bool PinnedSlabs::awaited(Slab::Stage from) const {
  return std::any_of(slabs_.begin(), slabs_.end(),
                     [&](const Slab& s) { return s.wanted && s.stage >= from && !s.tried(); });
}

// Among slabs whose pages are there, one that a caller waits for goes first.
void PinnedSlabs::begin_locking(std::unique_lock<std::mutex>& lock, std::byte* data) {
  find(data)->stage = Slab::Stage::Touched;
  changed_.wait(
      lock, [&] { return !locking_ && (find(data)->wanted || !awaited(Slab::Stage::Touched)); });
  locking_ = true;
}
void PinnedSlabs::end_locking(std::unique_lock<std::mutex>& lock) {
  changed_.wait_for(lock, kBetweenLocks, [&] { return stop_ || awaited(Slab::Stage::Fresh); });
  locking_ = false;
  changed_.notify_all();
}

void PinnedSlabs::run() {
  const cudaError_t chosen = cudaSetDevice(ordinal_);
  std::unique_lock lock(mutex_);
  for (;;) {
    // A slab that a caller waits for goes first, a spare one last.
    auto next = slabs_.end();
    changed_.wait(lock, [&] {
      const auto rank = [](const Slab& s) {
        return s.stage != Slab::Stage::Fresh ? 3 : s.wanted ? 0 : s.spare ? 2 : 1;
      };
      next = std::min_element(slabs_.begin(), slabs_.end(),
                              [&](auto& a, auto& b) { return rank(a) < rank(b); });
      if (next != slabs_.end() && rank(*next) == 3) next = slabs_.end();
      return stop_ || next != slabs_.end();
    });
    if (stop_) return;
    std::byte* data = next->data;
    const size_t bytes = next->bytes;
    next->stage = Slab::Stage::Busy;
    // After one refusal no slab is tried again: each try takes long, and a half-locked context is
    // useless.
    const bool skip = refuses() || !failed_.empty() || (next->spare && spare_refused_);
    lock.unlock();
    cudaError_t status = skip ? cudaErrorNotSupported : chosen;
    if (status == cudaSuccess) touch(data, bytes);  // several threads are faster than one
    lock.lock();
    const bool locks = status == cudaSuccess;
    if (locks) {
      begin_locking(lock, data);
      lock.unlock();
      status = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (status != cudaSuccess) cudaGetLastError();
      lock.lock();
    }
    // Only this thread marks this slab, and give_back waits for the mark, so it is still there.
    const auto slab = find(data);
    slab->stage = Slab::Stage::Tried;
    slab->locked = status == cudaSuccess;
    if (status != cudaSuccess && slab->spare) {  // no caller needs it yet
      slabs_.erase(slab);
      munmap(data, space(bytes));
      spare_refused_ = true;
    } else if (status != cudaSuccess && failed_.empty()) {
      failed_ = "refused";
      try {
        if (!refuses())
          failed_ = format("%s (%s)", cudaGetErrorName(status), cudaGetErrorString(status));
      } catch (const std::bad_alloc&) {  // the reason is lost
      }
    }
    changed_.notify_all();
    if (locks) end_locking(lock);
  }
}

}  // namespace riffle::cuda
