// Names blocks in a pool that its readers manage (kernels/cuda/pool/pool.h). Each sequence has a
// table of its own. For its first blocks a fork uses its donor's table, so each finds the blocks
// that the other has loaded.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/host_kv.h"
#include "util/buffer.h"

namespace riffle {

// Names the blocks of one sequence, and of its forks where they are the same.
struct PageTable {
  int32_t index = 0;  // index of the table in the pool
  Buffer entries;
  int64_t shared_blocks = 0;  // a fork may find its first shared_blocks blocks here
};

// A sequence whose blocks a pool may hold.
struct PagedSequence : DeviceKv {
  std::shared_ptr<PageTable>
      own;  // null from a cut into blocks that forks find there until reserve
  std::shared_ptr<PageTable> prefix;  // table of its first prefix_blocks; null: none
  int64_t prefix_blocks = 0;
  int64_t max_blocks = 0;
};

// The pool, as tables need it.
class PagedPool {
 public:
  virtual ~PagedPool() = default;
  // Returns memory for a table's entries, all empty, and enters it in the pool under this index.
  virtual Buffer take_entries(int32_t index, int64_t max_blocks) = 0;
  // Removes the table's blocks from `first` on from the pool.
  virtual void forget(const PageTable& table, int64_t max_blocks, int64_t first) = 0;
  // Waits until no kernel reads the table, which no longer has a holder. Throws nothing.
  virtual void finish(const PageTable& table, int64_t max_blocks) noexcept = 0;
};

class PageTables {
 public:
  explicit PageTables(PagedPool* pool) : pool_(pool) {}

  // Gives the sequence a table of its own, unless it has one.
  void make(PagedSequence& sequence);
  // Gives a fork's first n_blocks, which `from` has too, the names that they have in `from`. If
  // `from` uses two tables, this covers only the blocks in its first one.
  void share(PagedSequence& from, PagedSequence& to, int64_t n_blocks);
  // Cuts the sequence to its first n_blocks. Blocks that its forks find in its own table stay; the
  // sequence writes later blocks under another name.
  void cut(PagedSequence& sequence, int64_t n_blocks);
  // Ends the sequence. Throws nothing.
  void end(PagedSequence& sequence) noexcept;
  const std::vector<PageTable*>& alive() const { return alive_; }

 private:
  void release(std::shared_ptr<PageTable>& table, int64_t max_blocks) noexcept;

  PagedPool* pool_;
  std::vector<int32_t> free_;
  int32_t next_ = 0;
  std::vector<PageTable*> alive_;
};

}  // namespace riffle
