// Data of riffle's command line in a session's file.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

struct SavedText {
  bool chat = false;          // else a document
  bool message = false;       // a document: the question about it is to be a user's message
  std::string document = {};  // the document; a chat's: loaded, waiting for its question
  std::string system = {};    // system message of a document
  // Number of tokens of a document, if the session holds only its beginning. 0: it holds all.
  size_t all_tokens = 0;
  std::vector<Message> messages = {};  // messages of a chat
};

std::string packed(const SavedText& text);
// data is hostile. Throws Exit, which names path.
SavedText unpacked(const std::string& path, std::string_view data);

}  // namespace riffle::cli
