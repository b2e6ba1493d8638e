// A whole file mapped read-only. If another program cuts the file while it is mapped, reading what
// is gone raises SIGBUS: no check made at load can prevent that.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "model/formats/checked.h"

namespace riffle {

class MappedFile {
 public:
  // Throws RIFFLE_IO (missing, unreadable, not a regular file) or RIFFLE_BAD_MODEL (empty).
  static std::shared_ptr<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const FileView& view() const { return view_; }
  // Lets go of the memory that these bytes take in this process, if they are this file's; reading
  // them fetches them anew. Not while another thread is in move_piece.
  void drop(const void* data, uint64_t bytes) const;
  // Copies the next piece of the file to memory of this process's own, in huge pages where the
  // system has them, and puts the copy in the file's place. What stands there does not change, also
  // for threads that read it meanwhile. False: no piece is left, or the system refuses. Any number
  // of threads may call it.
  bool move_piece();
  size_t pieces() const { return (view_.size + piece_ - 1) / piece_; }
  // Whether path names this file, under any name.
  bool is_same_file(const std::string& path) const;

 private:
  MappedFile() = default;
  FileView view_;
  size_t piece_ = 0, reserved_ = 0;  // bytes; reserved_: of addresses from the file's first one
  std::atomic<size_t> next_piece_{0};
  uint64_t device_ = 0, inode_ = 0;
};

// Whether path names something that is not a folder.
bool file_exists(const std::string& path);
bool is_folder(const std::string& path);

}  // namespace riffle
