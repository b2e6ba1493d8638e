#include "kv/slot_pool.h"

#include <cassert>

namespace riffle {

SlotPool::SlotPool(int64_t n_slots, EvictPolicy policy, int n_partitions)
    : policy_(policy), slots_(n_slots), partitions_(n_partitions < 1 ? 1 : n_partitions) {
  const int64_t parts = static_cast<int64_t>(partitions_.size());
  int32_t slot = 0;
  for (int64_t p = 0; p < parts; ++p) {
    Partition& part = partitions_[p];
    part.size = n_slots / parts + (p < n_slots % parts ? 1 : 0);
    // Threaded backwards so that slots are first handed out in ascending order.
    for (int64_t i = part.size - 1; i >= 0; --i) {
      slots_[slot + i].partition = static_cast<int16_t>(p);
      slots_[slot + i].next = part.free;
      part.free = slot + static_cast<int32_t>(i);
    }
    slot += static_cast<int32_t>(part.size);
  }
  size_t buckets = 16;
  while (buckets < slots_.size() * 2) buckets *= 2;
  index_.assign(buckets, kNone);
  mask_ = buckets - 1;
}

size_t SlotPool::bucket(uint64_t key) const {
  key ^= key >> 29;
  key *= 0x9E3779B97F4A7C15ull;  // 2^64 / golden ratio: spreads neighbouring keys
  key ^= key >> 32;
  return key & mask_;
}

int32_t SlotPool::find(uint64_t key) const {
  for (size_t b = bucket(key); index_[b] != kNone; b = (b + 1) & mask_)
    if (slots_[index_[b]].key == key) return index_[b];
  return kNone;
}

void SlotPool::index_insert(uint64_t key, int32_t slot) {
  size_t b = bucket(key);
  while (index_[b] != kNone) b = (b + 1) & mask_;
  index_[b] = slot;
}

void SlotPool::index_erase(uint64_t key) {
  size_t hole = bucket(key);
  while (slots_[index_[hole]].key != key) hole = (hole + 1) & mask_;
  index_[hole] = kNone;
  // Backward shift: later entries of the same run move up so that no probe ends early.
  for (size_t i = (hole + 1) & mask_; index_[i] != kNone; i = (i + 1) & mask_) {
    const size_t home = bucket(slots_[index_[i]].key);
    if (((i - home) & mask_) < ((i - hole) & mask_)) continue;
    index_[hole] = index_[i];
    index_[i] = kNone;
    hole = i;
  }
}

void SlotPool::append(Partition& p, int32_t slot) {
  Slot& s = slots_[slot];
  s.prev = p.newest;
  s.next = kNone;
  if (p.newest != kNone) slots_[p.newest].next = slot;
  p.newest = slot;
  if (p.oldest == kNone) p.oldest = slot;
}

void SlotPool::unlink(Partition& p, int32_t slot) {
  Slot& s = slots_[slot];
  if (s.prev != kNone) slots_[s.prev].next = s.next;
  else p.oldest = s.next;
  if (s.next != kNone) slots_[s.next].prev = s.prev;
  else p.newest = s.prev;
}

SlotPool::Grant SlotPool::take(uint64_t key, int partition, State state) {
  Partition& p = partitions_[partition];
  Grant grant;
  int32_t slot = p.free;
  if (slot != kNone) {
    p.free = slots_[slot].next;
    ++used_;
  } else {
    slot = p.oldest;
    while (slot != kNone && slots_[slot].pins > 0)
      slot = slots_[slot].next;  // only FIFO lists pinned slots
    if (slot == kNone) return grant;
    unlink(p, slot);
    index_erase(slots_[slot].key);
    grant.evicted = true;
  }
  Slot& s = slots_[slot];
  s.key = key;
  s.state = state;
  s.pins = 1;
  ++p.pinned;
  if (policy_ == EvictPolicy::Fifo) append(p, slot);
  index_insert(key, slot);
  grant.slot = slot;
  return grant;
}

SlotPool::Grant SlotPool::acquire(uint64_t key, int partition) {
  const int32_t slot = find(key);
  if (slot == kNone) return take(key, partition, State::Loading);
  pin(slot);
  Grant grant;
  grant.slot = slot;
  grant.hit = true;
  return grant;
}

SlotPool::Grant SlotPool::fill(uint64_t key, int partition) {
  assert(find(key) == kNone);
  return take(key, partition, State::Filling);
}

void SlotPool::loaded(int32_t slot) {
  assert(slots_[slot].state == State::Loading);
  slots_[slot].state = State::Clean;
}
void SlotPool::seal(int32_t slot) {
  assert(slots_[slot].state == State::Filling);
  slots_[slot].state = State::Flushing;
}
void SlotPool::flushed(int32_t slot) {
  assert(slots_[slot].state == State::Flushing);
  slots_[slot].state = State::Clean;
}

void SlotPool::pin(int32_t slot) {
  Slot& s = slots_[slot];
  if (s.pins++ > 0) return;
  Partition& p = partitions_[s.partition];
  ++p.pinned;
  if (policy_ == EvictPolicy::Lru) unlink(p, slot);
}

void SlotPool::unpin(int32_t slot) {
  Slot& s = slots_[slot];
  assert(s.pins > 0);
  if (--s.pins > 0) return;
  assert(s.state == State::Clean);
  Partition& p = partitions_[s.partition];
  --p.pinned;
  if (policy_ == EvictPolicy::Lru) append(p, slot);
}

void SlotPool::drop(uint64_t key) {
  const int32_t slot = find(key);
  if (slot != kNone) drop_slot(slot);
}

void SlotPool::drop_slot(int32_t slot) {
  Slot& s = slots_[slot];
  assert(s.pins <= 1);
  Partition& p = partitions_[s.partition];
  if (s.pins == 0 || policy_ == EvictPolicy::Fifo) unlink(p, slot);
  if (s.pins > 0) --p.pinned;
  index_erase(s.key);
  s.pins = 0;
  s.key = 0;
  s.state = State::Free;
  s.prev = kNone;
  s.next = p.free;
  p.free = slot;
  --used_;
}

}  // namespace riffle
