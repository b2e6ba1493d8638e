// Records that an earlier run left in its output.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "cli/batch/format.h"
#include "cli/line_reader.h"

namespace riffle::cli {

// Records that an output holds already, by line of the input.
struct HeldRecord {
  std::string custom_id;
  bool failed = false;
  bool found = false;      // its line has been seen in the input
  bool in_errors = false;  // in the file of --errors
  bool in_output = false;  // a record ahead: still in the output (--retry-errors)
};
struct HeldRecords {
  std::unordered_map<size_t, HeldRecord> by_line;
  std::unordered_map<size_t, HeldRecord> ahead;  // finished, but not there yet (ahead.h)
  std::string ahead_name;                        // where those are
  std::string errors_name;                       // file of the records with in_errors
  std::string model;                             // model of the first answer; "": there is none
  size_t failed = 0, last_line = 0;
  bool in_order = true;
  uint64_t bytes = 0;  // bytes of whole records
  bool torn = false;   // a piece of a record follows
};

constexpr size_t kMaxRecordBytes = size_t{512} << 20;

// Tells whether text may be the beginning of a record, cut anywhere. A power cut can leave zeros
// where text should be.
bool torn_record(const std::string& text);

// Parses the reader's current line. Requires: it reads at most kMaxRecordBytes a line. Throws
// std::runtime_error with the reason.
RecordHead record_of(const LineReader& reader, const std::string& line);

// The records of an output file, read from its beginning. Throws Exit if it is not such a file.
// name: for errors.
HeldRecords scan_records(int fd, const std::string& name);

}  // namespace riffle::cli
