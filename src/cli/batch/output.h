// What riffle batch writes: one record a line, each whole or not at all, by one writer at a time.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "cli/batch/ahead.h"
#include "cli/batch/input.h"
#include "cli/batch/reader.h"

namespace riffle::cli {

class BatchOutput {
 public:
  // path "-": stdout. A regular file is locked and, unless restart, read; nothing is changed yet.
  // Throws Exit.
  BatchOutput(const std::string& path, const BatchInput& input, bool restart, bool quiet);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  const std::string& name() const { return name_; }
  const HeldRecords& held() const { return held_; }
  bool terminal() const;

  // Cuts off what is not kept. Before the first write.
  void begin();
  // One record in one piece. Throws Exit if that fails; then no part of it is left in a regular
  // file.
  void write(const std::string& record);
  // A record that is finished, but for which one before it is not: kept for another run. Throws
  // Exit. Does nothing for what is no regular file, or where no other file may be made beside it.
  void keep_ahead(const std::string& record);
  // Those that were kept have been written.
  void clear_ahead();
  // What an earlier run kept of this line, once; how many more there are.
  std::optional<std::string> take_ahead(size_t line) {
    return ahead_ ? ahead_->take(line) : std::nullopt;
  }
  size_t loaded_ahead() const { return ahead_ ? ahead_->loaded() : 0; }
  uint64_t ahead_bytes() const { return ahead_ ? ahead_->bytes() : 0; }
  // Where; empty: nowhere.
  std::string ahead_path() const { return ahead_ ? ahead_->path() : ""; }
  // Sees now and then that what was written reaches the disk.
  void sync_if_due();
  // complete: no line waits for its turn.
  void finish(bool complete);

 private:
  using Clock = std::chrono::steady_clock;
  [[noreturn]] void fail(const char* what, int error) const;
  void sync();

  std::string path_, name_;
  Descriptor file_;
  int fd_;
  bool regular_ = false, anew_ = false, created_ = false, unsynced_ = false;
  std::optional<AheadFile> ahead_;
  HeldRecords held_;
  uint64_t end_ = 0;  // of the last whole record
  Clock::time_point synced_ = Clock::now();
};

}  // namespace riffle::cli
