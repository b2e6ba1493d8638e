// Saving sessions to disk and loading them, where both must work.
#pragma once
#include <filesystem>
#include <random>

#include "tests/engine/test_model.h"
#include "tests/engine/window_model.h"

namespace riffle::test {

// An open session file; whether it could be opened is in `status`.
struct SessionFile {
  riffle_session_file* handle = nullptr;
  char err[512] = "";
  riffle_status status;

  explicit SessionFile(const std::string& path)
      : status(riffle_session_file_open(path.c_str(), &handle, err, sizeof err)) {}
  ~SessionFile() { riffle_session_file_free(handle); }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;
  double number(const char* name) const {
    return riffle_info_number(riffle_session_file_info(handle), name);
  }
  uint64_t save_id() const { return riffle_session_file_save_id(handle); }
  std::string data() const {
    size_t size = 0;
    const void* const bytes = riffle_session_file_data(handle, &size);
    return {static_cast<const char*>(bytes), size};
  }
};

inline void save(const Runtime& r, riffle_session* s, const std::string& path,
                 const std::string& data = "") {
  r.check(riffle_session_save(s, path.c_str(), 0, data.data(), data.size(), nullptr, nullptr));
}

inline riffle_session* load(Runtime& r, const std::string& path) {
  const SessionFile file(path);
  INFO(file.err);
  REQUIRE(file.status == RIFFLE_OK);
  r.sessions.push_back(nullptr);
  r.check(riffle_session_load(r.context, file.handle, &r.sessions.back(), nullptr, nullptr));
  return r.sessions.back();
}

inline riffle_session* fork_at(Runtime& r, riffle_session* s, size_t n) {
  r.sessions.push_back(nullptr);
  r.check(riffle_session_fork(s, n, &r.sessions.back()));
  return r.sessions.back();
}

// Both take the same steps, and a prompt.
inline void go_on_alike(Runtime& a, riffle_session* s, Runtime& b, riffle_session* t,
                        const std::vector<int32_t>& tokens) {
  REQUIRE(riffle_session_length(s) == riffle_session_length(t));
  if (riffle_logits(s)) CHECK(a.logits(s) == b.logits(t));
  else CHECK(riffle_logits(t) == nullptr);
  const size_t half = tokens.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    a.check(riffle_step(a.context, &s, &tokens[i], 1));
    b.check(riffle_step(b.context, &t, &tokens[i], 1));
    REQUIRE(a.logits(s) == b.logits(t));
  }
  for (const auto& [r, session] : {std::pair{&a, s}, {&b, t}})
    r->check(riffle_prefill(session, tokens.data(), half, nullptr, nullptr));
  CHECK(a.logits(s) == b.logits(t));
  for (size_t i = half; i < tokens.size(); ++i) {
    a.check(riffle_step(a.context, &s, &tokens[i], 1));
    b.check(riffle_step(b.context, &t, &tokens[i], 1));
    REQUIRE(a.logits(s) == b.logits(t));
  }
}

inline ContextOptions small(SelectorKind selector, DeviceKind device = DeviceKind::CPU) {
  ContextOptions o = sparse(selector);
  o.device = device;
  if (device == DeviceKind::EMU) o.slots = 400;
  o.selection.select_tokens = 60;
  o.selection.epsilon = 0.8f;
  return o;
}

// A session of turns, steps and cuts goes on in another context as it does in its own.
inline void check_saved_turns(const std::string& model, SelectorKind selector, DeviceKind device,
                              const std::string& path) {
  INFO(model << ", selector " << selector << ", device " << device);
  std::filesystem::remove(path);
  Runtime a(small(selector, device), model), b(small(selector, device), model);
  riffle_session* s = a.session();
  auto all = ids(0, 900);
  int at = 0;
  std::mt19937 random(5);
  for (int turn = 0; turn < 6; ++turn) {
    const int n = 20 + static_cast<int>(random() % 100);
    a.check(riffle_prefill(s, &all[at], n, nullptr, nullptr));
    at += n;
    for (int i = 0; i < 5; ++i) a.check(riffle_step(a.context, &s, &all[at++], 1));
    if (turn % 2) {
      const size_t cut = riffle_session_reach(s, riffle_session_length(s) - 20);
      a.check(riffle_session_truncate(s, cut));
    }
    save(a, s, path);
    riffle_session* t = load(b, path);
    CHECK(riffle_session_reach(t, riffle_session_length(t) - 10) ==
          riffle_session_reach(s, riffle_session_length(s) - 10));
    const int32_t token = all[at++];
    a.check(riffle_step(a.context, &s, &token, 1));
    b.check(riffle_step(b.context, &t, &token, 1));
    CHECK(a.logits(s) == b.logits(t));
  }
}

}  // namespace riffle::test
