#include "cli/batch/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace riffle::cli {
namespace {

// Shorter beginnings are read again: that is about as quick as loading them, and many small files
// would displace large ones. Entries of one group have this many tokens in common.
constexpr size_t kMinTokens = 512;

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

bool go_on(void*, const riffle_progress*) { return !interrupted(); }

}  // namespace

bool PrefixCache::open(riffle_model* model, riffle_context* context, const Options& options) {
  model_ = model;
  context_ = context;
  options_ = options;
  check(riffle_context_fingerprint(context, &fingerprint_), context);
  const Session empty = create_session(context);
  riffle_session* fork = nullptr;
  const riffle_status status = riffle_session_fork(empty.get(), 0, &fork);
  riffle_session_free(fork);
  if (status != RIFFLE_UNSUPPORTED) check(status, context);
  return status == RIFFLE_OK;
}

uint64_t PrefixCache::group_of(std::span<const int32_t> prompt) const {
  return hash_of(prompt.first(kMinTokens), fingerprint_);
}

void PrefixCache::say_once(bool& said, const std::string& text) const {
  if (!std::exchange(said, true)) notice(quiet_, "[%s]", text.c_str());
}

void PrefixCache::failed(const std::string& name, riffle_status status, const char* error) {
  if (status == RIFFLE_OUT_OF_MEMORY || name.empty()) return;  // the entry is still good
  entries_[name].bad = true;
  say_once(said_bad_, std::string("prefix cache: ") + error + "; such prefixes are read again");
}

// Returns the file of an entry; null if it is gone or bad.
riffle_session_file* PrefixCache::open_file(const std::string& name) {
  riffle_session_file* file = nullptr;
  char err[1024] = "";
  const std::string path = folder_.path_of(name);
  const riffle_status status = riffle_session_file_open(path.c_str(), &file, err, sizeof err);
  if (status == RIFFLE_OK) return file;
  if (folder_.has(name)) failed(name, status, err);
  return nullptr;
}

const PrefixCache::Entry& PrefixCache::entry(const std::string& name) {
  if (const auto at = entries_.find(name); at != entries_.end()) return at->second;
  Entry& e = entries_[name];
  riffle_session_file* const file = open_file(name);
  if (!file) return e;
  size_t n = 0;
  riffle_session_file_tokens(file, nullptr, 0, &n);
  e.tokens.resize(n);
  riffle_session_file_tokens(file, e.tokens.data(), n, &n);
  riffle_session_file_free(file);
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
    if (e.bad || e.tokens.size() > riffle_context_length(context_)) continue;
    if (const size_t n = in_common(prompt, e.tokens); n > best.n_tokens) best = {name, n};
  }
  return best;
}

riffle_session_file* PrefixCache::find(std::span<const int32_t> prompt, size_t n_shared,
                                       std::string& name) {
  riffle_session_file_free(std::exchange(file_, nullptr));
  if (prompt.size() <= kMinTokens) return nullptr;
  for (;;) {
    const Best b = best(prompt);
    if (b.n_tokens < kMinTokens) return nullptr;
    folder_.touch(b.name);
    if (std::min(b.n_tokens, prompt.size() - 1) < n_shared + kMinTokens) return nullptr;
    file_ = open_file(b.name);
    if (file_) {
      name = b.name;
      return file_;
    }
    if (!entries_[b.name].bad) entries_.erase(b.name);  // removed in the meantime
  }
}

// Estimates the size of a file, most of which is KV.
uint64_t PrefixCache::file_bytes(size_t n_tokens) const {
  Options o = options_;
  o.set("ctx", static_cast<uint64_t>(n_tokens));
  o.set("sessions", 1);
  return static_cast<uint64_t>(plan_of(model_, o).count("host_kv"));  // set even if it does not fit
}

void PrefixCache::keep(riffle_session* session, size_t reuse_unit, std::span<const int32_t> prompt,
                       size_t shared) {
  if (!saving_ || shared < kMinTokens) return;
  size_t n_tokens = shared;
  for (size_t reached; n_tokens > 0; n_tokens = reached - reached % reuse_unit) {
    reached = riffle_session_reach(session, n_tokens);
    if (reached == n_tokens && n_tokens % reuse_unit == 0) break;
  }
  if (n_tokens < kMinTokens || n_tokens < best(prompt).n_tokens + kMinTokens) return;
  const std::span<const int32_t> tokens = prompt.first(n_tokens);
  const std::string name = PrefixFolder::name_of(group_of(tokens), hash_of(tokens, fingerprint_));
  if (const uint64_t bytes = file_bytes(n_tokens); !folder_.holds(bytes))
    return say_once(said_large_,
                    text_of("a prefix of %zu tokens takes %s, more than --prefix-cache-size allows",
                            n_tokens, human_bytes(static_cast<double>(bytes)).c_str()));
  if (const auto at = entries_.find(name); at != entries_.end() && at->second.bad)
    folder_.remove(name);
  Options o;
  o.set_progress(go_on, nullptr);
  const riffle_status status = riffle_session_save(session, folder_.path_of(name).c_str(), n_tokens,
                                                   nullptr, 0, nullptr, o.get());
  if (status == RIFFLE_OK) {
    entries_[name] = {{tokens.begin(), tokens.end()}, false};
    folder_.evict(name);
    ++saved_;
    saved_tokens_ += tokens.size();
  } else if (status != RIFFLE_ABORTED) {
    saving_ = false;
    say_once(said_failed_, std::string("prefix cache: ") + riffle_context_error(context_) +
                               "; nothing more is saved in this run");
  }
}

}  // namespace riffle::cli
