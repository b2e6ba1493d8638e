// Weights of mapped files in huge pages. A decode step on a CPU reads every weight once. With pages
// of 4 KiB, the processor must also look up the address of each page, and what it fetches ahead
// ends with the page; pages of 2 MiB need 512 times fewer look-ups.
#pragma once
#include <memory>
#include <vector>

#include "model/formats/mapped_file.h"

namespace riffle {

class ThreadPool;

// Moves files into huge pages, a part at a time, so that no single step waits for all. Moving 1.3
// GB takes 0.5 s of one core, about 15 decode steps of one thread
// (tools/bench/results/cpu-peers.md).
class HugePages {
 public:
  explicit HugePages(std::vector<std::shared_ptr<MappedFile>> files) : files_(std::move(files)) {}

  // Moves a sixteenth of the files' bytes. Does nothing on processors that gain nothing, where the
  // system has no huge pages, or where less memory is free than the files take and an eighth more.
  void move_some(ThreadPool& threads);

 private:
  bool is_worthwhile() const;

  std::vector<std::shared_ptr<MappedFile>> files_;  // what is left
  bool asked_ = false;
};

}  // namespace riffle
