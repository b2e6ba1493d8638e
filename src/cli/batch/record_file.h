// A file of records, or a pipe for them: one record a line, each written whole or not at all, by
// one writer at a time.
#pragma once
#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <string>

#include "cli/batch/input.h"
#include "cli/batch/resume.h"
#include "cli/line_reader.h"

namespace riffle::cli {

class RecordFile {
 public:
  // path "-": stdout. A regular file is locked; nothing is read or changed yet. flag: the flag that
  // names the file, for errors. Throws Exit.
  RecordFile(const std::string& path, const char* flag, const BatchInput& input, bool quiet);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }
  bool regular() const { return regular_; }
  bool created() const { return created_; }
  bool terminal() const;
  bool is_file(const RecordFile& other) const;  // true: the same regular file

  // Returns the records in the file. Throws Exit if it holds anything else.
  HeldRecords scan() const { return scan_records(fd_, name_); }
  // Calls visit with the records in the bytes [from, to). Requires: scan() has found them complete.
  // at: offset of the record.
  using Visit = std::function<void(const RecordHead&, const std::string& record, uint64_t at)>;
  void visit(uint64_t from, uint64_t to, const Visit& visit) const;
  // Leaves the file as it was before this run.
  void leave();
  // Cuts off everything after the first `bytes`. Requires: no record has been written yet.
  void begin(uint64_t bytes);
  // Writes one record. Throws Exit if that fails; a regular file then has no part of it.
  void write(const std::string& record);
  // Writes the records through to the disk.
  void sync();
  bool unsynced() const { return unsynced_; }

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_, name_;
  Descriptor file_;
  int fd_;
  struct stat stat_ {};
  bool regular_ = false, created_ = false, unsynced_ = false;
  uint64_t end_ = 0;  // end of the last whole record
};

}  // namespace riffle::cli
