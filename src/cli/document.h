// Documents that are read into a session's file: riffle read, and riffle run --session.
#pragma once
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/saved_text.h"

namespace riffle::cli {

// Returns the tokens with which the prompts of all questions about the document begin.
std::vector<int32_t> document_tokens(riffle_model* model, const SavedText& text,
                                     const Thinking& thinking);

// Returns whether both are the same document for the same kind of prompt.
bool is_same_document(const SavedText& a, const SavedText& b);

// After Ctrl-C: keeps the tokens of the document that the session holds, unless the file holds
// something else. Returns the kept document. Another Ctrl-C ends the process. n_tokens: number of
// tokens of the whole document.
std::string keep_begun(const std::string& path, SavedText text, riffle_context* context,
                       riffle_session* session, size_t n_tokens, bool quiet);

}  // namespace riffle::cli
