// The folder of a prefix cache: entries with a size limit, shared by processes. Each entry is a
// file, complete or absent, that may be removed at any time: a process that has it open can go on
// reading it.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "util/file.h"

namespace riffle {

class PrefixFolder {
 public:
  // Creates the folder if it is missing. limit: bytes of all entries; 0: half of the sum of their
  // bytes and the free space of the disk. Throws RIFFLE_IO.
  PrefixFolder(std::string path, uint64_t limit);

  // Returns the name of an entry, made of `group`, by which it is found, and a hash of its content.
  static std::string name_of(uint64_t group, uint64_t content);
  std::set<std::string> names(uint64_t group) const;
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  bool has(const std::string& name) const;

  // Marks the entry as used now. The least recently used entry is removed first.
  void touch(const std::string& name) const;
  void remove(const std::string& name) const;
  // Tells whether an entry of this size can stay.
  bool holds(uint64_t bytes) const;
  // Removes entries until the rest fits the limit; `newest` is removed last ("": no entry is
  // special). Also removes files that killed processes have left.
  void evict(const std::string& newest) const;

 private:
  struct Listing;
  Listing list() const;
  uint64_t limit(uint64_t in_use) const;

  std::string path_;
  uint64_t limit_;
  FileDescriptor lock_;
};

}  // namespace riffle
