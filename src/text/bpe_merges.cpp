#include <algorithm>
#include <functional>

#include "text/bpe.h"
#include "util/checked.h"

namespace riffle {

namespace {

// In words of at most this many symbols the best pair is searched for again after each merge, which
// is faster than keeping the pairs sorted.
constexpr size_t kShortWord = 20;

uint64_t mixed(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}

// Returns a power of two with room to spare for n.
size_t table_size(size_t n) {
  size_t size = 16;
  while (size < n + n / 2) size *= 2;
  return size;
}

}  // namespace

BpeMerges::BpeMerges(const std::vector<BpeMerge>& merges) : slots_(table_size(merges.size())) {
  for (size_t rank = 0; rank < merges.size(); rank++) {
    const BpeMerge& merge = merges[rank];
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t at = mixed(pair) & (slots_.size() - 1);
    while (slots_[at].pair != kEmpty && slots_[at].pair != pair)
      at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {pair, static_cast<uint32_t>(rank),
                  merge.result};  // the later of two equal ones counts
  }
}

const BpeMerges::Slot* BpeMerges::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t at = mixed(pair) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == kEmpty) return nullptr;
  }
}

void BpeMerges::apply(std::vector<int32_t>* ids, Work* work) const {
  if (ids->size() < 2) return;
  if (ids->size() <= kShortWord) apply_short(ids);
  else apply_long(ids, work);
}

void BpeMerges::apply_short(std::vector<int32_t>* ids) const {
  const Slot* pairs[kShortWord];  // pairs[i]: the merge of symbols i and i + 1, or nullptr
  size_t n = ids->size();
  int32_t* id = ids->data();
  for (size_t i = 0; i + 1 < n; i++) pairs[i] = find(id[i], id[i + 1]);
  while (true) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; i++) {
      if (pairs[i] && (best == n || pairs[i]->rank < pairs[best]->rank)) best = i;
    }
    if (best == n) break;
    id[best] = pairs[best]->result;
    n--;
    std::copy(id + best + 2, id + n + 1, id + best + 1);
    if (best + 1 < n) std::copy(pairs + best + 2, pairs + n, pairs + best + 1);
    if (best > 0) pairs[best - 1] = find(id[best - 1], id[best]);
    if (best + 1 < n) pairs[best] = find(id[best], id[best + 1]);
  }
  ids->resize(n);
}

void BpeMerges::apply_long(std::vector<int32_t>* ids, Work* work) const {
  auto& symbols = work->symbols;
  auto& heap = work->heap;
  const auto later = [](const Work::Candidate& a, const Work::Candidate& b) {
    return a.order > b.order;
  };
  const auto candidate = [&](uint32_t at, std::vector<Work::Candidate>* out) {
    const uint32_t next = symbols[at].next;
    if (next == kNone) return false;
    const Slot* merge = find(symbols[at].id, symbols[next].id);
    if (merge == nullptr) return false;
    out->push_back({static_cast<uint64_t>(merge->rank) << 32 | at, symbols[at].id, symbols[next].id,
                    merge->result});
    return true;
  };
  const uint32_t n = static_cast<uint32_t>(ids->size());
  symbols.resize(n);
  for (uint32_t i = 0; i < n; i++)
    symbols[i] = {(*ids)[i], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  heap.clear();
  for (uint32_t i = 0; i < n; i++) candidate(i, &heap);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Work::Candidate best = heap.back();
    heap.pop_back();
    const uint32_t at = static_cast<uint32_t>(best.order), right = symbols[at].next;
    // Both must still be there as they were; a symbol that was merged into its left neighbour has
    // id -1.
    if (right == kNone || symbols[at].id != best.left || symbols[right].id != best.right) continue;
    symbols[at].id = best.result;
    symbols[at].next = symbols[right].next;
    symbols[right].id = -1;
    if (symbols[at].next != kNone) symbols[symbols[at].next].previous = at;
    if (candidate(at, &heap)) std::push_heap(heap.begin(), heap.end(), later);
    if (symbols[at].previous != kNone && candidate(symbols[at].previous, &heap)) {
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  size_t out = 0;
  for (uint32_t at = 0; at != kNone; at = symbols[at].next) (*ids)[out++] = symbols[at].id;
  ids->resize(out);
}

// ---- spellings

PieceIds::PieceIds(const std::vector<VocabPiece>& pieces, const std::vector<bool>& in_model) {
  reserve(pieces.size());
  for (size_t id = 0; id < pieces.size(); id++) {
    if (in_model[id]) add(pieces[id].text, static_cast<int32_t>(id));
  }
}

void PieceIds::reserve(size_t n) { slots_.resize(table_size(n)); }

size_t PieceIds::slot_of(std::string_view text) const {
  size_t at = std::hash<std::string_view>()(text) & (slots_.size() - 1);
  while (slots_[at].id >= 0 && slots_[at].text != text) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void PieceIds::grow() {
  std::vector<Slot> old(std::max<size_t>(16, 2 * slots_.size()));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id >= 0) slots_[slot_of(slot.text)] = slot;
  }
}

bool PieceIds::add(std::string_view text, int32_t id) {
  if (n_ + n_ / 2 >= slots_.size()) grow();
  Slot& slot = slots_[slot_of(text)];
  if (slot.id >= 0) return false;
  slot = {text, id};
  n_++;
  return true;
}

int32_t PieceIds::find(std::string_view text) const {
  return slots_.empty() ? -1 : slots_[slot_of(text)].id;
}

BpeMerge make_merge(const PieceIds& ids, std::string_view left, std::string_view right,
                    size_t index, const std::string& where, const char* field) {
  const std::string joined = std::string(left) + std::string(right);
  const BpeMerge merge = {ids.find(left), ids.find(right), ids.find(joined)};
  for (const auto& [id, text] : {std::pair<int32_t, std::string_view>{merge.left, left},
                                 {merge.right, right},
                                 {merge.result, joined}}) {
    if (id < 0) {
      bad_model(where, std::string(field) + "[" + std::to_string(index) + "]",
                "\"" + std::string(text.substr(0, 80)) + "\", which is not a piece",
                "pieces of the vocabulary");
    }
  }
  return merge;
}

// GPT-2's table (Radford et al. 2019, bytes_to_unicode): printable Latin-1 characters stand for
// themselves, the other 68 bytes become U+0100 and up.
namespace {

struct ByteLevelTable {
  uint16_t of_byte[256];
  int16_t of_char[0x144];  // -1: no byte
  constexpr ByteLevelTable() : of_byte(), of_char() {
    for (auto& byte : of_char) byte = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
      const bool itself =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      of_byte[byte] = static_cast<uint16_t>(itself ? byte : next++);
      of_char[of_byte[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr ByteLevelTable kByteLevel;

}  // namespace

std::string byte_level_spelling(uint8_t byte) {
  const uint16_t c = kByteLevel.of_byte[byte];
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

std::optional<std::string> byte_level_bytes(std::string_view piece) {
  std::string out;
  for (size_t i = 0; i < piece.size(); i++) {
    const auto lead = static_cast<uint8_t>(piece[i]);
    unsigned c = lead;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xDF || i + 1 == piece.size()) return std::nullopt;
      const auto second = static_cast<uint8_t>(piece[++i]);
      if (second < 0x80 || second > 0xBF) return std::nullopt;
      c = (lead & 0x1Fu) << 6 | (second & 0x3Fu);
    }
    if (c >= std::size(kByteLevel.of_char) || kByteLevel.of_char[c] < 0) return std::nullopt;
    out += static_cast<char>(kByteLevel.of_char[c]);
  }
  return out;
}

}  // namespace riffle
