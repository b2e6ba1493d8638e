// The folder of riffle batch --prefix-cache: entries with a size limit, shared by processes. An
// entry is a file of its own, complete or absent, and may be removed at any time: a process that
// has it open keeps it.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "cli/line_reader.h"

namespace riffle::cli {

class PrefixFolder {
 public:
  // Makes the folder if it is missing. limit: bytes of all entries; 0: half of their bytes plus the
  // disk's free room. Throws Exit.
  PrefixFolder(std::string path, uint64_t limit);

  // Returns the name of an entry: `group`, by which it is found, and a hash of its content.
  static std::string name_of(uint64_t group, uint64_t content);
  std::set<std::string> names(uint64_t group) const;
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  bool has(const std::string& name) const;

  // The entry has been used now. The entry that was used longest ago is removed first.
  void touch(const std::string& name) const;
  void remove(const std::string& name) const;
  // Tells whether an entry of this size can stay.
  bool holds(uint64_t bytes) const;
  // Removes entries until the rest fits the limit; `newest` goes last ("": no entry is special).
  // Also removes files that killed processes have left.
  void evict(const std::string& newest) const;

 private:
  struct Listing;
  Listing list() const;
  uint64_t limit(uint64_t in_use) const;

  std::string path_;
  uint64_t limit_;
  Descriptor lock_;
};

}  // namespace riffle::cli
