// The scheduler's prefix cache: beginnings of prompts that are taken from disk, and saved.
#include <algorithm>
#include <utility>

#include "engine/schedule/request.h"
#include "engine/schedule/scheduler.h"

namespace riffle {

// Number of answered prompts with which a prompt is compared to find shared tokens.
static constexpr size_t kAnswered = 64, kAnsweredTokens = size_t{16} << 20;

void Scheduler::use_prefix_cache(PrefixCache& cache, KeepPrefixes keep) {
  cache.attach(engine_);
  cache_ = &cache;
  keep_prefixes_ = keep;
}

// Returns the file from which a request may begin: the caller's, or the cache's.
std::shared_ptr<const SessionFile> Scheduler::saved_beginning(Request& r, size_t n_shared) {
  if (hooks_.begin)
    if (auto file = hooks_.begin(r.id, n_shared)) return file;
  if (!cache_) return nullptr;
  try {
    return cache_->find(r.prompt, n_shared, r.entry);
  } catch (const std::bad_alloc&) {
    return nullptr;  // the prompt is read
  }
}

// Returns the length of the longest beginning that another prompt has too.
size_t Scheduler::shared_tokens(const Request& r) const {
  size_t most = 0;
  const auto compare = [&](const std::vector<int32_t>& other) {
    const auto end =
        std::mismatch(r.prompt.begin(), r.prompt.end(), other.begin(), other.end()).first;
    most = std::max(most, static_cast<size_t>(end - r.prompt.begin()));
  };
  for (const Requests* list : {&waiting_, &decoding_, &kept_})
    for (const auto& other : *list) compare(other->prompt);
  for (const std::vector<int32_t>& other : answered_) compare(other);
  return most;
}

// Adds the prompt that was read to the cache. If all prompts are kept, a prompt that grows from
// request to request is saved again once a quarter of it is new: otherwise a conversation would be
// written as often as it has turns.
void Scheduler::keep_beginning(Request& r) {
  const bool all = keep_prefixes_ == KeepPrefixes::ALL;
  r.unsaved = false;
  try {
    if (r.load_error) cache_->failed(r.entry, r.load_error->status(), text_of(*r.load_error));
    cache_->keep(*r.sequence, r.prompt, all ? r.prompt.size() : shared_tokens(r),
                 std::max(PrefixCache::kMinTokens, all ? r.prompt.size() / 4 : 0));
  } catch (const Error& e) {
    if (e.status() != RIFFLE_ABORTED) return;  // the prompt is not kept
    r.unsaved = true;                          // it is saved when the request ends
    engine_.request_abort(true);               // the save has taken the abort of the iteration
  } catch (const std::bad_alloc&) {
    return;  // the prompt is not kept
  }
}

void Scheduler::remember(std::vector<int32_t> prompt) {
  answered_tokens_ += prompt.size();
  answered_.push_back(std::move(prompt));
  while (answered_.size() > kAnswered || answered_tokens_ > kAnsweredTokens) {
    answered_tokens_ -= answered_.front().size();
    answered_.pop_front();
  }
}

}  // namespace riffle
