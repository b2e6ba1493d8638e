#include "grammar/state_cache.h"

#include <algorithm>
#include <utility>

#include "kernels/common/splitmix64.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

uint64_t hash_of(uint64_t a, uint64_t b) { return splitmix64_mix(a ^ splitmix64_mix(b + 1)); }

constexpr int kCountShift = Members::kMost;  // PICK: first bit of a frame's number of members

}  // namespace

void Seen::clear() {
  for (const uint32_t at : used_) table_[at] = 0;
  used_.clear();
}

bool Seen::add(uint64_t number) {
  if (2 * used_.size() >= table_.size()) {
    std::vector<uint64_t> all;
    for (const uint32_t at : used_) all.push_back(table_[at]);
    table_.assign(2 * table_.size(), 0);
    used_.clear();
    for (const uint64_t n : all) add(n);
  }
  const size_t mask = table_.size() - 1;
  size_t at = splitmix64_mix(number) & mask;
  for (; table_[at] != 0; at = (at + 1) & mask)
    if (table_[at] == number) return false;
  table_[at] = number;
  used_.push_back(static_cast<uint32_t>(at));
  return true;
}

void HashIndex::add(uint64_t hash, uint32_t number) {
  if (2 * (n_ + 1) > table_.size()) {
    std::vector<Entry> old(2 * table_.size());
    old.swap(table_);
    n_ = 0;
    for (const Entry& e : old)
      if (e.number != kNone) add(e.hash, e.number);
  }
  const size_t mask = table_.size() - 1;
  size_t at = hash & mask;
  while (table_[at].number != kNone) at = (at + 1) & mask;
  table_[at] = {hash, number};
  ++n_;
}

StateCache::StateCache(const Automaton& automaton, const TokenTries& tokens)
    : automaton_(automaton),
      tokens_(tokens),
      n_classes_(automaton.byte_of.size()),
      blurred_states_(tokens.tries().size()),
      blurred_stacks_(tokens.tries().size()) {
  frames_.push_back({0, 0, 0, 0, 0});
  states_.push_back({0, 0, 0, false});
  table_.assign(n_classes_, kDead);
}

StateId StateCache::start(OpId op) {
  horizon_ = 0;
  complete_ = false;
  found_.clear();
  seen_.clear();
  old_frames_.clear();
  new_frames_.clear();
  begin_work();
  reach(op, 0);
  close();
  return intern();
}

StateId StateCache::make_next(StateId state, uint8_t byte_class) {
  const State from = states_[state];
  const uint8_t byte = automaton_.byte_of[byte_class];
  horizon_ = from.horizon;
  complete_ = false;
  found_.clear();
  seen_.clear();
  if (automaton_.has_nullable_loops) {
    old_frames_.clear();
    new_frames_.clear();
    for (uint32_t i = from.first; i < from.first + from.n; ++i)
      for (StackId s = places_[i].stack; s != 0 && old_frames_.emplace(s, true).second;
           s = frames_[s].parent)
        --work_;
  }
  for (uint32_t i = from.first; i < from.first + from.n; ++i) {
    const Place place = places_[i];
    for (const Edge& e : automaton_.edges_of(automaton_.ops[place.op]))
      if (e.low <= byte && byte <= e.high) reach(e.target, place.stack);
  }
  close();
  const StateId to = intern();
  table_[state * n_classes_ + byte_class] = to;
  return to;
}

StateCache::StackId StateCache::push(OpId op, uint64_t value, StackId parent, bool* too_deep) {
  const uint32_t depth = frames_[parent].depth + 1;
  *too_deep = depth > kDeepest;
  if (*too_deep) return 0;
  const uint64_t hash = hash_of(uint64_t{op} << 32 | parent, value);
  const uint32_t known = frame_index_.find(hash, [&](uint32_t id) {
    const Frame& f = frames_[id];
    return f.op == op && f.value == value && f.parent == parent;
  });
  if (known != HashIndex::kNone) return known;
  frames_.push_back({op, depth, value, parent, hash_of(frames_[parent].shape, op)});
  const auto id = static_cast<StackId>(frames_.size() - 1);
  frame_index_.add(hash, id);
  bytes_ += sizeof(Frame) + HashIndex::kBytes;
  return id;
}

void StateCache::reach(OpId op, StackId stack) {
  if (--work_ < 0)
    fail(RIFFLE_UNSUPPORTED,
         "the grammar is too ambiguous here: found more than %lld steps to check a token, expected "
         "at most that many; use fewer alternatives that begin with the same text",
         static_cast<long long>(kMostWork));
  if (seen_.add((uint64_t{op} << 32 | stack) + 1)) open_.push_back({op, stack});
}

