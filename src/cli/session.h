// Sessions on disk as the commands use them: documents that were read once (riffle read), and
// chats.
#pragma once
#include <optional>
#include <string>

#include "cli/common.h"
#include "cli/saved_text.h"
#include "riffle_session_file.h"

namespace riffle::cli {

// A session's file, open for reading. Throws Exit. text() also throws if the file has no text of
// riffle's command line, which files of other programs and of batch --prefix-cache lack.
class SessionFile {
 public:
  explicit SessionFile(const std::string& path);
  ~SessionFile() { riffle_session_file_free(file_); }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;

  const std::string& path() const { return path_; }
  Facts info() const { return Facts(riffle_session_file_info(file_)); }
  uint64_t save_id() const { return riffle_session_file_save_id(file_); }
  std::vector<int32_t> tokens() const;
  bool has_text() const;
  const SavedText& text() const;
  std::string holds() const;  // "a chat of 4 messages", "a document of 2.1 KiB" or "a session"
  Session load(riffle_context* context, bool quiet) const;

 private:
  std::string path_;
  riffle_session_file* file_ = nullptr;
  mutable std::optional<SavedText> text_;
};

// Called before a prompt is read into a loaded session. A notice says how many of the `held` tokens
// of its file are read again, and where the prompt differs. There is none if the prompt has the
// first `expected` of them, or all except the few that a following question may change.
void say_read_again(const std::string& path, const std::vector<int32_t>& held, size_t expected,
                    const riffle_session* session, const std::vector<int32_t>& prompt, bool quiet);

// Called before work whose result will be saved at path: throws Exit if save_session would fail.
void check_session_target(const std::string& path);
// The same for a document of riffle read: it replaces only such documents.
void check_document_target(const std::string& path);

// Tells whether save_session would make a new file at path or fill an empty one.
bool is_new_file(const std::string& path);
// Returns the error that refuses to replace the session at path.
Exit not_replaced(int code, const std::string& path, const std::string& expected);

// Returns seconds since 1970 as a date in the local time zone, or "an unknown date" if it is out of
// range, as it may be in a file.
std::string date_text(int64_t seconds);

// A check for flags: refuses an empty name, such as an unset variable of the shell gives.
std::string named_file(const std::string& name);

// Saves a session. save_id: as in riffle_session_save. Returns false if another session was saved
// to path. Throws Exit.
bool save_session(riffle_context* context, riffle_session* session, const std::string& path,
                  const SavedText& text, bool quiet, uint64_t* save_id = nullptr);

}  // namespace riffle::cli
