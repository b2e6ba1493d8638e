// The scheduler's prompts: choosing the next one, beginning it, and reading it.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/schedule/request.h"
#include "engine/schedule/scheduler.h"

namespace riffle {

// A shorter common beginning is not worth a fork's tables.
static constexpr size_t kMinReuse = 64;
// Number of waiting requests that are searched for one that can reuse a prompt's KV.
static constexpr size_t kLookAhead = 64;

void Scheduler::read_prompt(Iteration& it) {
  const double layers = engine_.model().config.n_layers;
  double budget = static_cast<double>(o_.max_inject_tokens);
  if (o_.max_tokens > 0) {
    if (computed_ >= o_.max_tokens) return;
    budget = std::min(budget, (o_.max_tokens - computed_) * layers);
  }
  if (o_.prefill_mode == PrefillMode::WHOLE) budget = INFINITY;
  // Skipped sequences have priority: another sequence would only take more of the pool from them.
  if (!reading_ && (it.skipped > 0 || !begin_next())) return;
  Request& r = *reading_;
  try {
    if (!run_) {
      size_t n = r.prompt.size() - r.read;
      if (o_.prefill_mode == PrefillMode::CHUNKS)
        n = engine_.piece_rows(
            *r.sequence, static_cast<int64_t>(std::min<double>(n, std::max(1.0, budget / layers))),
            static_cast<int64_t>(n));
      run_ = engine_.begin_prefill(*r.sequence, std::span(r.prompt).subspan(r.read, n), nullptr,
                                   r.beginnings);
      expect_next();
      if (o_.prefill_mode == PrefillMode::CHUNKS) budget = INFINITY;
    }
    const double done = run_->done, pairs = run_->pairs;
    const bool over = engine_.advance(*run_, budget, {});
    it.prefill_token_layers = static_cast<int64_t>(run_->done - done);
    it.prefill_pairs = run_->pairs - pairs;
    it.prefill_kv_blocks = run_->kv_blocks;
    it.prefill_request = r.id;
    it.prefill_share =
        (static_cast<double>(r.read) + run_->done / layers) / static_cast<double>(r.prompt.size());
    if (!over) return;
    r.read += run_->tokens.size();
    run_.reset();
    if (r.read < r.prompt.size()) return;
    if (hooks_.prompt_read) hooks_.prompt_read(r.id, {r.sequence, r.loaded, r.load_error});
    if (cache_) keep_beginning(r);
    r.load_error.reset();
    if (take_tokens(r, kNotSampled)) decoding_.push_back(std::move(reading_));
    else end(std::move(reading_), RIFFLE_OK, "");
  } catch (const Error& e) {
    if (e.status() == RIFFLE_ABORTED) throw;  // the run may continue
    run_.reset();
    if (e.status() == RIFFLE_DEVICE_LOST) throw;
    prompt_failed(e.status(), text_of(e));
  } catch (const std::bad_alloc&) {
    if (run_) engine_.abandon(*run_);
    run_.reset();
    prompt_failed(RIFFLE_OUT_OF_MEMORY, "out of memory");
  }
}

// Prepares memory for the next prompt while this one is read; otherwise decode steps would wait for
// it.
void Scheduler::expect_next() {
  if (waiting_.empty() || live() >= static_cast<size_t>(o_.max_seqs)) return;
  const Request& next = *waiting_.front();
  size_t shared = static_cast<size_t>(find_donor(next).n_tokens);
  if (o_.prefix_reuse && engine_.can_fork())
    shared =
        std::max(shared, reusable({next.prompt.data(), next.prompt.size() - 1}, reading_->prompt));
  const int64_t bytes =
      engine_.own_bytes(static_cast<int64_t>(next.prompt.size()), static_cast<int64_t>(shared),
                        beginnings(next, static_cast<int64_t>(shared)));
  if (bytes <= engine_.host_room()) engine_.expect(bytes);
}

// If memory ran out, the prompt is tried again when a request has ended.
void Scheduler::prompt_failed(riffle_status status, const std::string& error) {
  std::unique_ptr<Request> r = std::move(reading_);
  if (status != RIFFLE_OUT_OF_MEMORY || (decoding_.empty() && kept_.empty()))
    return end(std::move(r), status, error);
  while (!kept_.empty()) drop_kept(0);
  memory_short_ = !decoding_.empty();
  start_again(std::move(r));
}

// Makes room for a prompt by dropping kept sequences that are of no use to it.
Scheduler::Room Scheduler::make_room(const Request& r, const Donor& donor) {
  // shared: tokens that take no memory, such as a mapped file's. most: a file is loaded whole.
  const int64_t shared = donor.file && !engine_.maps_files() ? 0 : donor.n_tokens;
  const int64_t most = std::max(static_cast<int64_t>(r.prompt.size()),
                                donor.file ? r.file->content().n_tokens() : 0);
  const auto spare = [&] {  // index of a kept sequence that is of no use here
    for (size_t i = 0; i < kept_.size(); ++i)
      if (kept_[i]->sequence.get() != donor.sequence) return static_cast<int>(i);
    return -1;
  };
  // Tells whether the prompt, and a block for each decoding request, fit once `freed` bytes are
  // freed.
  const auto fits = [&](int64_t freed) {
    const int64_t ahead = engine_.own_bytes(1, 0, {}) * static_cast<int64_t>(decoding_.size()) +
                          engine_.ahead_bytes();
    return engine_.own_bytes(most, shared, r.beginnings) + ahead - freed <= engine_.host_room();
  };
  const auto freed_by_kept = [&] {
    int64_t freed = 0;
    for (const auto& k : kept_)
      freed += engine_.freed_by_cut(*k->sequence,
                                    k->sequence.get() == donor.sequence ? donor.n_tokens : 0);
    return freed;
  };
  for (;;) {
    const bool full = live() >= static_cast<size_t>(o_.max_seqs);
    if (!full && fits(0)) return Room::FREE;
    if (full && counted_kept() == 0) return Room::NONE;  // dropping others would not help
    if (!full && !decoding_.empty() && !fits(freed_by_kept()))
      return Room::NONE;  // dropping the kept sequences would not be enough
    if (const int i = spare(); i >= 0) drop_kept(i);
    else if (!kept_.empty()) return Room::OF_DONOR;
    else if (!decoding_.empty()) return Room::NONE;
    else return Room::FREE;  // nothing else holds memory: the prompt may fail
  }
}

// Gives a request its sequence. Returns false if its file cannot be read: the request then begins
// without it.
bool Scheduler::give_sequence(Request& r, const Donor& donor, bool adopt) {
  if (adopt) {
    std::unique_ptr<Request> from = std::move(kept_.front());
    kept_.pop_front();
    r.sequence = std::move(from->sequence);
    r.sequence->counts = {};
    engine_.truncate(*r.sequence, donor.n_tokens);
  } else if (donor.file) {
    if (!load(r, donor.n_tokens)) return false;
  } else {
    r.sequence = donor.sequence ? engine_.fork(*donor.sequence, donor.n_tokens) : engine_.create();
    const auto used = std::find_if(kept_.begin(), kept_.end(), [&](const auto& k) {
      return k->sequence.get() == donor.sequence;
    });
    if (used != kept_.end()) std::rotate(used, used + 1, kept_.end());  // most recently used
  }
  r.sequence->kv.of_request = true;
  r.read = donor.n_tokens;
  (donor.file ? r.loaded : r.reused) = r.read;
  return true;
}

// Ends the first waiting request. If memory ran out and other requests hold some, it waits again.
void Scheduler::begin_failed(const Error& error) {
  std::unique_ptr<Request> failed = std::move(waiting_.front());
  waiting_.pop_front();
  if (error.status() != RIFFLE_OUT_OF_MEMORY || (decoding_.empty() && kept_.empty()))
    return end(std::move(failed), error.status(), text_of(error));
  while (!kept_.empty()) drop_kept(0);
  memory_short_ = !decoding_.empty();
  if (failed->sequence) engine_.destroy(*failed->sequence);
  failed->sequence.reset();
  waiting_.push_front(std::move(failed));
}

// Gives the first waiting request a sequence. Returns false if no request waits, or there is no
// room for another one.
bool Scheduler::begin_next() {
  while (!waiting_.empty()) {
    if (memory_short_ && !decoding_.empty()) return false;
    // Checked first: comparing prompts takes time, and max_seqs may be reached for many iterations.
    if (live() >= static_cast<size_t>(o_.max_seqs) && counted_kept() == 0) return false;
    Request& r = *waiting_.front();
    const Donor donor = choose_donor(r);
    r.beginnings = beginnings(r, donor.n_tokens);
    const Room room = make_room(r, donor);
    if (room == Room::NONE) return false;
    std::optional<Error> error;
    try {
      if (!give_sequence(r, donor, room == Room::OF_DONOR)) continue;
    } catch (const Error& e) {
      if (e.status() == RIFFLE_DEVICE_LOST || e.status() == RIFFLE_ABORTED) throw;
      error = e;
    } catch (const std::bad_alloc&) {
      error = Error(RIFFLE_OUT_OF_MEMORY, "out of memory");
    }
    if (error) {
      begin_failed(*error);
      continue;
    }
    reading_ = std::move(waiting_.front());
    waiting_.pop_front();
    drop_unwanted();
    return true;
  }
  return false;
}

// Returns the number of first tokens that both have in common and that can be reused.
size_t Scheduler::reusable(std::span<const int32_t> a, std::span<const int32_t> b) const {
  const size_t most = std::min(a.size(), b.size());
  const size_t n = std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  return n - n % static_cast<size_t>(engine_.reuse_unit());
}

// Returns the number of tokens with which r can begin if it takes over a donor's KV, which can be
// cut where `reach` allows. The last token is always read, since logits come from it.
size_t Scheduler::reusable(const Request& r, std::span<const int32_t> donor,
                           const Reach& reach) const {
  const auto unit = static_cast<size_t>(engine_.reuse_unit());
  size_t n = reusable({r.prompt.data(), r.prompt.size() - 1}, donor);
  for (size_t reached; n > 0; n = reached - reached % unit) {
    reached = static_cast<size_t>(reach(static_cast<int64_t>(n)));
    if (reached == n) break;
  }
  return n;
}

size_t Scheduler::reusable(const Request& r, const Request& donor) const {
  return reusable(r, donor.prompt, [&](int64_t n) { return engine_.reach(*donor.sequence, n); });
}

// Returns the lengths at which other requests' prompts diverge from r's, the most frequent first,
// none below the `read` tokens that r has already. At these lengths a model with sliding windows
// must keep the blocks that its windows see, and one with recurrent layers their states. Earlier
// requests count too, since later ones may begin like them.
std::vector<int64_t> Scheduler::beginnings(const Request& r, int64_t read) const {
  if (!engine_.has_marks() || !o_.prefix_reuse || !engine_.can_fork()) return {};
  std::map<int64_t, int> wanted;  // number of prompts that diverge there
  const auto add = [&](const Request& other) {
    if (&other == &r) return;
    const auto n =
        static_cast<int64_t>(reusable({r.prompt.data(), r.prompt.size() - 1}, other.prompt));
    if (n >= static_cast<int64_t>(kMinReuse) && n >= read) ++wanted[n];
  };
  for (const Requests* list : {&kept_, &decoding_})
    for (const auto& other : *list) add(*other);
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i) add(*waiting_[i]);
  std::vector<int64_t> out;
  for (const auto& [n, count] : wanted) out.push_back(n);
  std::stable_sort(out.begin(), out.end(),
                   [&](int64_t a, int64_t b) { return wanted[a] > wanted[b]; });
  out.resize(std::min<size_t>(out.size(), Marks::kMost));
  return out;
}