void StateCache::push_and_reach(OpId op, uint64_t value, StackId parent, OpId target) {
  bool too_deep;
  const StackId stack = push(op, value, parent, &too_deep);
  if (!too_deep) reach(target, stack);
}

// Returns the rounds of a loop as its frame stores them: numbers that make no difference get the
// same value.
uint64_t StateCache::rounds(const Op& loop, uint64_t finished) const {
  if (finished >= kFew) return finished;
  const bool enough = finished + 1 >= loop.min;
  if (enough && loop.max == kUnlimited) return kMany;
  if (horizon_ == 0) return finished;
  const uint64_t most = finished + tokens_.tries()[horizon_ - 1].longest;
  if (most < loop.min) return kFew;
  return enough && most < loop.max ? kMany : finished;
}

void StateCache::close() {
  while (!open_.empty()) {
    const Place place = open_.back();
    open_.pop_back();
    const Op op = automaton_.ops[place.op];
    if (op.kind == Op::BYTES) found_.push_back(place);
    else follow(op, place.op, place.stack);
  }
  std::sort(found_.begin(), found_.end());
  if (automaton_.has_loops) drop_covered();
  if (found_.size() > kMostPlaces)
    fail(RIFFLE_UNSUPPORTED,
         "the grammar is too ambiguous here: found more than %zu ways to read the text, expected "
         "at most that many; use fewer alternatives that begin with the same text",
         kMostPlaces);
}

void StateCache::follow(const Op& op, OpId id, StackId stack) {
  switch (op.kind) {
    case Op::BYTES: break;
    case Op::SPLIT:
      for (uint32_t i = 0; i < op.n; ++i) reach(automaton_.targets[op.first + i], stack);
      break;
    case Op::CALL:
      if (op.tail) reach(op.target, stack);
      else push_and_reach(id, 0, stack, op.target);
      break;
    case Op::RETURN:
      if (stack == 0) complete_ = true;
      else reach(automaton_.ops[frames_[stack].op].next, frames_[stack].parent);
      break;
    case Op::LOOP: {
      if (op.min == 0) reach(op.next, stack);
      bool too_deep;
      const StackId body = push(id, rounds(op, 0), stack, &too_deep);
      if (op.nullable) new_frames_.emplace(body, true);
      if (!too_deep) reach(op.target, body);
      break;
    }
    case Op::AGAIN: {
      const Frame frame = frames_[stack];
      const Op& loop = automaton_.ops[frame.op];
      // A round without a byte adds nothing, and could be repeated endlessly.
      if (loop.nullable && new_frames_.count(stack) && !old_frames_.count(stack)) break;
      const bool counted = frame.value < kFew;
      const uint64_t finished = counted ? frame.value + 1 : frame.value;
      if (counted ? finished >= loop.min : frame.value == kMany) reach(loop.next, frame.parent);
      if (counted && finished >= loop.max) break;
      bool too_deep;
      const StackId body = push(frame.op, rounds(loop, finished), frame.parent, &too_deep);
      if (loop.nullable) new_frames_.emplace(body, true);
      if (!too_deep) reach(loop.target, body);
      break;
    }
    case Op::PICK: {
      const MemberOps& m = automaton_.members[op.target];
      if (m.required == 0 && m.min == 0) reach(op.next, stack);
      pick(id, stack, 0);
      break;
    }
    case Op::PICKED: {
      const Frame frame = frames_[stack];
      const Op& object = automaton_.ops[frame.op];
      const MemberOps& m = automaton_.members[object.target];
      const uint64_t set = frame.value & ((uint64_t{1} << kCountShift) - 1),
                     count = frame.value >> kCountShift;
      if ((m.required & ~set) == 0 && count >= m.min) reach(object.next, frame.parent);
      const bool room = m.max == kUnlimited || count < m.max;
      bool any = m.has_extra;
      for (size_t i = 0; i < m.one.size() && !any; ++i) any = m.one[i] != 0 && !(set >> i & 1);
      if (room && any) reach(m.separator, stack);
      break;
    }
    case Op::MORE: {
      const Frame frame = frames_[stack];
      pick(frame.op, frame.parent, frame.value);
      break;
    }
  }
}

