// Weights of mapped files in huge pages. A decode step on a CPU reads every weight once; with pages
// of 4 KiB the processor also reads, for each of them, where it lies.
#pragma once
#include <memory>
#include <vector>

#include "model/formats/mapped_file.h"

namespace riffle {

class ThreadPool;

// Moves files into huge pages, a part at a time, so that no single step waits for all. Moving one
// costs about as much as three steps.
class HugePages {
 public:
  explicit HugePages(std::vector<std::shared_ptr<MappedFile>> files) : files_(std::move(files)) {}

  // Moves a sixteenth of the files' bytes. Does nothing where the system has no huge pages, or
  // where less memory is free than the files take and an eighth more. Throws
  // RIFFLE_OUT_OF_MEMORY only where finding that out fails.
  void move_some(ThreadPool& threads);

 private:
  bool is_worthwhile() const;

  std::vector<std::shared_ptr<MappedFile>> files_;  // what is left
  bool asked_ = false;
};

}  // namespace riffle
