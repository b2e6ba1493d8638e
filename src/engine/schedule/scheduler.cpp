#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "util/error.h"
#include "util/settings.h"

namespace riffle {

using Clock = std::chrono::steady_clock;

// A shorter beginning in common is not worth a fork's tables.
static constexpr size_t kMinReuse = 64;
// Waiting requests that are looked at to see whether a prompt's KV will be of use again.
static constexpr size_t kLookAhead = 64;
// The longest window, in steps. A block that was not read for 16 steps is rarely worth its slot.
static constexpr int kWindow = 16;
// Steps of a sequence that may fail for a passing reason, one after the other.
static constexpr int kMaxFailures = 3;

static double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Scheduler::Request {
  uint64_t id = 0;
  std::vector<int32_t> prompt;
  std::vector<std::string> stops;
  std::vector<const char*> stop_pointers;
  riffle_generate_options options{};
  std::optional<Answer> answer;
  Lookup lookup;
  std::unique_ptr<Sequence> sequence;
  size_t read = 0,
         reused = 0;  // tokens of the prompt that the sequence holds; of them, from another's
  std::vector<int64_t> beginnings;  // where other prompts part from this one
  int32_t next = 0;                 // the token to step with
  int steps = 0, skips = 0, failures = 0;
  size_t calls = 0, shown = 0;  // of on_token: by this answer; by all attempts
  std::vector<int32_t> drawn;   // by all attempts: one that starts again takes the same
  std::optional<Error> error;   // of drawing a token
};

Scheduler::Scheduler(Engine& engine, const riffle_scheduler_options& options)
    : engine_(engine), o_(options) {
  const int64_t layers = engine.model().config.n_layers;
  check_settings(RIFFLE_OPTIONS_SCHEDULER, &o_);
  if (o_.max_seqs == 0) o_.max_seqs = static_cast<int32_t>(engine.n_sessions());
  if (o_.max_inject_tokens == 0) o_.max_inject_tokens = 2048 * layers;
  if (o_.prefill_mode == RIFFLE_PREFILL_CHUNKS && !engine.can_fork())
    fail(RIFFLE_UNSUPPORTED,
         "`prefill_mode` chunks does not go with a selector that learns from whole prompts (lfps, "
         "positions list)");
  shares_.fill(1);
  if (!o_.no_ws_control && engine.pool_room(0) > 0)  // where there is no pool everything fits
    control_.emplace(o_.working_set_steps ? o_.working_set_steps : kWindow,
                     o_.working_set_steps > 0, static_cast<double>(engine.block_bytes()));
  engine_.set_working_set(control_ ? control_->window() : 0);
}

Scheduler::~Scheduler() {
  if (run_) engine_.abandon(*run_);
  const auto drop = [&](Request* r) {
    if (r && r->sequence) engine_.destroy(*r->sequence);
  };
  for (Requests* list : {&waiting_, &decoding_, &kept_})
    for (auto& r : *list) drop(r.get());
  drop(reading_.get());
  engine_.set_working_set(0);
}

std::string Scheduler::text_of(const Error& error) const {
  return error.text(engine_.setting_name());
}

uint64_t Scheduler::submit(std::span<const int32_t> tokens,
                           const riffle_generate_options& options) {
  if (tokens.empty()) fail(RIFFLE_BAD_ARGUMENT, "the prompt is empty, expected at least one token");
  engine_.check_tokens(tokens);
  check_generate_options(options);
  if (static_cast<int64_t>(tokens.size()) > engine_.n_ctx())
    fail(RIFFLE_CONTEXT_FULL, "the prompt has %zu tokens, but the context holds %lld",
         tokens.size(), static_cast<long long>(engine_.n_ctx()));
  auto r = std::make_unique<Request>();
  r->id = next_id_++;
  r->prompt.assign(tokens.begin(), tokens.end());
  r->options = options;
  for (size_t i = 0; i < options.n_stop; ++i) r->stops.emplace_back(options.stop[i]);
  for (const std::string& s : r->stops) r->stop_pointers.push_back(s.c_str());
  r->options.stop = r->stop_pointers.data();
  r->answer.emplace(engine_.model(), r->options);
  waiting_.push_back(std::move(r));
  return waiting_.back()->id;
}

void Scheduler::cancel(uint64_t id) {
  if (reading_ && reading_->id == id) {
    if (run_) engine_.abandon(*run_);
    run_.reset();
    reading_->answer->end(RIFFLE_FINISH_ABORTED, show(*reading_));
    return end(std::move(reading_), RIFFLE_OK, "");
  }
  for (Requests* list : {&waiting_, &decoding_})
    for (auto& r : *list)
      if (r->id == id) {
        r->answer->end(RIFFLE_FINISH_ABORTED, show(*r));
        return end(take(*list, r.get()), RIFFLE_OK, "");
      }
  fail(RIFFLE_BAD_ARGUMENT, "there is no request %llu", static_cast<unsigned long long>(id));
}

void Scheduler::step(riffle_iteration* out) {
  if (engine_.take_abort()) fail(RIFFLE_ABORTED, "aborted before an iteration");
  const auto start = Clock::now();
  riffle_iteration it{};
  it.struct_size = sizeof it;
  decode(it);
  it.decode_seconds = since(start);
  read_prompt(it);
  if (waiting_.empty() && !reading_ && decoding_.empty())
    while (!kept_.empty()) drop_kept(0);
  it.n_waiting = waiting_.size();
  it.n_prefilling = reading_ ? 1 : 0;
  it.n_decoding = decoding_.size();
  it.seconds = since(start);
  if (out) *out = it;
}

// ---- decode

WindowSets Scheduler::estimate(const Request& r) const {
  WindowSets sets{};
  const double all = static_cast<double>(engine_.kv_blocks(*r.sequence));
  for (size_t i = 0; i < sets.size(); ++i) {
    const int64_t own = r.sequence->working_sets ? (*r.sequence->working_sets)[i] : 0;
    const int steps = window_steps(control_->window(), static_cast<int>(i));
    // As long as its own history is short, what is usual for the others.
    const auto usual = static_cast<int64_t>(std::ceil(shares_[i] * all));
    sets[i] = r.steps >= steps ? own : std::max(own, usual);
  }
  return sets;
}

// In order of arrival, but for those that have waited long. Who does not fit is skipped.
void Scheduler::choose(std::vector<Request*>& chosen, riffle_iteration& it) {
  std::vector<Request*> order;
  for (auto& r : decoding_) order.push_back(r.get());
  std::stable_partition(order.begin(), order.end(),
                        [&](const Request* r) { return r->skips >= o_.max_skips; });
  const size_t limit = o_.max_tokens > 0 ? static_cast<size_t>(o_.max_tokens) : order.size();
  Batch batch;
  if (control_) {
    std::vector<WindowSets> sets;
    for (const Request* r : order) sets.push_back(estimate(*r));
    batch = control_->choose(sets, limit, [&](size_t n) { return engine_.pool_room(n); });
  } else {
    for (size_t i = 0; i < std::min(limit, order.size()); ++i) batch.members.push_back(i);
  }
  size_t next = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (next == batch.members.size() || batch.members[next] != i) {
      ++order[i]->skips;
      ++it.skipped;
      continue;
    }
    ++next;
    order[i]->skips = 0;
    chosen.push_back(order[i]);
  }
  it.working_set = batch.working_set;
  it.available = engine_.pool_room(chosen.size());
}

