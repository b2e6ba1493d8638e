// Records that are finished before an earlier line's: they stay in a hidden file next to the output
// until their turn comes, so that an interruption of any kind loses none of them. Only answers are
// kept: a failed line soon fails again.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "cli/batch/resume.h"
#include "cli/line_reader.h"

namespace riffle::cli {

class AheadFile {
 public:
  // output: path of the output. Requires: the caller has locked it.
  explicit AheadFile(const std::string& output);

  // Reads the records that an earlier run left, except those in the output (held.by_line), and adds
  // them to held.ahead. A record that was cut off is left out. Changes nothing. Returns the number
  // of other damaged lines. Throws Exit, also for a file of another kind.
  size_t load(HeldRecords& held);
  // Gives a loaded record away; none: there is none of this line.
  std::optional<std::string> take(size_t line);
  size_t loaded() const { return records_.size(); }  // and not given away

  // The first one makes the file; false if that is not allowed here. Throws Exit.
  bool add(const std::string& record);
  // Adds an answer of the output. From now on, take() returns it.
  bool move_in(size_t line, const std::string& record);
  // Its records are in the output.
  void clear();
  uint64_t bytes() const { return end_; }
  void sync();
  // Sees that the file and its name are on the disk. Throws Exit.
  void settle();
  void remove();
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  struct Place {
    uint64_t at = 0;
    size_t bytes = 0;
  };
  std::string path_;
  Descriptor file_;    // to write
  Descriptor loaded_;  // to read
  std::unordered_map<size_t, Place> records_;
  uint64_t end_ = 0;  // end of the last whole record
  bool unsynced_ = false;
};

}  // namespace riffle::cli
