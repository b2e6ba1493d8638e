// Saves a session: into a new file, or by appending to a file that already holds a part of it
// (README.md, Files).
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kv/file/session_file.h"
#include "kv/host_kv.h"
#include "util/thread_pool.h"

namespace riffle {

struct SessionToSave {
  SessionOrigin origin;
  const SequenceKv* kv = nullptr;   // the host store has its newest bytes
  Marks marks;                      // up to the end of tokens
  std::span<const int32_t> tokens;  // the sequence's tokens, or the first of them
  std::span<const float> logits;    // or none
  std::string state_kind, state;    // a selector's; "": none
  std::string_view data;            // the caller's
};

// Throws the errors that save_session would throw because of this path: RIFFLE_BAD_ARGUMENT if it
// names something other than a session, RIFFLE_IO if its folder is missing or cannot be written to.
void check_session_path(const std::string& path);

// Bytes done and in all; false stops.
using SaveProgress = std::function<bool(double done, double total)>;

// before: a file that holds the first `unchanged` tokens in their present state; null: none. If
// path names it, no other save has followed, and little of it is out of date, only new data is
// appended. Else a new file takes the name path, which may be that of another session. A save that
// fails, or is interrupted at any moment, leaves path as it was. Returns the file as saved, or null
// if another program has saved to path since. save_id (may be null): in: the expected
// save_id_at(path); out: the id of this save. A missing file passes this check. Throws
// RIFFLE_FILE_CHANGED if path has another save, RIFFLE_IO, RIFFLE_ABORTED; RIFFLE_BAD_ARGUMENT if
// path names something other than a session.
std::shared_ptr<const SessionFile> save_session(const std::string& path,
                                                const SessionToSave& session,
                                                const SessionFile* before, int64_t unchanged,
                                                ThreadPool& threads, const SaveProgress& progress,
                                                uint64_t* save_id);

}  // namespace riffle