void Scheduler::decode(riffle_iteration& it) {
  computed_ = 0;
  if (decoding_.empty()) return;
  std::vector<Request*> chosen;
  choose(chosen, it);
  const riffle_stats before = engine_.stats();
  // What a limit of the iteration's tokens leaves for tokens ahead.
  const int64_t room =
      o_.max_tokens > 0 ? o_.max_tokens - static_cast<int64_t>(chosen.size()) : engine_.lookup();
  std::vector<Request*> left = step_together(chosen, std::min<int64_t>(room, engine_.lookup()));
  // What is too much for a group may do one by one.
  if (left.size() > 1)
    for (Request* r : left) {
      const bool here = std::any_of(decoding_.begin(), decoding_.end(),
                                    [&](const auto& d) { return d.get() == r; });
      if (here) step_together({&r, 1}, 0);  // else one before it needed the memory
    }
  const riffle_stats after = engine_.stats();
  const auto more = [&](uint64_t riffle_stats::*count) {
    return static_cast<int32_t>(after.*count - before.*count);
  };
  it.decode_rows = more(&riffle_stats::decode_tokens) - more(&riffle_stats::lookup_accepted);
  computed_ = it.decode_rows + more(&riffle_stats::lookup_proposed);
  it.blocks_read = after.kv_blocks_read - before.kv_blocks_read;
  it.blocks_loaded = (after.loaded_bytes - before.loaded_bytes) / engine_.block_bytes();
  if (control_ && it.decode_rows > 0)
    control_->observe(it.decode_rows, static_cast<double>(it.blocks_loaded),
                      after.decode_seconds - before.decode_seconds);
  std::array<double, kWindows> used{};
  double all = 0;
  for (auto& r : decoding_) {
    const Sequence& s = *r->sequence;
    if (!s.working_sets) continue;
    for (size_t i = 0; i < used.size(); ++i) used[i] += static_cast<double>((*s.working_sets)[i]);
    all += static_cast<double>(engine_.kv_blocks(s));
  }
  if (used[0] > 0)
    for (size_t i = 0; i < used.size(); ++i) shares_[i] = used[i] / all;
}

