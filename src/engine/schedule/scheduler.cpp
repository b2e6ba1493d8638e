#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/generate.h"
#include "engine/schedule/request.h"
#include "util/error.h"
#include "util/settings.h"

namespace riffle {

using Clock = std::chrono::steady_clock;

// The longest window, in steps. A block that was not read for 16 steps is rarely worth its slot.
static constexpr int kWindow = 16;
// Number of steps in a row that may fail for a sequence before it ends.
static constexpr int kMaxFailures = 3;

static double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options, SchedulerHooks hooks)
    : engine_(engine), o_(options), hooks_(std::move(hooks)) {
  const int64_t layers = engine.model().config.n_layers;
  check_settings(OptionsKind::SCHEDULER, &o_);
  if (o_.max_seqs == 0)
    o_.max_seqs = std::max(1, static_cast<int32_t>(engine.n_sessions()) - o_.keep_seqs);
  if (o_.max_inject_tokens == 0) o_.max_inject_tokens = 2048 * layers;
  if (o_.prefill_mode == PrefillMode::CHUNKS && !engine.can_fork())
    fail(
        RIFFLE_UNSUPPORTED,
        "`prefill_mode` chunks does not work with a selector that learns from whole prompts (lfps, "
        "positions list)");
  shares_.fill(1);
  if (o_.ws_control && engine.pool_room(0) > 0)  // without a pool everything fits
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

uint64_t Scheduler::submit(std::span<const int32_t> tokens, const GenerateOptions& options) {
  if (tokens.empty()) fail(RIFFLE_BAD_ARGUMENT, "the prompt is empty, expected at least one token");
  engine_.check_tokens(tokens);
  check_generate_options(options);
  if (static_cast<int64_t>(tokens.size()) > engine_.n_ctx())
    fail(RIFFLE_CONTEXT_FULL, "the prompt has %zu tokens, but the context holds %lld",
         tokens.size(), static_cast<long long>(engine_.n_ctx()));
  require_room(options, tokens.size(), engine_.n_ctx());
  auto r = std::make_unique<Request>();
  r->id = next_id_++;
  r->prompt.assign(tokens.begin(), tokens.end());
  r->options = options;
  r->begin_answer(engine_);
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

size_t Scheduler::pending() const {
  return waiting_.size() + decoding_.size() + (reading_ ? 1 : 0);
}

void Scheduler::step(Iteration* out) {
  if (engine_.take_abort()) fail(RIFFLE_ABORTED, "aborted before an iteration");
  const auto start = Clock::now();
  Iteration it{};
  decode(it);
  it.decode_seconds = since(start);
  read_prompt(it);
  if (waiting_.empty() && !reading_ && decoding_.empty()) drop_unwanted();
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
    // While its own history is short, the usual set of the other requests counts too.
    const auto usual = static_cast<int64_t>(std::ceil(shares_[i] * all));
    sets[i] = r.steps >= steps ? own : std::max(own, usual);
  }
  return sets;
}

// Chooses in order of arrival, except that requests that have waited long come first. Requests that
// do not fit are skipped.
void Scheduler::choose(std::vector<Request*>& chosen, Iteration& it) {
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

void Scheduler::decode(Iteration& it) {
  computed_ = 0;
  if (decoding_.empty()) return;
  std::vector<Request*> chosen;
  choose(chosen, it);
  const Stats before = engine_.stats();
  // Number of tokens ahead for which the iteration's token limit leaves room.
  const int64_t room = o_.max_tokens > 0 ? o_.max_tokens - static_cast<int64_t>(chosen.size())
                                         : engine_.rows_ahead();
  std::vector<Request*> left = step_together(chosen, std::min<int64_t>(room, engine_.rows_ahead()));
  // Requests that do not fit as a group may step one by one.
  if (left.size() > 1)
    for (Request* r : left) {
      const bool here = std::any_of(decoding_.begin(), decoding_.end(),
                                    [&](const auto& d) { return d.get() == r; });
      if (here) step_together({&r, 1}, 0);  // else an earlier request needed its memory
    }
  const Stats after = engine_.stats();
  const auto more = [&](uint64_t Stats::*count) {
    return static_cast<int32_t>(after.*count - before.*count);
  };
  it.decode_rows = more(&Stats::decode_tokens) - more(&Stats::lookup_accepted);
  computed_ = it.decode_rows + more(&Stats::lookup_proposed);
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

// Runs one step of the whole group. Returns the requests that have not stepped, if there was an
// error that a smaller group may not have; a request that fails even alone ends, or waits for
// memory.
std::vector<Scheduler::Request*> Scheduler::step_together(std::span<Request* const> group,
                                                          int64_t max_ahead) {
  std::vector<int64_t> lengths;
  rows_.begin(group.size(), max_ahead);
  for (Request* r : group) {
    lengths.push_back(r->sequence->kv.n_tokens);
    rows_.add(engine_, *r->sequence, *r->answer, r->proposer.get(), r->next);
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

// Gives up KV that can be recomputed, youngest first. Returns false if only r's own is left.
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
    start_again(take(decoding_, &r));  // the others need its memory
    return true;
  }
  start_again(take(decoding_, decoding_.back().get()));
  return true;
}

// Makes the request wait again. It will take the tokens it drew before, and show none of them
// twice.
void Scheduler::start_again(std::unique_ptr<Request> r) {
  engine_.destroy(*r->sequence);
  r->sequence.reset();
  r->begin_answer(engine_);
  r->read = r->reused = r->loaded = r->calls = 0;
  r->steps = r->skips = r->failures = 0;
  waiting_.push_front(std::move(r));
}

Answer::Show Scheduler::show(Request& r) {
  return [this, &r](const riffle_token& token) {
    if (++r.calls <= r.shown) return true;
    r.shown = r.calls;
    return !hooks_.token || hooks_.token(r.id, token);
  };
}

// Draws tokens up to one that is not computed yet. Returns false if the answer is over.
bool Scheduler::take_tokens(Request& r, int32_t sampled) {
  try {
    do {
      const size_t at = static_cast<size_t>(r.answer->result().n_tokens);
      if (at < r.drawn.size()) sampled = r.drawn[at];
      const auto next = draw(engine_, *r.sequence, *r.answer, sampled, show(r));
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
  RequestEnd e;
  const std::optional<Error> own = r->error;
  e.status = own ? own->status() : status;
  e.error = own ? text_of(*own) : error;
  e.result = r->answer->result();
  e.result.n_tokens =
      std::max(e.result.n_tokens,
               static_cast<int32_t>(r->drawn.size()));  // one that ended while it started again
  e.prompt_tokens = r->prompt.size();
  e.reused_tokens = r->reused;
  e.loaded_tokens = r->loaded;
  if (r->sequence) e.stats = engine_.stats(*r->sequence);
  const uint64_t id = r->id;
  memory_short_ = false;
  if (cache_) remember(r->prompt);
  if (r->sequence && r->unsaved) keep_beginning(*r);
  if (r->sequence && wanted(*r)) {
    keep(std::move(r));
  } else if (r->sequence) {
    engine_.destroy(*r->sequence);
    r.reset();
  }
  if (hooks_.ended) hooks_.ended(id, e);
}

}  // namespace riffle
