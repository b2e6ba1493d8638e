#include "cli/batch/output.h"

#include <filesystem>

namespace riffle::cli {

BatchOutput::BatchOutput(const std::string& path, const std::string& errors,
                         const BatchInput& input, bool restart, bool quiet)
    : file_(path, "-o", input, quiet) {
  if (!errors.empty()) {
    // Two locks on one file would wait for each other.
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
  // Who takes the output away begins anew as well. A pipe is always new.
  anew_ = restart || file_.created() || !file_.regular();
  if (file_.regular()) {
    // Beside the file itself, however it is called.
    std::error_code error;
    const bool link = std::filesystem::is_symlink(path, error);
    const std::string place = link ? std::filesystem::canonical(path, error).string() : path;
    ahead_.emplace(error || place.empty() ? path : place);
  }
  if (!anew_) {
    scan(quiet);
    return;
  }
  // What is not riffle's is refused before anything is taken away.
  HeldRecords unused;
  if (ahead_) ahead_->load(unused);
  if (errors_ && !restart) scan_errors();
}

// The records of failed lines, and none of others.
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
                                     "them (--restart begins anew)",
                                     file_.name().c_str(), errors_->name().c_str(), line));
    }
    held_.failed += failed.failed;
  }
  if (const size_t damaged = ahead_ ? ahead_->load(held_) : 0)
    notice(quiet, "[%s: %zu damaged lines are answered again]", ahead_->path().c_str(), damaged);
}

void BatchOutput::begin() {
  if (anew_ && ahead_) ahead_->remove();
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
  if (ahead_) ahead_->clear();
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