// One step of them all. Those that have not stepped, if there was an error that a smaller group may
// not have; what fails alone ends, or waits for memory.
std::vector<Scheduler::Request*> Scheduler::step_together(std::span<Request* const> group,
                                                          int64_t max_ahead) {
  std::vector<int64_t> lengths;
  rows_.begin(group.size(), max_ahead);
  for (Request* r : group) {
    lengths.push_back(r->sequence->kv.n_tokens);
    rows_.add(engine_, *r->sequence, *r->answer, r->lookup, r->next);
  }
  std::optional<Error> error;
  try {
    rows_.run(engine_);
  } catch (const Error& e) {
    if (e.status() == RIFFLE_DEVICE_LOST) throw;
    error = e;
  } catch (const std::bad_alloc&) {
    error = Error(RIFFLE_OUT_OF_MEMORY, "out of memory");
  }
  std::vector<Request*> left;
  for (size_t i = 0; i < group.size(); ++i) {
    Request& r = *group[i];
    if (r.sequence->kv.n_tokens == lengths[i]) {
      left.push_back(&r);
      continue;
    }
    ++r.steps;
    r.failures = 0;
    if (!take_tokens(r, rows_.sampled(i))) end(take(decoding_, &r), RIFFLE_OK, "");
  }
  if (!error || left.size() != 1) return left;
  Request& r = *left[0];
  if (error->status() == RIFFLE_OUT_OF_MEMORY && make_memory(r)) return {};
  if (error->status() == RIFFLE_INTERNAL && ++r.failures < kMaxFailures) return {};
  end(take(decoding_, &r), error->status(), text_of(*error));
  return {};
}

// Gives KV up that can be had again, youngest first. False: there is none but r's own.
bool Scheduler::make_memory(const Request& r) {
  if (!kept_.empty()) {
    drop_kept(0);
    return true;
  }
  memory_short_ = true;
  if (reading_) {
    if (run_) engine_.abandon(*run_);
    run_.reset();
    start_again(std::move(reading_));
    return true;
  }
  if (decoding_.back().get() == &r) {
    if (decoding_.size() == 1) return false;
    start_again(take(decoding_, &r));  // the others need what it holds
    return true;
  }
  start_again(take(decoding_, decoding_.back().get()));
  return true;
}

// Waits again. The tokens that were drawn are taken again, and those that were shown are not shown
// again.
void Scheduler::start_again(std::unique_ptr<Request> r) {
  engine_.destroy(*r->sequence);
  r->sequence.reset();
  r->answer.emplace(engine_.model(), r->options);
  r->lookup = {};
  r->read = r->reused = r->calls = 0;
  r->steps = r->skips = r->failures = 0;
  waiting_.push_front(std::move(r));
}

Answer::Show Scheduler::show(Request& r) {
  return [this, &r](int32_t token, const std::string& text) {
    if (++r.calls <= r.shown) return true;
    r.shown = r.calls;
    return !o_.on_token || o_.on_token(o_.user, r.id, token, text.data(), text.size());
  };
}

