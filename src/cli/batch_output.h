// What riffle batch writes: one record a line, each whole or not at all, by one writer at a time.
#pragma once
#include <chrono>
#include <string>

#include "cli/batch_input.h"
#include "cli/batch_reader.h"

namespace riffle::cli {

class BatchOutput {
 public:
  // path "-": stdout. A regular file is locked and, unless restart, read; nothing is changed yet. Throws Exit.
  BatchOutput(const std::string& path, const BatchInput& input, bool restart, bool quiet);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  const std::string& name() const { return name_; }
  const HeldRecords& held() const { return held_; }
  bool terminal() const;

  // Cuts off what is not kept. Before the first write.
  void begin();
  // One record in one piece. Throws Exit if that fails; then no part of it is left in a regular file.
  void write(const std::string& record);
  // Sees now and then that what was written reaches the disk.
  void sync_if_due();
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  [[noreturn]] void fail(const char* what, int error) const;
  void sync();

  std::string path_, name_;
  Descriptor file_;
  int fd_;
  bool regular_ = false, created_ = false, unsynced_ = false;
  HeldRecords held_;
  uint64_t end_ = 0;  // of the last whole record
  Clock::time_point synced_ = Clock::now();
};

}  // namespace riffle::cli