// Returns the sequence whose prompt has the longest common beginning with r's. Only prompts count:
// generated tokens have attended to a selection of the KV.
Scheduler::Donor Scheduler::find_donor(const Request& r) const {
  Donor best;
  if (!o_.prefix_reuse || !engine_.can_fork()) return best;
  for (const Requests* list : {&kept_, &decoding_})
    for (const auto& d : *list) {
      const size_t n = reusable(r, *d);
      if (n >= kMinReuse && static_cast<int64_t>(n) > best.n_tokens)
        best = {d->sequence.get(), static_cast<int64_t>(n)};
    }
  return best;
}

// Returns find_donor's result, or the request's file if that holds more of the prompt.
Scheduler::Donor Scheduler::choose_donor(Request& r) {
  Donor best = find_donor(r);
  if (!o_.prefix_reuse || !engine_.can_fork()) return best;
  if (!std::exchange(r.asked, true))
    r.file = saved_beginning(r, static_cast<size_t>(best.n_tokens));
  if (!r.file) return best;
  const auto n = static_cast<int64_t>(
      reusable(r, r.file->content().tokens, [&](int64_t n) { return engine_.reach(*r.file, n); }));
  if (n >= best.n_tokens + static_cast<int64_t>(kMinReuse)) best = {nullptr, n, true};
  return best;
}

