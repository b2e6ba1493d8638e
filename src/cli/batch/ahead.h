// Records that are finished before those of earlier lines. They stay in a hidden file next to the
// output until their turn comes, so that no interruption loses them. Only answers are kept: a
// failed line soon fails again.
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
  // Returns and forgets the loaded record of this line, if there is one.
  std::optional<std::string> take(size_t line);
  size_t loaded() const { return records_.size(); }  // loaded and not taken yet

  // Adds a record; the first one creates the file. Returns false if no file may be created here.
  // Throws Exit.
  bool add(const std::string& record);
  // Moves an answer in from the output. From now on, take() returns it.
  bool move_in(size_t line, const std::string& record);
  // Empties the file, whose records are in the output.
  void clear();
  uint64_t bytes() const { return end_; }
  void sync();
  // Makes sure that the file and its name have reached the disk. Throws Exit.
  void make_durable();
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
