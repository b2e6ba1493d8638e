#include "cli/batch/output.h"

#include <algorithm>
#include <filesystem>

namespace riffle::cli {

BatchOutput::BatchOutput(const std::string& path, const std::string& errors,
                         const BatchInput& input, Earlier earlier, bool quiet)
    : file_(path, "-o", input, quiet) {
  const bool restart = earlier == Earlier::DROP;
  if (earlier == Earlier::RETRY_ERRORS && !file_.regular())
    throw Exit(EXIT_USAGE, "--retry-errors: found the output " + file_.name() +
                               ", expected a regular file with records; name it with -o");
  if (!errors.empty()) {
    // Two locks on one file would block each other.
    struct stat out {
    }, other{};
    if (path == errors || (file_.regular() && ::stat(path.c_str(), &out) == 0 &&
                           ::stat(errors.c_str(), &other) == 0 && out.st_dev == other.st_dev &&
                           out.st_ino == other.st_ino))
      throw Exit(EXIT_USAGE, "--errors " + errors + " is the output, expected another file");
    errors_.emplace(errors, "--errors", input, quiet);
    if (errors_->is_file(file_))
      throw Exit(EXIT_USAGE, "--errors " + errors + " is the output, expected another file");
  }
  // A run whose output was removed starts over too. A pipe has no earlier records.
  anew_ = restart || file_.created() || !file_.regular();
  if (file_.regular()) {
    // Next to the file itself, even if the path is a link.
    std::error_code error;
    const bool link = std::filesystem::is_symlink(path, error);
    const std::string place = link ? std::filesystem::canonical(path, error).string() : path;
    ahead_.emplace(error || place.empty() ? path : place);
  }
  if (!anew_) {
    scan(quiet);
    if (earlier == Earlier::RETRY_ERRORS) plan_retry();
    return;
  }
  // A file of another kind is refused before anything is removed.
  HeldRecords unused;
  if (ahead_) ahead_->load(unused);
  if (errors_ && !restart) scan_errors();
}

// Returns the records of failed lines. Refuses other records.
HeldRecords BatchOutput::scan_errors() const {
  if (!errors_->regular()) return {};
  HeldRecords held = errors_->scan();
  for (auto& [line, record] : held.by_line) {
    record.in_errors = true;
    if (!record.failed)
      throw Exit(EXIT_USAGE,
                 text_of("--errors %s has an answer, that of line %zu; expected records "
                         "of failed lines only (is it an output?)",
                         errors_->name().c_str(), line));
  }
  return held;
}

void BatchOutput::scan(bool quiet) {
  held_ = file_.scan();
  if (held_.torn)
    notice(quiet, "[the last line of %s was cut short and is dropped]", file_.name().c_str());
  if (errors_) {
    HeldRecords failed = scan_errors();
    if (failed.torn)
      notice(quiet, "[the last line of %s was cut short and is dropped]", errors_->name().c_str());
    errors_bytes_ = failed.bytes;
    held_.errors_name = errors_->name();
    for (auto& [line, record] : failed.by_line) {
      if (!held_.by_line.emplace(line, std::move(record)).second)
        throw Exit(EXIT_RUN, text_of("%s and %s both have a record of line %zu; remove one of "
                                     "them (--restart starts over)",
                                     file_.name().c_str(), errors_->name().c_str(), line));
    }
    held_.failed += failed.failed;
  }
  if (const size_t damaged = ahead_ ? ahead_->load(held_) : 0)
    notice(quiet, "[%s: %zu damaged lines are answered again]", ahead_->path().c_str(), damaged);
}

// Failed lines count as not answered. To keep the order of the records, the answers after the first
// failed line go to the hidden file and come from there in their turn, as after an interrupted run.
void BatchOutput::plan_retry() {
  retried_ = std::exchange(held_.failed, 0);
  if (retried_ == 0) return;
  size_t first = SIZE_MAX;
  for (const auto& [line, record] : held_.by_line)
    if (record.failed) first = std::min(first, line);
  std::erase_if(held_.by_line, [](const auto& held) { return held.second.failed; });
  errors_bytes_ = 0;
  behind_end_ = held_.bytes;
  held_.last_line = 0;
  held_.in_order = true;
  bool behind = false;
  file_.visit(0, behind_end_, [&](const RecordHead& head, const std::string&, uint64_t at) {
    if (!behind && (head.failed || head.line > first)) {
      behind = true;
      held_.bytes = at;
    }
    if (!behind) {
      held_.in_order &= head.line > held_.last_line;
      held_.last_line = std::max(held_.last_line, head.line);
    } else if (auto held = held_.by_line.extract(head.line)) {
      held.mapped().in_output = true;
      held_.ahead.insert(std::move(held));
      ++moved_;
    }
  });
}

// Moves the answers to the hidden file before the output is cut off, so that kill -9 or a power cut
// loses no answer. An answer that both files hold counts once.
void BatchOutput::move_behind() {
  file_.visit(held_.bytes, behind_end_,
              [&](const RecordHead& head, const std::string& record, uint64_t) {
                if (head.failed || ahead_->move_in(head.line, record)) return;
                throw Exit(EXIT_RUN, ahead_->path() +
                                         ": cannot create the file; --retry-errors needs it for "
                                         "answers that wait for their turn; nothing was changed; "
                                         "make its folder writable");
              });
  ahead_->make_durable();
}

void BatchOutput::begin() {
  if (anew_ && ahead_) ahead_->remove();
  if (behind_end_ > held_.bytes) move_behind();
  file_.begin(held_.bytes);
  if (errors_) errors_->begin(errors_bytes_);
}

void BatchOutput::write(const std::string& record, bool failed) {
  (failed && errors_ ? *errors_ : file_).write(record);
}

void BatchOutput::keep_ahead(const std::string& record) {
  if (!ahead_) return;
  if (ahead_->add(record)) ahead_unsynced_ = true;
  else ahead_.reset();
}

void BatchOutput::clear_ahead() {
  if (!ahead_) return;
  // Sync the output first: a power cut must not lose records from both files.
  if (ahead_->bytes() > 0) sync();
  ahead_->clear();
}

void BatchOutput::sync() {
  const bool any = file_.unsynced() || (errors_ && errors_->unsynced()) || ahead_unsynced_;
  if (!file_.regular() || !any) return;
  file_.sync();
  if (errors_) errors_->sync();
  if (ahead_) ahead_->sync();
  ahead_unsynced_ = false;
  synced_ = Clock::now();
}

void BatchOutput::sync_if_due() {
  if (Clock::now() - synced_ >= std::chrono::seconds(5)) sync();
}

void BatchOutput::finish(bool complete) {
  sync();
  if (ahead_ && complete) ahead_->remove();
}

}  // namespace riffle::cli