// Loads the request's file. Returns false if the file is of no use: the request then drops it.
bool Scheduler::load(Request& r, int64_t n_tokens) {
  try {
    r.sequence = engine_.load(r.file, {});
    engine_.truncate(*r.sequence, n_tokens);
    return true;
  } catch (const Error& e) {
    if (e.status() == RIFFLE_DEVICE_LOST || e.status() == RIFFLE_ABORTED) throw;
    r.load_error = e;
  } catch (const std::bad_alloc&) {
    r.load_error = Error(RIFFLE_OUT_OF_MEMORY, "out of memory");
  }
  if (r.sequence) engine_.destroy(*r.sequence);
  r.sequence.reset();
  r.file.reset();
  return false;
}

// Returns true if the sequence is kept: a waiting prompt shares more of its beginning with this
// request than with any other, or finished sequences stay.
bool Scheduler::wanted(const Request& done) const {
  if (!o_.prefix_reuse || !engine_.can_fork() || done.read < done.prompt.size()) return false;
  if (o_.keep_seqs > 0 && done.prompt.size() > kMinReuse) return true;
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i) {
    const Request& r = *waiting_[i];
    const size_t n = reusable(r, done);
    if (n >= kMinReuse && static_cast<int64_t>(n) > find_donor(r).n_tokens) return true;
  }
  return false;
}

