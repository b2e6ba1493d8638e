// The beginnings of prompts, kept on disk for later requests and processes. An entry is a saved
// session of such a beginning.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/schedule/prefix_folder.h"

namespace riffle {

class PrefixCache {
 public:
  // Takes the arguments of PrefixFolder. Throws RIFFLE_IO.
  PrefixCache(std::string folder, uint64_t limit) : folder_(std::move(folder), limit) {}
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Called before the other functions. Throws RIFFLE_UNSUPPORTED if no sequence of this engine can
  // be taken over.
  void attach(Engine& engine);

  // Returns the entry with the longest beginning of a prompt, and its name; null if no entry has
  // enough tokens beyond n_shared.
  std::shared_ptr<const SessionFile> find(std::span<const int32_t> prompt, size_t n_shared,
                                          std::string& name);
  // Called if the entry that find() returned could not be loaded.
  void failed(const std::string& name, riffle_status status, const std::string& error);
  // Saves the first n_tokens of a prompt that has been read, unless they are fewer than kMinTokens
  // or an entry lacks fewer than least_new of them. Throws RIFFLE_ABORTED.
  void keep(Sequence& sequence, std::span<const int32_t> prompt, size_t n_tokens, size_t least_new);
  // Called at the end: enforces the limit even if nothing was saved.
  void trim() const { folder_.evict(""); }

  // Shorter beginnings are read again: that is about as quick as loading them, and many small files
  // would displace large ones. Entries of one group have this many tokens in common.
  static constexpr size_t kMinTokens = 512;

  size_t saved() const { return saved_; }  // number of entries saved
  uint64_t saved_tokens() const { return saved_tokens_; }
  const std::string& notice() const { return notice_; }  // notices, joined by "; "

 private:
  struct Entry {
    std::vector<int32_t> tokens;
    bool bad = false;  // the file is damaged or of another kind
  };
  struct Best {
    std::string name;
    size_t n_tokens = 0;  // number of tokens in common
  };
  uint64_t group_of(std::span<const int32_t> prompt) const;
  Best best(std::span<const int32_t> prompt);
  const Entry& entry(const std::string& name);
  std::shared_ptr<const SessionFile> open_file(const std::string& name);
  void note_once(bool& noted, const std::string& text);

  PrefixFolder folder_;
  Engine* engine_ = nullptr;
  uint64_t fingerprint_ = 0;
  std::map<std::string, Entry> entries_;  // entries that have been opened
  std::string notice_;
  bool saving_ = true, noted_bad_ = false, noted_large_ = false;
  size_t saved_ = 0;
  uint64_t saved_tokens_ = 0;
};

}  // namespace riffle
