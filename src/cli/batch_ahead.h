// Records that are finished before one that comes first: in a hidden file beside the output until their turn has come, so that an
// interruption of any kind loses none of them.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "cli/batch_reader.h"
#include "cli/batch_resume.h"

namespace riffle::cli {

class AheadFile {
 public:
  // Of the output at this path, which the caller has locked.
  explicit AheadFile(const std::string& output);

  // What an earlier run left and the output does not hold (held.by_line), also into held.ahead. What was cut off is left out.
  // Nothing is changed. Throws Exit, also for a file of another kind.
  void load(HeldRecords& held);
  struct Record {
    std::string text;
    bool failed = false;
  };
  // Null: there is none of this line.
  const Record* find(size_t line) const;
  size_t size() const { return records_.size(); }

  // The first one makes the file; false if that is not allowed here. Throws Exit.
  bool add(const std::string& record);
  // Its records are in the output.
  void clear();
  uint64_t bytes() const { return end_; }
  void sync();
  void remove();
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_;
  Descriptor file_;
  std::unordered_map<size_t, Record> records_;
  uint64_t end_ = 0;  // of the last whole record
  bool unsynced_ = false;
};

}  // namespace riffle::cli
