// Reads mapped files ahead of their use, so that a cold start waits for the disk once and not page
// by page.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "util/mapped_file.h"

namespace riffle {

struct MappedBytes {
  const void* data;
  uint64_t bytes;
};

// Asks the system, in a thread of its own, to bring parts of mapped files into its page cache, in
// the order given. It is a hint: nothing waits for it and no failure matters. A part that is in the
// cache already costs about 10 microseconds a megabyte.
class ReadAhead {
 public:
  // Holds these files, in which the parts lie, so that they stay mapped.
  ReadAhead(std::vector<std::shared_ptr<MappedFile>> files, std::vector<MappedBytes> parts);
  ~ReadAhead();  // stops
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void wait();  // until everything has been requested

 private:
  void run();

  std::vector<std::shared_ptr<MappedFile>> files_;
  std::vector<MappedBytes> parts_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // none if the system could not start one
};

}  // namespace riffle
