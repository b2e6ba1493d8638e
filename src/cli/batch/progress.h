// Progress of riffle batch: counts, a bar or one line a minute, and the summary.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "cli/batch/format.h"

namespace riffle::cli {

struct BatchCounts {
  size_t answers = 0, errors = 0;  // records written by this run
  size_t earlier = 0;              // written now, but finished by an earlier run
  size_t held = 0;                 // records that were there before this run
  // Tokens of prompts: all; those taken over from other lines; those from the prefix cache.
  uint64_t prompt_tokens = 0, reused_tokens = 0, cached_tokens = 0;
  uint64_t answer_tokens = 0;  // counted as they arrive
};

class BatchProgress {
 public:
  // total: lines to answer; 0: not known. cache: whether there is a prefix cache.
  BatchProgress(riffle_context* context, size_t total, bool cache, bool quiet);

  BatchCounts counts;
  // Called for a line with fields that are not read, or with a conversation that the template did
  // not accept unchanged.
  void add_ignored(const Facts& request);
  void add_fitted(size_t line, const std::string& fitted);
  // Ways in which a line asks for reasoning without effect.
  enum class Unread { EFFORT, THINKING, PROMPT };
  void add_unread(size_t line, Unread what);
  void add_error(const std::string& message);  // error of a line; the first is shown at the end

  void update();
  void clear() { bar_.clear(); }
  std::string summary() const;
  std::vector<std::string> notices() const;  // notices to print below the summary
  void finish() { bar_.finish(); }

 private:
  using Names = std::map<std::string, size_t>;  // fields, and the number of lines that have them
  struct Lines {
    size_t count = 0, first = 0;
  };
  double seconds() const;
  std::string rate() const;  // "12.3 tokens/s, 98.2% pool hits"

  riffle_context* context_;
  size_t total_;
  bool cache_;
  Names without_effect_, unknown_;
  void add(Lines& lines, size_t line);
  Lines joined_, moved_, unread_[3];  // unread_: by Unread
  std::string first_error_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Progress bar_;
};

}  // namespace riffle::cli
