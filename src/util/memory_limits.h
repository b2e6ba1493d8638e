// The memory that this process may use: the machine's, or less if its control groups (containers,
// jobs of a cluster) limit it. The system does not refuse memory beyond such a limit: it kills the
// process. So riffle plans within the limit.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace riffle {

class MemoryLimits {
 public:
  // root: prefix of all paths; "" except in tests. A file that cannot be read sets no limit.
  explicit MemoryLimits(std::string root = "");

  uint64_t total() const { return total_; }
  bool by_group() const {
    return total_ < machine_;
  }  // total() is a control group's limit, not the machine's memory
  // Returns the bytes that could be taken now without swapping or dropping pages in use; UINT64_MAX
  // if no file tells.
  uint64_t available() const;

 private:
  struct Group {
    std::string folder;
    const char *used,
        *cache;  // file of the bytes in use; key, in memory.stat, of those that would be dropped
    uint64_t limit;
  };

  std::string root_;
  std::vector<Group> groups_;  // groups with a limit below the machine's memory
  uint64_t machine_ = UINT64_MAX, total_ = UINT64_MAX;
};

// Call before weights are written to memory. Throws RIFFLE_OUT_OF_MEMORY if they take more than the
// process may use, since it would be killed. what: "weights of type q8_0".
void require_memory(const std::string& what, uint64_t bytes, const MemoryLimits& limits);

}  // namespace riffle
