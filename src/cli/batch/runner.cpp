#include "cli/batch/runner.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace riffle::cli {
namespace {

// The scheduler gets at least this many lines ahead, to find prompts that begin alike.
constexpr size_t kReadAhead = 64;
constexpr size_t kPromptBytes = size_t{256} << 20;  // bytes of tokens that wait or run
// Limits of the answers that wait for an earlier line. At a limit, no further lines are read; the
// earliest line goes on, since it was submitted first.
constexpr size_t kHeldAnswers = 1024, kHeldBytes = size_t{256} << 20;
// A hidden file larger than this is emptied once most of its records are in the output.
constexpr uint64_t kAheadBytes = uint64_t{64} << 20;

const char* error_code(riffle_status status) {
  switch (status) {
    case RIFFLE_CONTEXT_FULL: return "too_long";
    case RIFFLE_OUT_OF_MEMORY: return "oom";
    case RIFFLE_NO_SLOT: return "no_slot";
    case RIFFLE_BAD_TEXT: return "bad_text";
    case RIFFLE_BAD_ARGUMENT: return "bad_request";
    default: return "error";
  }
}

}  // namespace

BatchRunner::BatchRunner(riffle_model* model, AnsweringModel by, riffle_context* context,
                         const Options& scheduler, bool unordered, BatchInput& input,
                         BatchOutput& output, BatchProgress& progress, riffle_prefix_cache* cache)
    : model_(model),
      context_(context),
      unordered_(unordered),
      input_(input),
      output_(output),
      progress_(progress),
      by_(std::move(by)),
      reads_effort_(model_info(model).on("chat_effort")),
      reads_thinking_(model_info(model).on("chat_thinking")),
      max_seqs_(static_cast<size_t>(scheduler.count("max-seqs"))) {
  riffle_scheduler* made = nullptr;
  const riffle_status status = riffle_scheduler_create(context, scheduler.get(), this, &made);
  // Values that are refused here came from flags.
  if (status == RIFFLE_BAD_ARGUMENT || status == RIFFLE_UNSUPPORTED)
    throw Exit(EXIT_USAGE, riffle_context_error(context));
  check(status, context);
  scheduler_.reset(made);
  riffle_scheduler_on_token(made, on_token);
  riffle_scheduler_on_end(made, on_end);
  if (cache) check(riffle_scheduler_use_prefix_cache(made, cache, RIFFLE_KEEP_SHARED), context);
}

BatchError BatchRunner::error_of(const Place& place, riffle_status status,
                                 const std::string& text) const {
  const Job& job = *place.job;
  const char* hint =
      status == RIFFLE_CONTEXT_FULL
          ? " (-c sets its length; the default is what the model was trained with, or "
            "what fits the memory)"
          : "";
  const auto n = static_cast<size_t>(job.request.info.count("n"));
  const std::string where =
      job.answers.size() > n ? text_of("field body.prompt[%zu]: ", place.index / n) : "";
  const std::string what = text.empty() ? riffle_status_name(status) : text;
  return {error_code(status),
          text_of("line %zu: %s%s%s", job.line, where.c_str(), what.c_str(), hint),
          job.request.custom_id};
}

// No exception may pass through the library; returning false ends this answer as unfinished.
bool BatchRunner::on_token(void* self, uint64_t id, const riffle_token* token) {
  auto& runner = *static_cast<BatchRunner*>(self);
  try {
    const Place& place = runner.under_way_.at(id);
    riffle_request* const request = place.job->request.handle.get();
    if (riffle_request_token(request, place.index, token, nullptr) != RIFFLE_OK) return false;
    if (token->id >= 0) {
      ++place.answer().tokens_shown;
      ++runner.progress_.counts.answer_tokens;
    }
    return true;
  } catch (...) {
    return false;
  }
}

void BatchRunner::on_end(void* self, uint64_t id, riffle_status status, const riffle_info* end) {
  auto& runner = *static_cast<BatchRunner*>(self);
  try {
    const auto at = runner.under_way_.find(id);
    if (at == runner.under_way_.end())
      return;  // memory ran out before it was stored, or its line has failed
    const Place place = at->second;
    runner.under_way_.erase(at);
    Answer& answer = place.answer();
    answer.under_way = false;
    answer.end = Facts(end);
    answer.status = status;
    runner.ended_.push_back(place);
  } catch (...) {
    runner.failure_ = std::current_exception();
  }
}

