// Remembers the ids of parts of text that were encoded recently, since texts often begin alike (one
// document and many questions).
#pragma once
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace riffle {

// Any number of threads may share one. max_bytes: limit for texts and ids; beyond it, the least
// recently used parts are dropped.
class PartMemory {
 public:
  explicit PartMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Appends the ids of this part; returns false if it is not here.
  bool append(std::string_view text, std::vector<int32_t>* ids) {
    const std::lock_guard lock(mutex_);
    const auto found = by_text_.find(text);
    if (found == by_text_.end()) return false;
    parts_.splice(parts_.begin(), parts_, found->second);
    ids->insert(ids->end(), parts_.front().ids.begin(), parts_.front().ids.end());
    return true;
  }

  void keep(std::string_view text, const std::vector<int32_t>& ids) {
    const size_t bytes = bytes_of(text, ids);
    if (bytes > max_bytes_) return;
    std::list<Part> made;
    made.push_back({std::string(text), ids});
    const std::lock_guard lock(mutex_);
    if (by_text_.contains(text)) return;
    by_text_.emplace(made.front().text, made.begin());
    parts_.splice(parts_.begin(), made);
    for (bytes_ += bytes; bytes_ > max_bytes_; parts_.pop_back()) {
      bytes_ -= bytes_of(parts_.back().text, parts_.back().ids);
      by_text_.erase(parts_.back().text);
    }
  }

 private:
  struct Part {
    std::string text;
    std::vector<int32_t> ids;
  };
  static size_t bytes_of(std::string_view text, const std::vector<int32_t>& ids) {
    return text.size() + ids.size() * sizeof(int32_t);
  }

  const size_t max_bytes_;
  std::mutex mutex_;
  std::list<Part> parts_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Part>::iterator> by_text_;
  size_t bytes_ = 0;
};

}  // namespace riffle
