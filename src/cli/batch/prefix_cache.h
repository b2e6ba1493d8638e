// The beginnings that prompts of riffle batch share, kept across runs (--prefix-cache). An entry is
// a saved session of such a beginning.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/batch/prefix_folder.h"
#include "cli/common.h"

namespace riffle::cli {

class PrefixCache {
 public:
  // Arguments of PrefixFolder. Throws Exit.
  PrefixCache(const std::string& folder, uint64_t limit, bool quiet)
      : folder_(folder, limit), quiet_(quiet) {}
  ~PrefixCache() { riffle_session_file_free(file_); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Before the other functions. False: no session of this context can be taken over. The context's
  // error says why. Throws Exit.
  bool open(riffle_model* model, riffle_context* context, const Options& options);

  // Returns the entry with the longest beginning of a prompt, and its name; null if none has enough
  // more than n_shared tokens. Valid until the next call.
  riffle_session_file* find(std::span<const int32_t> prompt, size_t n_shared, std::string& name);
  // Notes that the entry that find gave could not be loaded.
  void failed(const std::string& name, riffle_status status, const char* error);
  // Called when a prompt has been read that shares `shared` tokens with other lines: saves them
  // unless an entry has all or nearly all of them. reuse_unit: of riffle_request_prompt_fn.
  void keep(riffle_session* session, size_t reuse_unit, std::span<const int32_t> prompt,
            size_t shared);

  // A run has ended: the limit holds also if it saved nothing.
  void trim() const { folder_.evict(""); }

  const std::string& folder() const { return folder_.path(); }
  size_t saved() const { return saved_; }  // entries
  uint64_t saved_tokens() const { return saved_tokens_; }

 private:
  struct Entry {
    std::vector<int32_t> tokens;
    bool bad = false;  // damaged, or of something else
  };
  struct Best {
    std::string name;
    size_t n_tokens = 0;  // in common
  };
  uint64_t group_of(std::span<const int32_t> prompt) const;
  Best best(std::span<const int32_t> prompt);
  const Entry& entry(const std::string& name);
  riffle_session_file* open_file(const std::string& name);
  uint64_t file_bytes(size_t n_tokens) const;
  void say_once(bool& said, const std::string& text) const;

  PrefixFolder folder_;
  bool quiet_;
  riffle_model* model_ = nullptr;
  riffle_context* context_ = nullptr;
  Options options_;
  uint64_t fingerprint_ = 0;
  std::map<std::string, Entry> entries_;  // entries that have been opened
  riffle_session_file* file_ = nullptr;   // the file that find gave
  bool saving_ = true, said_bad_ = false, said_large_ = false, said_failed_ = false;
  size_t saved_ = 0;
  uint64_t saved_tokens_ = 0;
};

}  // namespace riffle::cli