// Keeps a finished sequence, in place of those that hold nothing more than its beginning.
void Scheduler::keep(std::unique_ptr<Request> done) {
  engine_.drop_draft(*done->sequence);  // it only lends its prompt
  for (size_t i = o_.keep_seqs > 0 ? kept_.size() : 0; i-- > 0;) {
    const Request& old = *kept_[i];
    const size_t n = reusable({old.prompt.data(), old.prompt.size() - 1}, done->prompt);
    const auto length = static_cast<int64_t>(n);
    if (n + static_cast<size_t>(engine_.reuse_unit()) >= old.prompt.size() &&
        engine_.reach(*done->sequence, length) == length)
      drop_kept(i);
  }
  kept_.push_back(std::move(done));
  if (o_.keep_seqs > 0) drop_unwanted();
}

// Drops kept sequences beyond keep_seqs that are not the donor of a waiting prompt.
void Scheduler::drop_unwanted() {
  const auto most = static_cast<size_t>(o_.keep_seqs);
  if (kept_.size() <= most) return;
  std::vector<const Sequence*> donors;
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i)
    donors.push_back(find_donor(*waiting_[i]).sequence);
  for (size_t i = 0; i < kept_.size() && kept_.size() > most;) {
    if (std::find(donors.begin(), donors.end(), kept_[i]->sequence.get()) == donors.end())
      drop_kept(i);
    else ++i;
  }
}

void Scheduler::drop_kept(size_t index) {
  engine_.destroy(*kept_[index]->sequence);
  kept_.erase(kept_.begin() + index);
}

}  // namespace riffle
