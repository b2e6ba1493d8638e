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
// riffle's, as files of other programs and of batch --prefix-cache do.
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

// Before a prompt is read into a session that was loaded: says how many of the `held` tokens of its
// file are read again, and where the prompt differs. Says nothing if the prompt has the first
// `expected` of them, or all except the few that a question after them may change.
void say_read_again(const std::string& path, const std::vector<int32_t>& held, size_t expected,
                    const riffle_session* session, const std::vector<int32_t>& prompt, bool quiet);

// Before work whose result save_session will keep at path: throws Exit if it could not.
void check_session_target(const std::string& path);
// The same for a document of riffle read: it replaces only such documents.
void check_document_target(const std::string& path);

// Tells whether save_session would make a new file at path, or fill an empty one.
bool is_new_file(const std::string& path);
// The refusal to replace the session at path.
Exit not_replaced(int code, const std::string& path, const std::string& expected);

// Seconds since 1970 as a date in the local time zone. "an unknown date" for years beyond all
// calendars, which a file may name.
std::string date_text(int64_t seconds);

// A check of CLI11: refuses an empty name, such as that of an unset variable of the shell.
std::string named_file(const std::string& name);

// save_id: as riffle_session_save takes it. False: others have saved to path. Throws Exit.
bool save_session(riffle_context* context, riffle_session* session, const std::string& path,
                  const SavedText& text, bool quiet, uint64_t* save_id = nullptr);

}  // namespace riffle::cli
