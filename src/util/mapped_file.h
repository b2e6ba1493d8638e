// A whole file mapped read-only. If another program cuts the file while it is mapped, reading the
// lost part raises SIGBUS: no check made at load can prevent that.
#pragma once
#include <memory>
#include <string>

#include "util/checked.h"

namespace riffle {

class MappedFile {
 public:
  // Throws RIFFLE_IO (missing, unreadable, not a regular file) or RIFFLE_BAD_MODEL (empty).
  static std::shared_ptr<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const FileView& view() const { return view_; }
  // Releases the memory that these bytes take in this process, if they are this file's. Reading
  // fetches them again.
  void drop(const void* data, uint64_t bytes) const;
  // Tells whether path names this file, under any name.
  bool is_same_file(const std::string& path) const;

 private:
  MappedFile() = default;
  FileView view_;
  uint64_t device_ = 0, inode_ = 0;
};

// Tells whether path names something that is not a folder.
bool file_exists(const std::string& path);
bool is_folder(const std::string& path);

}  // namespace riffle
