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
  // Takes the arguments of PrefixFolder. Throws Exit.
  PrefixCache(const std::string& folder, uint64_t limit, bool quiet)
      : folder_(folder, limit), quiet_(quiet) {}
  ~PrefixCache() { riffle_session_file_free(file_); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Called before the other functions. Returns false if no session of this context can be taken
  // over; the context's error gives the reason. Throws Exit.
  bool open(riffle_model* model, riffle_context* context, const Options& options);

  // Returns the entry with the longest beginning of a prompt, and its name; null if no entry has
  // enough tokens beyond n_shared. Valid until the next call.
  riffle_session_file* find(std::span<const int32_t> prompt, size_t n_shared, std::string& name);
  // Called if the entry that find() returned could not be loaded.
  void failed(const std::string& name, riffle_status status, const char* error);
  // Called when a prompt has been read that shares `shared` tokens with other lines. Saves them,
  // unless an entry has all or nearly all of them. reuse_unit: see riffle_request_prompt_fn.
  void keep(riffle_session* session, size_t reuse_unit, std::span<const int32_t> prompt,
            size_t shared);

  // Called at the end of a run: enforces the limit even if the run saved nothing.
  void trim() const { folder_.evict(""); }

  const std::string& folder() const { return folder_.path(); }
  size_t saved() const { return saved_; }  // number of entries saved
  uint64_t saved_tokens() const { return saved_tokens_; }

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
  riffle_session_file* file_ = nullptr;   // the file that find() returned
  bool saving_ = true, said_bad_ = false, said_large_ = false, said_failed_ = false;
  size_t saved_ = 0;
  uint64_t saved_tokens_ = 0;
};

}  // namespace riffle::cli
