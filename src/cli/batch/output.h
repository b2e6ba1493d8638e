// Output of riffle batch: the records, those of failed lines in another file if --errors names one,
// and the answers that wait for their turn, in a file next to the output.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "cli/batch/ahead.h"
#include "cli/batch/input.h"
#include "cli/batch/record_file.h"

namespace riffle::cli {

// Treatment of the records of an earlier run.
enum class Earlier : uint8_t { KEEP, RETRY_ERRORS, DROP };

class BatchOutput {
 public:
  // path "-": stdout. errors: the file of failed lines; "": there is none. Regular files are locked
  // and, unless their records are dropped, read; nothing is changed yet. Throws Exit.
  BatchOutput(const std::string& path, const std::string& errors, const BatchInput& input,
              Earlier earlier, bool quiet);

  const std::string& name() const { return file_.name(); }
  // Returns the records of both files.
  const HeldRecords& held() const { return held_; }
  // Numbers of failed lines to answer again, and of answers after the first failed line.
  size_t retried() const { return retried_; }
  size_t moved() const { return moved_; }
  bool terminal() const { return file_.terminal(); }

  // Cuts off records that are not kept. Requires: no record has been written yet.
  void begin();
  // Writes a record. failed: the line has no answer. Throws Exit if writing fails; a regular file
  // then has no part of the record.
  void write(const std::string& record, bool failed);
  // Keeps a finished record for a later run, because an earlier line is not finished. Throws Exit.
  // Does nothing if the output is not a regular file, or if no file may be created next to it.
  void keep_ahead(const std::string& record);
  // Deletes the kept answers, which are in the output now.
  void clear_ahead();
  // Returns and forgets the record of this line that an earlier run kept. loaded_ahead(): number of
  // records left.
  std::optional<std::string> take_ahead(size_t line) {
    return ahead_ ? ahead_->take(line) : std::nullopt;
  }
  size_t loaded_ahead() const { return ahead_ ? ahead_->loaded() : 0; }
  uint64_t ahead_bytes() const { return ahead_ ? ahead_->bytes() : 0; }
  // Path of the kept answers; "": none are kept.
  std::string ahead_path() const { return ahead_ ? ahead_->path() : ""; }
  // Writes the records through to the disk now and then.
  void sync_if_due();
  // complete: no line waits for its turn.
  void finish(bool complete);

 private:
  using Clock = std::chrono::steady_clock;
  void scan(bool quiet);
  HeldRecords scan_errors() const;
  void plan_retry();
  void move_behind();
  void sync();

  RecordFile file_;
  std::optional<RecordFile> errors_;
  bool anew_ = false, ahead_unsynced_ = false;
  std::optional<AheadFile> ahead_;
  HeldRecords held_;
  uint64_t errors_bytes_ = 0;  // bytes of whole records that are kept in errors_
  size_t retried_ = 0, moved_ = 0;
  uint64_t behind_end_ = 0;  // from held_.bytes to here: records to move or drop
  Clock::time_point synced_ = Clock::now();
};

}  // namespace riffle::cli
