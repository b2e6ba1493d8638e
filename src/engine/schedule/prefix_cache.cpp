#include "engine/schedule/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "kv/file/session_file.h"
#include "util/error.h"

namespace riffle {
namespace {

// Returns FNV-1a over whole tokens, mixed at the end. Names need not resist forgery, since the
// tokens of an entry are compared.
uint64_t hash_of(std::span<const int32_t> tokens, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325U ^ seed;
  for (const int32_t t : tokens) h = (h ^ static_cast<uint32_t>(t)) * 0x100000001b3U;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93U;
  return h ^ (h >> 32);
}

size_t in_common(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first -
                             a.begin());
}

}  // namespace

void PrefixCache::attach(Engine& engine) {
  const auto free = [&](Sequence* s) {
    engine.destroy(*s);
    delete s;
  };
  const std::unique_ptr<Sequence, decltype(free)> empty(engine.create().release(), free);
  const std::unique_ptr<Sequence, decltype(free)> fork(engine.fork(*empty, 0).release(), free);
  fingerprint_ = engine.fingerprint();
  engine_ = &engine;
}

uint64_t PrefixCache::group_of(std::span<const int32_t> prompt) const {
  return hash_of(prompt.first(kMinTokens), fingerprint_);
}

void PrefixCache::note_once(bool& noted, const std::string& text) {
  if (std::exchange(noted, true)) return;
  notice_ += (notice_.empty() ? "" : "; ") + text;
}

void PrefixCache::failed(const std::string& name, riffle_status status, const std::string& error) {
  if (status == RIFFLE_OUT_OF_MEMORY || name.empty()) return;  // the entry is still good
  entries_[name].bad = true;
  note_once(noted_bad_, "prefix cache: " + error + "; such prefixes are read again");
}

// Returns the file of an entry; null if it is gone or bad.
std::shared_ptr<const SessionFile> PrefixCache::open_file(const std::string& name) {
  try {
    return SessionFile::open(folder_.path_of(name));
  } catch (const Error& e) {
    if (folder_.has(name)) failed(name, e.status(), e.text(engine_->setting_name()));
    return nullptr;
  }
}

const PrefixCache::Entry& PrefixCache::entry(const std::string& name) {
  if (const auto at = entries_.find(name); at != entries_.end()) return at->second;
  Entry& e = entries_[name];
  if (const auto file = open_file(name)) e.tokens = file->content().tokens;
  return e;
}

PrefixCache::Best PrefixCache::best(std::span<const int32_t> prompt) {
  Best best;
  const uint64_t group = group_of(prompt);
  const std::set<std::string> names = folder_.names(group);
  // Files that are gone may return with other content.
  const std::string begin = PrefixFolder::name_of(group, 0),
                    end = PrefixFolder::name_of(group, ~0ULL);
  for (auto at = entries_.lower_bound(begin); at != entries_.end() && at->first <= end;)
    at = names.contains(at->first) ? std::next(at) : entries_.erase(at);
  for (const std::string& name : names) {
    const Entry& e = entry(name);
    if (e.bad || e.tokens.size() > static_cast<size_t>(engine_->n_ctx())) continue;
    if (const size_t n = in_common(prompt, e.tokens); n > best.n_tokens) best = {name, n};
  }
  return best;
}

std::shared_ptr<const SessionFile> PrefixCache::find(std::span<const int32_t> prompt,
                                                     size_t n_shared, std::string& name) {
  if (prompt.size() <= kMinTokens) return nullptr;
  for (;;) {
    const Best b = best(prompt);
    if (b.n_tokens < kMinTokens) return nullptr;
    folder_.touch(b.name);
    if (std::min(b.n_tokens, prompt.size() - 1) < n_shared + kMinTokens) return nullptr;
    if (auto file = open_file(b.name)) {
      name = b.name;
      return file;
    }
    if (!entries_[b.name].bad) entries_.erase(b.name);  // removed in the meantime
  }
}

void PrefixCache::keep(Sequence& sequence, std::span<const int32_t> prompt, size_t n_tokens,
                       size_t least_new) {
  if (!saving_) return;
  const auto unit = static_cast<size_t>(engine_->reuse_unit());
  for (size_t reached; n_tokens > 0; n_tokens = reached - reached % unit) {
    reached = static_cast<size_t>(engine_->reach(sequence, static_cast<int64_t>(n_tokens)));
    if (reached == n_tokens && n_tokens % unit == 0) break;
  }
  if (n_tokens < kMinTokens || n_tokens < best(prompt).n_tokens + least_new) return;
  const std::span<const int32_t> tokens = prompt.first(n_tokens);
  const std::string name = PrefixFolder::name_of(group_of(tokens), hash_of(tokens, fingerprint_));
  // Most of the file is KV.
  const auto length = static_cast<int64_t>(n_tokens);
  if (const auto bytes = static_cast<uint64_t>(engine_->own_bytes(length, 0, {}));
      !folder_.holds(bytes))
    return note_once(noted_large_,
                     format("a prefix of %zu tokens takes %.1f MiB, more than the limit of the "
                            "prefix cache",
                            n_tokens, static_cast<double>(bytes) / 1048576));
  if (const auto at = entries_.find(name); at != entries_.end() && at->second.bad)
    folder_.remove(name);
  try {
    engine_->save_beginning(sequence, length, folder_.path_of(name), {}, {}, nullptr);
  } catch (const Error& e) {
    if (e.status() == RIFFLE_ABORTED) throw;
    bool noted = false;
    note_once(noted,
              "prefix cache: " + e.text(engine_->setting_name()) + "; nothing more is saved");
    saving_ = false;
    return;
  }
  entries_[name] = {{tokens.begin(), tokens.end()}, false};
  folder_.evict(name);
  ++saved_;
  saved_tokens_ += tokens.size();
}

}  // namespace riffle
