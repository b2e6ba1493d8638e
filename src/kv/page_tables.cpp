#include "kv/page_tables.h"

#include <algorithm>

#include "kernels/common/pool_words.h"
#include "util/error.h"

namespace riffle {

void PageTables::make(PagedSequence& s) {
  if (s.own) return;
  if (free_.empty()) {
    if (next_ == pool::kMaxTables)
      fail(RIFFLE_OUT_OF_MEMORY,
           "more than %d page tables of one pool (one per session, kept while forks use it)",
           pool::kMaxTables);
    free_.reserve(next_ + 1);  // release never allocates
    free_.push_back(next_++);
  }
  auto table = std::make_shared<PageTable>();
  table->index = free_.back();
  alive_.reserve(alive_.size() + 1);
  table->entries = pool_->take_entries(table->index, s.max_blocks);
  alive_.push_back(table.get());
  free_.pop_back();
  s.own = std::move(table);
}

// Removes a holder. After the last one the table's blocks leave the pool, and its number is free
// for another table.
void PageTables::release(std::shared_ptr<PageTable>& table, int64_t max_blocks) noexcept {
  if (!table) return;
  if (table.use_count() == 1) {
    pool_->finish(*table, max_blocks);
    alive_.erase(std::find(alive_.begin(), alive_.end(), table.get()));
    free_.push_back(table->index);
  }
  table.reset();
}

void PageTables::share(PagedSequence& from, PagedSequence& to, int64_t n_blocks) {
  if (n_blocks == 0 || from.max_blocks != to.max_blocks) return;
  if (from.prefix_blocks > 0) {
    to.prefix = from.prefix;
    to.prefix_blocks = std::min(n_blocks, from.prefix_blocks);
  } else if (from.own) {
    to.prefix = from.own;
    to.prefix_blocks = n_blocks;
    from.own->shared_blocks = std::max(from.own->shared_blocks, n_blocks);
  }
}

void PageTables::cut(PagedSequence& s, int64_t n_blocks) {
  s.prefix_blocks = std::min(s.prefix_blocks, n_blocks);
  if (s.prefix_blocks == 0) release(s.prefix, s.max_blocks);
  if (!s.own) return;
  if (s.own.use_count() == 1) s.own->shared_blocks = 0;
  pool_->forget(*s.own, s.max_blocks, std::max(n_blocks, s.own->shared_blocks));
  if (n_blocks >= s.own->shared_blocks) return;
  if (!s.prefix && n_blocks > 0) {
    s.prefix = s.own;
    s.prefix_blocks = n_blocks;
  }
  release(s.own, s.max_blocks);
}

void PageTables::end(PagedSequence& s) noexcept {
  try {
    if (s.own && s.own.use_count() > 1) pool_->forget(*s.own, s.max_blocks, s.own->shared_blocks);
  } catch (const Error&) {  // the device is lost, and so are its blocks
  }
  release(s.prefix, s.max_blocks);
  release(s.own, s.max_blocks);
}

}  // namespace riffle
