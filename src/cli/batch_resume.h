// What an earlier run left in its output.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

namespace riffle::cli {

// What an output holds already, by line of the input.
struct HeldRecord {
  std::string custom_id;
  bool failed = false;
  bool found = false;  // its line has been seen in the input
};
struct HeldRecords {
  std::unordered_map<size_t, HeldRecord> by_line;
  size_t failed = 0, last_line = 0;
  bool in_order = true;
  uint64_t bytes = 0;  // of whole records
  bool torn = false;   // a piece of a record follows
};

// The records of an output file, read from its beginning. Throws Exit if it is not such a file. name: for errors.
HeldRecords scan_records(int fd, const std::string& name);

}  // namespace riffle::cli
