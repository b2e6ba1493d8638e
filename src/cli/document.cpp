#include "cli/document.h"

#include "cli/prompt.h"
#include "cli/session.h"
#include "cli/text_file.h"

namespace riffle::cli {

std::vector<int32_t> document_tokens(riffle_model* model, const SavedText& t,
                                     const Thinking& thinking) {
  check_no_nul("the message", t.system);
  return document_tokens(model, t.document, t.system, t.message, conversation_options(thinking));
}

bool is_same_document(const SavedText& a, const SavedText& b) {
  return !a.chat && !b.chat && a.message == b.message && a.system == b.system &&
         a.document == b.document;
}

std::string keep_begun(const std::string& path, SavedText text, riffle_context* context,
                       riffle_session* session, size_t n_tokens, bool quiet) {
  const size_t read = riffle_session_length(session);
  bool ours = is_new_file(path);
  if (!ours) {
    const SessionFile file(path);
    // A whole document is never replaced, even if this model counts it in fewer tokens.
    ours = file.text().all_tokens != 0 && is_same_document(file.text(), text) &&
           file.info().count("n_tokens") <= static_cast<int64_t>(read);
  }
  if (read == 0 || !ours) return "nothing is saved in " + path;
  clear_interrupted();
  text.all_tokens = read < n_tokens ? n_tokens : 0;
  save_session(context, session, path, text, quiet);
  return text_of("%zu of %zu tokens are kept in %s; the same command continues from there", read,
                 n_tokens, path.c_str());
}

}  // namespace riffle::cli