bool BatchRunner::want_line() const {
  return under_way_.size() < std::max(kReadAhead, 4 * max_seqs_) && prompt_bytes_ < kPromptBytes &&
         held_ < kHeldAnswers && held_bytes_ < kHeldBytes;
}

bool BatchRunner::read_ahead() {
  // First reads as many lines as can run at once, and one more; after that, one line in each
  // iteration, so that reading does not delay answers.
  for (bool first = true; want_line() && (first || under_way_.size() <= max_seqs_); first = false) {
    const LineReader::Got got = input_.next(line_, under_way_.empty());
    if (got == LineReader::Got::END) return false;
    if (got == LineReader::Got::WAIT) return true;
    start(line_);
    write_finished();
    keep_finished();
    output_.sync_if_due();
  }
  return true;
}

void BatchRunner::start(InputLine& in) {
  const Jobs::iterator job = jobs_.emplace(jobs_.end());
  job->line = in.number;
  if (std::optional<std::string> record = output_.take_ahead(in.number)) {  // by an earlier run
    finish(job, std::move(*record), false);
    job->kept = job->earlier = true;
    return;
  }
  job->request = std::move(in.request);
  if (job->request.handle) progress_.add_ignored(job->request.info);
  if (!in.error) note_unread(*job);
  std::optional<BatchError> error = std::move(in.error);
  if (!error) error = failure_of(job->line, job->request.custom_id, [&] { submit(job); });
  if (error) fail(job, *error);
}

// Counts lines that set template variables which the template ignores.
void BatchRunner::note_unread(const Job& job) {
  using Unread = BatchProgress::Unread;
  const Facts& info = job.request.info;
  const bool effort = info.on("asks_effort"), thinking = info.on("asks_thinking");
  if ((effort || thinking) && !info.on("chat"))
    return progress_.add_unread(job.line, Unread::PROMPT);
  if (effort && !reads_effort_) progress_.add_unread(job.line, Unread::EFFORT);
  if (thinking && !reads_thinking_) progress_.add_unread(job.line, Unread::THINKING);
}

void BatchRunner::submit(Jobs::iterator job) {
  riffle_request* const request = job->request.handle.get();
  if (riffle_request_prepare(request, model_, nullptr, 0) != RIFFLE_OK)
    throw refusal_of(request, job->line);
  progress_.add_fitted(job->line, Facts(riffle_request_info(request)).text("fitted"));
  job->seed =
      std::strtoull(riffle_options_get(riffle_request_options(request, 0), "seed"), nullptr, 10);
  job->answers.resize(static_cast<size_t>(job->request.info.count("n_answers")));
  // The scheduler reads a prompt of several answers once if it has 64 tokens or more.
  for (size_t i = 0; i < job->answers.size(); ++i) submit({job, i});
  riffle_request_drop_prompts(request);
}

void BatchRunner::submit(Place place) {
  Answer& answer = place.answer();
  const riffle_request* const request = place.job->request.handle.get();
  size_t n = 0;
  const int32_t* const tokens = riffle_request_tokens(request, place.index, &n);
  const riffle_status status = riffle_scheduler_submit(
      scheduler_.get(), tokens, n, riffle_request_options(request, place.index), &answer.id);
  if (status != RIFFLE_OK) throw error_of(place, status, riffle_context_error(context_));
  answer.bytes = n * sizeof(int32_t);
  prompt_bytes_ += answer.bytes;
  try {
    under_way_.emplace(answer.id, place);
  } catch (...) {
    riffle_scheduler_cancel(scheduler_.get(), answer.id);
    throw;
  }
  answer.under_way = true;
}

void BatchRunner::drop_answers(Jobs::iterator job) {
  for (Answer& answer : job->answers) {
    prompt_bytes_ -= std::exchange(answer.bytes, 0);
    if (!std::exchange(answer.under_way, false)) continue;
    under_way_.erase(answer.id);  // on_end must not find it any more
    riffle_scheduler_cancel(scheduler_.get(), answer.id);
  }
}