// Adds the places of an object's next member. Members that would leave no room for required ones
// are left out.
void StateCache::pick(OpId id, StackId parent, uint64_t value) {
  const MemberOps& m = automaton_.members[automaton_.ops[id].target];
  const uint64_t set = value & ((uint64_t{1} << kCountShift) - 1);
  uint64_t count = value >> kCountShift;
  if (m.max != kUnlimited && count >= m.max) return;
  const uint64_t left = m.max == kUnlimited ? UINT64_MAX : m.max - count;
  const auto missing = static_cast<uint64_t>(__builtin_popcountll(m.required & ~set));
  if (m.counts) count = std::min<uint64_t>(count + 1, m.max == kUnlimited ? m.min : m.max);
  const uint64_t counted = count << kCountShift;
  for (size_t i = 0; i < m.one.size(); ++i) {
    const uint64_t bit = uint64_t{1} << i;
    if (m.one[i] == 0 || (set & bit) || (!(m.required & bit) && missing >= left)) continue;
    push_and_reach(id, set | bit | counted, parent, m.one[i]);
  }
  if (m.has_extra && missing < left) push_and_reach(id, set | counted, parent, m.extra);
}

// Tells whether stack a allows every text that b allows.
bool StateCache::covers(StackId a, StackId b) const {
  while (a != b) {
    if (a == 0 || b == 0) return false;
    const Frame &x = frames_[a], &y = frames_[b];
    if (x.op != y.op) return false;
    if (x.value != y.value && x.value != kMany) {
      const Op& loop = automaton_.ops[x.op];
      if (loop.kind != Op::LOOP || x.value >= kFew || y.value >= kFew) return false;
      if (x.value > y.value || x.value + 1 < loop.min) return false;
    } else if (x.value != y.value && automaton_.ops[x.op].kind != Op::LOOP) {
      return false;
    }
    a = x.parent;
    b = y.parent;
  }
  return true;
}

// Does the work of drop_covered for places [begin, end) of one operation that differ only in the
// rounds of one loop: then each is compared with one other, not with all.
bool StateCache::drop_more_rounds(size_t begin, size_t end, size_t* kept) {
  const Frame& one = frames_[found_[begin].stack];
  const Op& loop = automaton_.ops[one.op];
  uint64_t least = kMany;  // the fewest rounds that may be the last
  bool many = false;
  for (size_t i = begin; i < end; ++i) {
    const Frame& f = frames_[found_[i].stack];
    if (found_[i].stack == 0 || f.op != one.op || f.parent != one.parent) return false;
    if (f.value == kMany) many = true;
    else if (f.value < kFew && f.value + 1 >= loop.min) least = std::min(least, f.value);
  }
  if (loop.kind != Op::LOOP) return false;
  work_ -= static_cast<int64_t>(end - begin);
  for (size_t i = begin; i < end; ++i) {
    const uint64_t rounds = frames_[found_[i].stack].value;
    const bool covered = many ? rounds != kMany : rounds < kFew && rounds > least;
    if (!covered) found_[(*kept)++] = found_[i];
  }
  return true;
}

void StateCache::drop_covered() {
  size_t kept = 0;
  // Only stacks of the same operations can cover each other. One operation may have thousands of
  // stacks, if each alternative calls the same rule, such as white space.
  const auto shape = [&](const Place& p) { return frames_[p.stack].shape; };
  std::sort(found_.begin(), found_.end(), [&](const Place& a, const Place& b) {
    if (a.op != b.op) return a.op < b.op;
    return shape(a) != shape(b) ? shape(a) < shape(b) : a.stack < b.stack;
  });
  for (size_t begin = 0, end; begin < found_.size(); begin = end) {
    end = begin;
    while (end < found_.size() && found_[end].op == found_[begin].op &&
           shape(found_[end]) == shape(found_[begin]))
      ++end;
    if (drop_more_rounds(begin, end, &kept)) continue;
    const size_t first = kept;
    for (size_t i = begin; i < end; ++i) {
      const Place place = found_[i];
      work_ -= static_cast<int64_t>(kept - first);
      const auto covered = [&](const Place& other) { return covers(other.stack, place.stack); };
      const auto first_kept = found_.begin() + static_cast<std::ptrdiff_t>(first);
      auto last_kept = found_.begin() + static_cast<std::ptrdiff_t>(kept);
      if (std::any_of(first_kept, last_kept, covered)) continue;
      last_kept = std::remove_if(first_kept, last_kept, [&](const Place& other) {
        return covers(place.stack, other.stack);
      });
      kept = static_cast<size_t>(last_kept - found_.begin());
      found_[kept++] = place;
    }
  }
  found_.resize(kept);
  std::sort(found_.begin(), found_.end());
}