// Draws tokens up to one that is not computed yet. False: the answer is over.
bool Scheduler::take_tokens(Request& r, int32_t sampled) {
  try {
    do {
      const size_t at = static_cast<size_t>(r.answer->result().n_tokens);
      if (at < r.drawn.size()) sampled = r.drawn[at];
      const auto next = r.answer->advance(sampled, r.sequence->logits,
                                          engine_.n_ctx() - r.sequence->kv.n_tokens, show(r));
      if (!next) return false;
      r.next = *next;
      if (at == r.drawn.size()) r.drawn.push_back(*next);
    } while (engine_.accept(*r.sequence, r.next, sampled));
    return true;
  } catch (const Error& e) {
    r.error = e;
  } catch (const std::bad_alloc&) {
    r.error = Error(RIFFLE_OUT_OF_MEMORY, "out of memory");
  }
  return false;
}

std::unique_ptr<Scheduler::Request> Scheduler::take(Requests& from, const Request* r) {
  const auto at =
      std::find_if(from.begin(), from.end(), [&](const auto& p) { return p.get() == r; });
  std::unique_ptr<Request> out = std::move(*at);
  from.erase(at);
  return out;
}

void Scheduler::end(std::unique_ptr<Request> r, riffle_status status, const std::string& error) {
  riffle_request_end e{};
  const std::optional<Error> own = r->error;
  e.status = own ? own->status() : status;
  const std::string text = own ? text_of(*own) : error;
  e.error = text.c_str();
  e.result = r->answer->result();
  e.result.n_tokens =
      std::max(e.result.n_tokens,
               static_cast<int32_t>(r->drawn.size()));  // one cut off while it started again
  e.prompt_tokens = r->prompt.size();
  e.reused_tokens = r->reused;
  e.stats.struct_size = sizeof e.stats;
  if (r->sequence) e.stats = engine_.stats(*r->sequence);
  const uint64_t id = r->id;
  memory_short_ = false;
  if (r->sequence && wanted(*r)) {
    kept_.push_back(std::move(r));
  } else if (r->sequence) {
    engine_.destroy(*r->sequence);
    r.reset();
  }
  if (o_.on_done) o_.on_done(o_.user, id, &e);
}

// ---- prompts

void Scheduler::read_prompt(riffle_iteration& it) {
  const double layers = engine_.model().config.n_layers;
  double budget = static_cast<double>(o_.max_inject_tokens);
  if (o_.max_tokens > 0) {
    if (computed_ >= o_.max_tokens) return;
    budget = std::min(budget, (o_.max_tokens - computed_) * layers);
  }
  if (o_.prefill_mode == RIFFLE_PREFILL_WHOLE) budget = INFINITY;
  // Who was skipped came first: another sequence would only take more of the pool from them.
  if (!reading_ && (it.skipped > 0 || !begin_next())) return;
  Request& r = *reading_;
  try {
    if (!run_) {
      size_t n = r.prompt.size() - r.read;
      if (o_.prefill_mode == RIFFLE_PREFILL_CHUNKS)
        n = std::min(n, static_cast<size_t>(std::max(1.0, budget / layers)));
      run_ = engine_.begin_prefill(*r.sequence, std::span(r.prompt).subspan(r.read, n), nullptr,
                                   r.beginnings);
      expect_next();
      if (o_.prefill_mode == RIFFLE_PREFILL_CHUNKS) budget = INFINITY;
    }
    const double done = run_->done, pairs = run_->pairs;
    const bool over = engine_.advance(*run_, budget, {});
    it.prefill_token_layers = static_cast<int64_t>(run_->done - done);
    it.prefill_pairs = run_->pairs - pairs;
    it.prefill_kv_blocks = run_->kv_blocks;
    if (!over) return;
    r.read += run_->tokens.size();
    run_.reset();
    if (r.read < r.prompt.size()) return;
    if (take_tokens(r, Backend::kNotSampled)) decoding_.push_back(std::move(reading_));
    else end(std::move(reading_), RIFFLE_OK, "");
  } catch (const Error& e) {
    if (e.status() == RIFFLE_ABORTED) throw;  // the run goes on
    run_.reset();
    if (e.status() == RIFFLE_DEVICE_LOST) throw;
    prompt_failed(e.status(), text_of(e));
  } catch (const std::bad_alloc&) {
    if (run_) engine_.abandon(*run_);
    run_.reset();
    prompt_failed(RIFFLE_OUT_OF_MEMORY, "out of memory");
  }
}