void BatchRunner::conclude(Place place) {
  const Jobs::iterator job = place.job;
  if (job->over) return;  // another of its answers has failed
  Answer& answer = place.answer();
  prompt_bytes_ -= std::exchange(answer.bytes, 0);
  const Facts& end = answer.end;
  // An answer has the number of tokens in its record, which includes an end token.
  progress_.counts.answer_tokens +=
      static_cast<uint64_t>(std::max(0, end.id("n_tokens") - answer.tokens_shown));
  const int finish_reason = end.id("finish");
  const bool whole = finish_reason != RIFFLE_FINISH_NONE && finish_reason != RIFFLE_FINISH_ABORTED;
  if (answer.status != RIFFLE_OK || !whole) {
    const riffle_status status = answer.status == RIFFLE_OK ? RIFFLE_INTERNAL : answer.status;
    return fail(job, error_of(place, status,
                              answer.status == RIFFLE_OK ? "the answer did not finish"
                                                         : end.text("error")));
  }
  const riffle_result result{static_cast<riffle_finish>(finish_reason), end.id("n_tokens")};
  const int64_t cached = end.count("reused_tokens") + end.count("loaded_tokens");
  riffle_request* const request = job->request.handle.get();
  if (riffle_request_end(request, place.index, &result, static_cast<size_t>(cached), nullptr) !=
      RIFFLE_OK)
    return fail(job, error_of(place, RIFFLE_INTERNAL, riffle_request_error(request)));
  if (++job->concluded < job->answers.size()) return;
  std::vector<Facts> ends;
  const auto n = static_cast<size_t>(job->request.info.count("n"));
  for (Answer& a : job->answers) {
    if (ends.size() % n == 0) {  // a prompt counts once
      progress_.counts.prompt_tokens += static_cast<uint64_t>(a.end.count("prompt_tokens"));
      progress_.counts.reused_tokens += static_cast<uint64_t>(a.end.count("reused_tokens"));
      progress_.counts.cached_tokens += static_cast<uint64_t>(a.end.count("loaded_tokens"));
    }
    ends.push_back(std::move(a.end));
  }
  finish(job, batch_answer_record(job->line, job->request, job->seed, by_, ends), false);
}

void BatchRunner::fail(Jobs::iterator job, const BatchError& error) {
  drop_answers(job);
  progress_.add_error(error.message);
  finish(job, batch_error_record(job->line, error), true);
}

void BatchRunner::finish(Jobs::iterator job, std::string record, bool failed) {
  job->record = std::move(record);
  job->failed = failed;
  job->over = true;
  job->answers = {};
  job->request = {};
  ++held_;
  held_bytes_ += job->record.size();
}

void BatchRunner::write_finished() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (!job->over) {
      if (!unordered_) return;
      ++job;
      continue;
    }
    if (output_.terminal()) progress_.clear();
    output_.write(job->record, job->failed);
    ++(job->earlier  ? progress_.counts.earlier
       : job->failed ? progress_.counts.errors
                     : progress_.counts.answers);
    --held_;
    held_bytes_ -= job->record.size();
    job = jobs_.erase(job);
  }
}

// Keeps answers that are finished but wait for their turn, so that they survive this run.
void BatchRunner::keep_finished() {
  const bool all_here = output_.loaded_ahead() == 0;
  if (held_bytes_ == 0 && all_here) return output_.clear_ahead();
  if (unordered_) return;
  // Kept records stay in that file after they are written to the output, until it is emptied.
  const bool anew =
      all_here && output_.ahead_bytes() > kAheadBytes && output_.ahead_bytes() > 4 * held_bytes_;
  if (anew) output_.clear_ahead();
  for (Job& job : jobs_) {
    if (!job.over || job.failed || (job.kept && !anew)) continue;
    output_.keep_ahead(job.record);
    job.kept = true;
  }
}

void BatchRunner::run() {
  bool more = true;
  while (!interrupted()) {
    if (more) more = read_ahead();
    if (under_way_.empty()) {
      if (!more) break;
      continue;
    }
    const riffle_status status = riffle_scheduler_step(scheduler_.get());
    for (const Place& place : std::exchange(ended_, {})) conclude(place);
    write_finished();
    keep_finished();
    output_.sync_if_due();
    if (failure_) std::rethrow_exception(failure_);
    if (status == RIFFLE_ABORTED && interrupted()) break;
    check(status, context_);
    progress_.update();
  }
  dropped_ = static_cast<size_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.over; }));
}

}  // namespace riffle::cli
