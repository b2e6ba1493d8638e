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
  bool found = false;      // its line has been found in the input
  bool in_errors = false;  // in the file of --errors
  bool in_output = false;  // a record ahead: still in the output (--retry-errors)
};
struct HeldRecords {
  std::unordered_map<size_t, HeldRecord> by_line;
  std::unordered_map<size_t, HeldRecord> ahead;  // finished, but not in the output yet (ahead.h)
  std::string ahead_name;                        // file of those records
  std::string errors_name;                       // file of the records with in_errors
  AnsweringModel model;  // model of the first answer; no name: there is none
  size_t failed = 0, last_line = 0;
  bool in_order = true;
  uint64_t bytes = 0;  // bytes of whole records
  bool torn = false;   // a piece of a record follows
};

constexpr size_t kMaxRecordBytes = size_t{512} << 20;

// Tells whether text may be the beginning of a record that was cut anywhere. A power cut can leave
// zeros in place of text.
bool torn_record(const std::string& text);

// Parses the reader's current line. Requires: the reader's limit is kMaxRecordBytes. Throws
// std::runtime_error with the reason.
RecordHead record_of(const LineReader& reader, const std::string& line);

// Returns the records of an output file, read from its beginning. Throws Exit if the file holds
// anything else. name: for errors.
HeldRecords scan_records(int fd, const std::string& name);

}  // namespace riffle::cli
