// Sessions on disk as the commands use them: documents that were read once (riffle read), and
// chats.
#pragma once
#include <string>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

// What riffle keeps in a session's file beside the session.
struct SavedText {
  bool chat = false;          // else a document
  bool message = false;       // a document: the question about it is to be a user's message
  std::string document = {};  // of a chat: loaded, waiting for its question
  std::string system = {};    // of a document
  std::vector<Message> messages = {};  // of a chat
};

// A session's file, open for reading. Throws Exit.
class SessionFile {
 public:
  explicit SessionFile(const std::string& path);
  ~SessionFile() { riffle_session_file_free(file_); }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;

  const std::string& path() const { return path_; }
  riffle_session_file_info info() const;
  const SavedText& text() const { return text_; }
  Session load(riffle_context* context, bool quiet) const;

 private:
  std::string path_;
  riffle_session_file* file_ = nullptr;
  SavedText text_;
};

// Throws Exit.
void save_session(riffle_context* context, riffle_session* session, const std::string& path,
                  const SavedText& text, bool quiet);

}  // namespace riffle::cli