StateId StateCache::intern() {
  if (found_.empty() && !complete_) return kDead;
  uint64_t hash = uint64_t{horizon_} << 1 | (complete_ ? 1 : 0);
  for (const Place& p : found_) hash = hash_of(hash, uint64_t{p.op} << 32 | p.stack);
  const uint32_t known = state_index_.find(hash, [&](uint32_t at) {
    const State& s = states_[at];
    return s.horizon == horizon_ && s.complete == complete_ && s.n == found_.size() &&
           std::equal(found_.begin(), found_.end(), places_.begin() + s.first);
  });
  if (known != HashIndex::kNone) return known;
  const auto id = static_cast<StateId>(states_.size());
  table_.resize(table_.size() + n_classes_, kUnknown);
  states_.push_back({static_cast<uint32_t>(places_.size()), static_cast<uint32_t>(found_.size()),
                     horizon_, complete_});
  places_.insert(places_.end(), found_.begin(), found_.end());
  state_index_.add(hash, id);
  bytes_ += sizeof(State) + n_classes_ * sizeof(uint32_t) + found_.size() * sizeof(Place) +
            HashIndex::kBytes;
  return id;
}

StateCache::StackId StateCache::blurred_stack(StackId stack) {
  auto& known = blurred_stacks_[horizon_ - 1];
  std::vector<StackId> chain;
  StackId s = stack, out = 0;
  for (; s != 0; s = frames_[s].parent) {
    if (const auto it = known.find(s); it != known.end()) {
      out = it->second;
      break;
    }
    chain.push_back(s);
  }
  while (!chain.empty()) {
    const StackId at = chain.back();
    chain.pop_back();
    const Frame f = frames_[at];
    const Op& op = automaton_.ops[f.op];
    bool too_deep;
    out = push(f.op, op.kind == Op::LOOP ? rounds(op, f.value) : f.value, out, &too_deep);
    known.emplace(at, out);
    bytes_ += 32;
  }
  return out;
}

StateId StateCache::blurred(StateId exact, size_t trie) {
  if (const auto it = blurred_states_[trie].find(exact); it != blurred_states_[trie].end())
    return it->second;
  const State from = states_[exact];
  horizon_ = static_cast<uint8_t>(trie + 1);
  complete_ = from.complete;
  found_.clear();
  for (uint32_t i = from.first; i < from.first + from.n; ++i)
    found_.push_back({places_[i].op, blurred_stack(places_[i].stack)});
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  if (automaton_.has_loops) drop_covered();
  const StateId to = intern();
  blurred_states_[trie].emplace(exact, to);
  bytes_ += 32;
  return to;
}

const StateCache::Mask* StateCache::mask_of(StateId blurred) const {
  const auto it = masks_.find(blurred);
  return it == masks_.end() ? nullptr : &it->second;
}

const StateCache::Mask* StateCache::keep_mask(StateId blurred, Mask mask) {
  bytes_ += mask.size() * sizeof(uint32_t) + 64;
  return &masks_.insert_or_assign(blurred, std::move(mask)).first->second;
}