// Memory for the prompt after this one is got ready meanwhile: else the steps of those that decode
// would wait for it.
void Scheduler::expect_next() {
  if (waiting_.empty() || live() >= static_cast<size_t>(o_.max_seqs)) return;
  const Request& next = *waiting_.front();
  size_t shared = static_cast<size_t>(find_donor(next).n_tokens);
  if (!o_.no_prefix_reuse && engine_.can_fork())
    shared =
        std::max(shared, reusable({next.prompt.data(), next.prompt.size() - 1}, reading_->prompt));
  const int64_t blocks =
      engine_.own_blocks(static_cast<int64_t>(next.prompt.size()), static_cast<int64_t>(shared),
                         beginnings(next, static_cast<int64_t>(shared)));
  if (blocks <= engine_.host_room()) engine_.expect(blocks);
}

// Where memory ran out it is tried again when somebody has ended.
void Scheduler::prompt_failed(riffle_status status, const std::string& error) {
  std::unique_ptr<Request> r = std::move(reading_);
  if (status != RIFFLE_OUT_OF_MEMORY || (decoding_.empty() && kept_.empty()))
    return end(std::move(r), status, error);
  while (!kept_.empty()) drop_kept(0);
  memory_short_ = !decoding_.empty();
  start_again(std::move(r));
}

// Gives the first that waits a sequence. False: nobody waits, or there is no room for another one.
bool Scheduler::begin_next() {
  while (!waiting_.empty()) {
    if (memory_short_ && !decoding_.empty()) return false;
    // Before prompts are compared, in every iteration of a full house.
    if (live() >= static_cast<size_t>(o_.max_seqs) && (engine_.may_keep_more() || kept_.empty()))
      return false;
    Request& r = *waiting_.front();
    Donor donor = find_donor(r);
    r.beginnings = beginnings(r, donor.n_tokens);
    const auto spare = [&] {  // a kept one that is of no use here
      for (size_t i = 0; i < kept_.size(); ++i)
        if (kept_[i]->sequence.get() != donor.sequence) return static_cast<int>(i);
      return -1;
    };
    // Its prompt, and a block more for each that decodes, when so many more blocks are free.
    const auto fits = [&](int64_t freed) {
      const int64_t ahead = engine_.own_blocks(1, 0, {}) * static_cast<int64_t>(decoding_.size());
      return engine_.own_blocks(static_cast<int64_t>(r.prompt.size()), donor.n_tokens,
                                r.beginnings) +
                 ahead - freed <=
             engine_.host_room();
    };
    const auto freed_by_kept = [&] {
      int64_t freed = 0;
      for (const auto& k : kept_)
        freed += engine_.freed_by_cut(*k->sequence,
                                      k->sequence.get() == donor.sequence ? donor.n_tokens : 0);
      return freed;
    };
    bool adopt = false;
    std::optional<Error> error;
    while (!adopt) {
      const bool full = live() >= static_cast<size_t>(o_.max_seqs);
      if (!full && fits(0)) break;
      if (!full && !decoding_.empty() && !fits(freed_by_kept()))
        return false;  // kept ones would go in vain
      if (const int i = spare(); i >= 0) drop_kept(i);
      else if (!kept_.empty()) adopt = true;  // the donor itself, cut to what they have in common
      else if (full || !decoding_.empty()) return false;
      else break;  // nothing else holds memory: it fails by itself
    }
    try {
      if (adopt) {
        std::unique_ptr<Request> from = std::move(kept_.front());
        kept_.pop_front();
        r.sequence = std::move(from->sequence);
        r.sequence->counts = {};
        engine_.truncate(*r.sequence, donor.n_tokens);
      } else {
        r.sequence =
            donor.sequence ? engine_.fork(*donor.sequence, donor.n_tokens) : engine_.create();
      }
      r.read = r.reused = donor.n_tokens;
    } catch (const Error& e) {
      if (e.status() == RIFFLE_DEVICE_LOST) throw;
      error = e;
    } catch (const std::bad_alloc&) {
      error = Error(RIFFLE_OUT_OF_MEMORY, "out of memory");
    }
    if (error) {
      std::unique_ptr<Request> failed = std::move(waiting_.front());
      waiting_.pop_front();
      if (error->status() == RIFFLE_OUT_OF_MEMORY && !(decoding_.empty() && kept_.empty())) {
        while (!kept_.empty()) drop_kept(0);
        memory_short_ = !decoding_.empty();
        if (failed->sequence) engine_.destroy(*failed->sequence);
        failed->sequence.reset();
        waiting_.push_front(std::move(failed));
        continue;
      }
      end(std::move(failed), error->status(), text_of(*error));
      continue;
    }
    reading_ = std::move(waiting_.front());
    waiting_.pop_front();
    drop_unwanted();
    return true;
  }
  return false;
}

