// Slabs of page-locked memory for the host store. Locking 8 GiB takes a second or more, most of it
// for the pages themselves, so take() hands out the addresses at once and threads lock them, in the
// order taken, while the prompt is being computed. A caller that needs a locked slab waits for that
// slab only. lock_ahead() has slabs locked before they are needed: the next one while decoding,
// those of a whole prompt while another is read. If the system refuses to lock more (limits, other
// programs), slabs stay pageable and failed() reports it: copies still work, but kernels cannot
// reach such memory.
//
// For an integrated GPU, take() has the driver allocate each slab. Locking memory that the driver
// has not allocated may fail there (DGX Spark, Thor; not tried here), and the GPU may see such
// memory at another address.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cuda/device.h"
#include "kv/host_store.h"
#include "util/memory_limits.h"

namespace riffle::cuda {

// LOCK: slabs are locked in the background. ALLOCATE: the driver allocates them. REFUSE: they stay
// pageable.
enum class Pinning { LOCK, ALLOCATE, REFUSE };
// wanted: ContextOptions::pin.
Pinning pinning_of(const DeviceInfo& device, bool wanted);

class PinnedSlabs : public SlabSource {
 public:
  explicit PinnedSlabs(int ordinal, Pinning pinning = Pinning::LOCK);
  ~PinnedSlabs() override;

  size_t slab_bytes() const override { return size_t(64) << 20; }
  // No two slabs are neighbours in memory: a copy must not cross from one locked range into
  // another. Null also if the slab would take the last of the free memory. Throws
  // RIFFLE_OUT_OF_MEMORY if the driver does not allocate it.
  std::byte* take(size_t bytes) override;
  void give_back(std::byte* slab, size_t bytes) override;

  // Locks the `count` slabs that the next calls of take() for `bytes` will get, except those that
  // are already locked.
  void lock_ahead(size_t bytes, size_t count);
  uint64_t taken_bytes();

  // Appends the slabs that hold these blocks and are not locked or refused yet, once each. Null: no
  // block.
  void add_unlocked(const std::byte* const* blocks, size_t n, std::vector<std::byte*>& slabs);
  // Waits until these slabs are locked (or refused): they go before all others. Empties the list.
  // False: some slab, of these or others, has been refused.
  bool wait(std::vector<std::byte*>& slabs);
  // Waits for all slabs, including those locked ahead.
  void wait_all();
  bool refuses() const { return pinning_ == Pinning::REFUSE; }
  uint64_t pinned_bytes();
  // Says why a slab could not be locked; empty: all could.
  std::string failed();

 private:
  struct Slab {
    std::byte* data;
    size_t bytes;
    bool spare;  // not taken yet
    enum class Stage {
      Fresh,
      Busy,
      Touched,
      Tried
    } stage = Stage::Fresh;  // Busy: a thread works on it, Touched: it has pages
    bool wanted = false, locked = false;
    Buffer allocated{};  // the driver's memory; empty: the slab was mapped here
    bool pinned() const { return locked || allocated.size() > 0; }
    bool tried() const { return stage == Stage::Tried; }  // locked, or refused
    bool holds(const std::byte* p) const {
      return !std::less<>()(p, data) && std::less<>()(p, data + bytes);
    }
  };
  void run();
  bool awaited(
      Slab::Stage from) const;  // true if a caller waits for a slab that has reached this stage
  void begin_locking(std::unique_lock<std::mutex>& lock, std::byte* data);
  void end_locking(std::unique_lock<std::mutex>& lock);
  std::byte* allocate(size_t bytes);
  std::byte* add(size_t bytes, bool spare);                // null: there is no memory for it
  uint64_t promised() const;                               // bytes that have no pages yet
  std::deque<Slab>::iterator find(const std::byte* data);  // any byte of a slab's

  const MemoryLimits limits_;
  const int ordinal_;
  const Pinning pinning_;
  bool stop_ = false, locking_ = false;  // locking_: a thread locks a slab, or has just done so
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slab> slabs_;
  std::byte *next_ = nullptr, *end_ = nullptr;  // address space for further slabs
  bool spare_refused_ = false;                  // no more are locked ahead
  std::string failed_;
  std::vector<std::thread> threads_;
};

}  // namespace riffle::cuda