// Tells whether all characters from U+0080 on lead from one state to the other. Only the first byte
// of each class is tried.
bool StateCache::all_wide_lead(StateId from, StateId to) {
  struct Step {
    StateId state;
    int more;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> whole;  // steps that lead there for all continuation bytes
  const auto repeated = [&](int b, int low) {
    return b > low && automaton_.class_of[b] == automaton_.class_of[b - 1];
  };
  const auto leads = [&](auto& self, StateId state, int more, int low, int high) -> bool {
    if (state == kDead) return false;
    if (more == 0) return state == to;
    const bool all = low == 0x80 && high == 0xbf;
    const Step step{state, more};
    if (all && std::find(whole.begin(), whole.end(), step) != whole.end()) return true;
    for (int b = low; b <= high; ++b) {
      if (repeated(b, low)) continue;
      if (!self(self, next(state, static_cast<uint8_t>(b)), more - 1, 0x80, 0xbf)) return false;
    }
    if (all) whole.push_back(step);
    return true;
  };
  const auto first = [&](int begin, int end, int more, int low, int high) {
    for (int b = begin; b <= end; ++b) {
      if (repeated(b, begin)) continue;
      if (!leads(leads, next(from, static_cast<uint8_t>(b)), more, low, high)) return false;
    }
    return true;
  };
  return first(0xc2, 0xdf, 1, 0x80, 0xbf) && first(0xe0, 0xe0, 2, 0xa0, 0xbf) &&
         first(0xe1, 0xec, 2, 0x80, 0xbf) && first(0xed, 0xed, 2, 0x80, 0x9f) &&
         first(0xee, 0xef, 2, 0x80, 0xbf) && first(0xf0, 0xf0, 3, 0x90, 0xbf) &&
         first(0xf1, 0xf3, 3, 0x80, 0xbf) && first(0xf4, 0xf4, 3, 0x80, 0x8f);
}

// Returns the state to which most ASCII characters lead, and in `ascii` these characters. If any
// character leads back to `state`, returns that.
StateId StateCache::likely_next(StateId state, TokenTrie::Ascii* ascii) {
  StateId to[0x80], likely = kDead;
  int votes = 0;  // Boyer and Moore's majority vote
  for (int b = 0; b < 0x80; ++b) {
    to[b] = next(state, static_cast<uint8_t>(b));
    if (to[b] == kDead) continue;
    if (votes == 0) likely = to[b];
    votes += to[b] == likely ? 1 : -1;
  }
  if (std::find(to, to + 0x80, state) != to + 0x80) likely = state;
  for (int b = 0; b < 0x80; ++b)
    if (to[b] == likely && likely != kDead) ascii->add(static_cast<uint8_t>(b));
  return likely;
}

// Returns true if none of these characters can follow the state, by their first bytes.
bool StateCache::all_end(StateId state, const Loops& characters) {
  if (!goes_on(state)) return true;
  for (int b = 0; b < (characters.wide ? 0x100 : 0x80); ++b)
    if (b >= 0x80 || characters.ascii.has(static_cast<uint8_t>(b)))
      if (next(state, static_cast<uint8_t>(b)) != kDead) return false;
  return true;
}

const StateCache::Loops& StateCache::loops(StateId state) {
  if (states_[state].loops >= 0) return loops_[static_cast<size_t>(states_[state].loops)];
  // A state that counts leads to the state of the next count, and so on: the chain is followed to
  // its end, then processed backwards.
  constexpr uint8_t kLongest = 32;
  struct Link {
    StateId state, to;
    Loops one;  // loops of one character
  };
  std::vector<Link> chain;
  StateId at = state;
  Loops behind;
  for (;;) {
    if (states_[at].loops >= 0) {
      behind = loops_[static_cast<size_t>(states_[at].loops)];
      break;
    }
    Loops one;
    const StateId to = likely_next(at, &one.ascii);
    if (to == kDead || chain.size() == kLongest) break;
    one.wide = all_wide_lead(at, to);
    one.most = to == at ? kEver : 1;
    one.stays = to == at;
    chain.push_back({at, to, one});
    if (to == at) break;
    if (std::any_of(chain.begin(), chain.end(), [&](const Link& l) { return l.state == to; }))
      break;
    at = to;
  }
  if (chain.empty()) chain.push_back({state, state, {}});
  while (!chain.empty()) {
    Link link = chain.back();
    chain.pop_back();
    const TokenTrie::Ascii both{link.one.ascii.low & behind.ascii.low,
                                link.one.ascii.high & behind.ascii.high};
    if (link.one.most == 1 && behind.most > 0 && (both.low | both.high) != 0) {
      link.one.ascii = both;
      link.one.wide = link.one.wide && behind.wide;
      link.one.most = behind.most == kEver ? kEver : std::min<uint8_t>(behind.most + 1, kLongest);
      link.one.ends = behind.ends && behind.most < kLongest;
    } else if (link.one.most == 1) {
      link.one.ends = all_end(link.to, link.one);
    }
    loops_.push_back(link.one);
    states_[link.state].loops = static_cast<int32_t>(loops_.size() - 1);
    bytes_ += sizeof behind;
    behind = link.one;
  }
  return loops_[static_cast<size_t>(states_[state].loops)];
}

void StateCache::move_to(StateCache& other, std::span<StateId> states) const {
  other.work_ = work_;
  std::unordered_map<StackId, StackId> moved{{0, 0}};
  const auto stack_of = [&](StackId stack) {
    std::vector<StackId> chain;
    while (!moved.count(stack)) {
      chain.push_back(stack);
      stack = frames_[stack].parent;
    }
    StackId out = moved[stack];
    while (!chain.empty()) {
      const Frame& f = frames_[chain.back()];
      bool too_deep;
      out = other.push(f.op, f.value, out, &too_deep);
      moved.emplace(chain.back(), out);
      chain.pop_back();
    }
    return out;
  };
  for (StateId& id : states) {
    if (id == kDead) continue;
    const State& from = states_[id];
    other.horizon_ = from.horizon;
    other.complete_ = from.complete;
    other.found_.clear();
    for (uint32_t i = from.first; i < from.first + from.n; ++i)
      other.found_.push_back({places_[i].op, stack_of(places_[i].stack)});
    std::sort(other.found_.begin(), other.found_.end());
    id = other.intern();
  }
}

}  // namespace riffle::grammar
