// The lines that a run of riffle batch has to answer: those of its shard that its output does not
// hold yet.
#pragma once
#include <sys/stat.h>

#include <limits>
#include <optional>
#include <string>
#include <unordered_map>

#include "cli/batch/format.h"
#include "cli/batch/resume.h"
#include "cli/line_reader.h"

namespace riffle::cli {

// Part index of count parts of a file, from 1.
struct Shard {
  size_t index = 1, count = 1;
};
// "2/3". Refuses another text with refuse_value.
Shard parse_shard(const std::string& text);

struct InputLine {
  size_t number = 0;
  BatchRequest request;
  std::optional<BatchError> error;  // the reason if there is no request
};

class BatchInput {
 public:
  // path "-": stdin. Throws Exit.
  BatchInput(const std::string& path, const Shard& shard, const BatchDefaults& defaults);

  // Returns true if `other` is the input file: input and output must differ.
  bool is_file(const struct stat& other) const;

  // Reads a whole regular file, to count its lines and to check that held belongs to it. output:
  // name of the output, for errors. Other inputs are checked while they are read. Throws Exit.
  // Requires: next() has not been called yet.
  void survey(HeldRecords held, const std::string& output);

  // Reads the next line that is to be answered. Blank lines are left out. Bytes that form no
  // request, and ids used before, give the line an error. Throws Exit.
  LineReader::Got next(InputLine& out, bool wait);

  bool counted() const { return regular_; }
  size_t total() const { return total_; }          // lines with text in the shard, if counted
  size_t remaining() const { return remaining_; }  // lines without a record
  bool fills_gaps() const { return fills_gaps_; }  // a line to answer came before one with a record

 private:
  void rewind();
  void blank_or_trim(std::string& line) const;
  void check_held(const std::string& file, HeldRecord& held, size_t number,
                  const std::string& custom_id, bool mine) const;
  void check_all_found() const;
  const std::string& file_of(const HeldRecord& held) const {
    return held.in_errors ? held_.errors_name : output_name_;
  }
  const std::string& file_of_ahead(const HeldRecord& held) const {
    return held.in_output ? output_name_ : held_.ahead_name;
  }

  std::string name_, output_name_;
  Shard shard_;
  BatchDefaults defaults_;
  Descriptor file_;
  int fd_;
  struct stat stat_ {};
  bool regular_ = false;
  off_t begin_ = 0;
  HeldRecords held_;
  size_t first_ = 0, end_ = std::numeric_limits<size_t>::max();  // the shard, in lines with text
  size_t total_ = 0, remaining_ = 0;
  bool fills_gaps_ = false, over_ = false;

  std::optional<LineReader> reader_;
  std::string line_;
  size_t place_ = 0;  // lines with text so far
  std::unordered_map<std::string, size_t> seen_;
};

}  // namespace riffle::cli