// Tokens that both begin with and that can be reused.
size_t Scheduler::reusable(std::span<const int32_t> a, std::span<const int32_t> b) const {
  const size_t most = std::min(a.size(), b.size());
  const size_t n = std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  return n - n % static_cast<size_t>(engine_.reuse_unit());
}

// Tokens with which r can begin, if it is a fork of the donor's sequence. The last token is always
// read, since logits come from it.
size_t Scheduler::reusable(const Request& r, const Request& donor) const {
  const auto unit = static_cast<size_t>(engine_.reuse_unit());
  size_t n = reusable({r.prompt.data(), r.prompt.size() - 1}, donor.prompt);
  for (size_t reached; n > 0; n = reached - reached % unit) {
    reached = static_cast<size_t>(engine_.reach(*donor.sequence, static_cast<int64_t>(n)));
    if (reached == n) break;
  }
  return n;
}

// The lengths at which other requests' prompts part from r's, the most frequent first, none below
// the `read` tokens that r has already. At these lengths a model with sliding windows must keep
// what its windows see. Earlier requests count too, since others may follow that begin like them.
std::vector<int64_t> Scheduler::beginnings(const Request& r, int64_t read) const {
  if (!engine_.has_windows() || o_.no_prefix_reuse || !engine_.can_fork()) return {};
  std::map<int64_t, int> wanted;  // number of prompts that part there
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

// The sequence whose prompt begins most like r's. Only prompts: what was generated has seen a
// selection of the KV.
Scheduler::Donor Scheduler::find_donor(const Request& r) const {
  Donor best;
  if (o_.no_prefix_reuse || !engine_.can_fork()) return best;
  for (const Requests* list : {&kept_, &decoding_})
    for (const auto& d : *list) {
      const size_t n = reusable(r, *d);
      if (n >= kMinReuse && static_cast<int64_t>(n) > best.n_tokens)
        best = {d->sequence.get(), static_cast<int64_t>(n)};
    }
  return best;
}

// Whether a waiting prompt begins more like this one's than like any other's.
bool Scheduler::wanted(const Request& done) const {
  if (o_.no_prefix_reuse || !engine_.can_fork() || done.read < done.prompt.size()) return false;
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i) {
    const Request& r = *waiting_[i];
    const size_t n = reusable(r, done);
    if (n >= kMinReuse && static_cast<int64_t>(n) > find_donor(r).n_tokens) return true;
  }
  return false;
}

// Kept ones that are no waiting prompt's donor any more.
void Scheduler::drop_unwanted() {
  if (kept_.empty()) return;
  std::vector<const Sequence*> donors;
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i)
    donors.push_back(find_donor(*waiting_[i]).sequence);
  for (size_t i = kept_.size(); i-- > 0;)
    if (std::find(donors.begin(), donors.end(), kept_[i]->sequence.get()) == donors.end())
      drop_kept(i);
}

void Scheduler::drop_kept(size_t index) {
  engine_.destroy(*kept_[index]->sequence);
  kept_.erase(kept_.begin() + index);
}

}  // namespace riffle
