#include "requests/grammar_cache.h"

#include <algorithm>

#include "util/error.h"

namespace riffle::requests {

GrammarCache::Grammar GrammarCache::get(const std::string& key,
                                        const std::function<Grammar()>& compile) {
  constexpr size_t kMost = 8;  // a grammar may take 64 MiB or more
  const auto result = [](const Entry& entry) {
    if (!entry.grammar) throw Error(entry.status, entry.error);
    return entry.grammar;
  };
  {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto known = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& e) { return e.key == key; });
    if (known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
      return result(entries_.front());
    }
  }
  // Compiled without the lock, since it may take long. Two threads may compile the same text.
  Entry entry{key, nullptr, RIFFLE_OK, ""};
  try {
    entry.grammar = compile();
  } catch (const Error& e) {
    if (e.status() == RIFFLE_OUT_OF_MEMORY) throw;  // may pass later
    entry.status = e.status();
    entry.error = e.what();
  }
  const std::lock_guard<std::mutex> lock(lock_);
  entries_.push_front(std::move(entry));
  if (entries_.size() > kMost) entries_.pop_back();
  return result(entries_.front());
}

}  // namespace riffle::requests
