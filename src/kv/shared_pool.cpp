#include "kv/shared_pool.h"

#include <algorithm>

namespace riffle {

using namespace pool;

static constexpr uint64_t kFreeKey = kFreeWord >> kStampBits;
static int32_t table_of(uint64_t word) { return static_cast<int32_t>(word >> kStampBits >> 30); }
static int64_t entry_of(uint64_t word) {
  return static_cast<int64_t>(word >> kStampBits & ((uint64_t(1) << 30) - 1));
}

SharedPool::SharedPool(int64_t n_slots, size_t slot_bytes)
    : slot_bytes_(slot_bytes),
      memory_(size_t(n_slots) * slot_bytes),
      words_(n_slots),
      tables_(kMaxTables),
      victims_(n_slots) {
  for (auto& word : words_) word = kFreeWord;
}

int64_t SharedPool::used() const {
  return std::count_if(words_.begin(), words_.end(),
                       [](const auto& word) { return word >> kStampBits != kFreeKey; });
}

// Stamps from before the counter wraps would look new, so they are cleared when it does.
void SharedPool::begin_step() {
  if (++now_ >= kMaxStamp) {
    for (auto& word : words_) word = word >> kStampBits << kStampBits;
    now_ = 1;
  }
  const auto age = [&](int32_t slot) -> uint64_t {
    const uint64_t word = words_[slot];
    if (word >> kStampBits == kFreeKey) return kVictimBins + 1;  // free slots first
    return std::min<uint64_t>(now_ - (word & kMaxStamp), kVictimBins);
  };
  starts_.assign(kVictimBins + 3, 0);  // starts by falling age
  for (int32_t i = 0; i < size(); ++i) ++starts_[kVictimBins + 1 - age(i) + 1];
  for (size_t bin = 1; bin < starts_.size(); ++bin) starts_[bin] += starts_[bin - 1];
  for (int32_t i = 0; i < size(); ++i) victims_[starts_[kVictimBins + 1 - age(i)]++] = i;
  next_victim_ = 0;
}

void SharedPool::forget(int32_t table, int64_t n_heads, int64_t max_blocks, int64_t first) {
  if (first >= max_blocks) return;
  for (auto& word : words_) {
    const uint64_t w = word;
    if (w >> kStampBits == kFreeKey || table_of(w) != table) continue;
    if (entry_of(w) % max_blocks >= first) word = kFreeWord;
  }
  for (int64_t h = 0; h < n_heads; ++h)
    for (int64_t b = first; b < max_blocks; ++b) tables_[table][h * max_blocks + b] = -1;
}

// Tells whether the slot holds this key. If it does, it stays for this step. Another reader that
// fetched the block in this step entered it only after copying its bytes.
bool SharedPool::claim(int32_t slot, uint64_t key) {
  uint64_t word = words_[slot].load(std::memory_order_acquire);
  while (word >> kStampBits == key >> kStampBits) {
    if (word == (key | now_)) return true;
    if (words_[slot].compare_exchange_weak(word, key | now_, std::memory_order_acq_rel))
      return true;
  }
  return false;
}

int32_t SharedPool::take(int32_t table, int64_t entry) {
  const uint64_t key = pool_key(table, entry);
  const auto n = static_cast<int32_t>(victims_.size());
  while (next_victim_.load(std::memory_order_relaxed) < n) {
    const int32_t i = next_victim_.fetch_add(1, std::memory_order_relaxed);
    if (i >= n) break;
    const int32_t slot = victims_[i];
    uint64_t word = words_[slot].load(std::memory_order_acquire);
    if ((word & kMaxStamp) == now_) continue;
    if (!words_[slot].compare_exchange_strong(word, key | now_, std::memory_order_acq_rel))
      continue;  // its owner has just come back for it
    int32_t loser = slot;
    if (word >> kStampBits != kFreeKey)
      tables_[table_of(word)][entry_of(word)].compare_exchange_strong(loser, -1,
                                                                      std::memory_order_acq_rel);
    return slot;
  }
  return -1;
}

SharedPool::Found SharedPool::find(int32_t table, int64_t entry) {
  const int32_t here = tables_[table][entry].load(std::memory_order_acquire);
  if (here >= 0 && claim(here, pool_key(table, entry))) return {here, true};
  return {take(table, entry), false};
}

}  // namespace riffle
