#include "cli/session.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "cli/text_file.h"

namespace riffle::cli {
namespace {

// Returns "a folder" or "a GGUF file" if the path is one, else "".
std::string found_model(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return "a folder";
  return beginning_of(path, 4) == "GGUF" ? "a GGUF file" : "";
}

// Returns whether riffle_session_load refused the file because it is of another model.
bool is_of_other_model(const std::string& error) {
  return error.find(": model: found ") != error.npos ||
         error.find(": weights: found ") != error.npos ||
         error.find(": tokenizer: found ") != error.npos;
}

}  // namespace

SessionFile::SessionFile(const std::string& path) : path_(path) {
  char err[1024] = "";
  const riffle_status status = riffle_session_file_open(path.c_str(), &file_, err, sizeof err);
  if (status == RIFFLE_OK) return;
  if (is_lfs_pointer(beginning_of(path, 1024)))
    throw Exit(exit_code_of(status), lfs_complaint(path));
  const std::string model = found_model(path);
  if (model.empty()) throw Exit(exit_code_of(status), err);
  throw Exit(
      exit_code_of(status),
      path + ": found " + model + ", expected a session of riffle; -m " + path + " gives a model");
}

const SavedText& SessionFile::text() const {
  if (!text_) {
    size_t size = 0;
    const void* const data = riffle_session_file_data(file_, &size);
    text_ = unpacked(path_, {static_cast<const char*>(data), size});
  }
  return *text_;
}

bool SessionFile::has_text() const {
  try {
    text();
    return true;
  } catch (const Exit&) {
    return false;
  }
}

std::string SessionFile::holds() const {
  if (!has_text()) return "a session";
  const SavedText& t = text();
  if (!t.chat)
    return "a document of " + human_bytes(static_cast<double>(t.document.size())) +
           (t.all_tokens ? text_of(", %zu of its %zu tokens read",
                                   static_cast<size_t>(info().count("n_tokens")), t.all_tokens)
                         : "");
  const size_t n = t.messages.size();
  return text_of("a chat of %zu message%s", n, n == 1 ? "" : "s");
}

std::vector<int32_t> SessionFile::tokens() const {
  auto n = static_cast<size_t>(info().count("n_tokens"));
  std::vector<int32_t> tokens(n);
  riffle_session_file_tokens(file_, tokens.data(), n, &n);
  return tokens;
}

void say_read_again(const std::string& path, const std::vector<int32_t>& held, size_t expected,
                    const riffle_session* session, const std::vector<int32_t>& prompt, bool quiet) {
  // The first letters of a question may form a token with the last ones of a document, and the
  // question replaces the text that a chat template puts after a document.
  constexpr size_t kFew = 32;
  const size_t most = std::min(held.size(), prompt.size());
  const size_t same =
      std::mismatch(held.begin(), held.begin() + most, prompt.begin()).first - held.begin();
  const size_t kept = riffle_session_reach(session, same);
  if (kept + kFew >= std::min(expected, held.size())) return;
  notice(quiet,
         "[%s: %zu of its %zu tokens are read again: the prompt differs after %zu tokens, as with "
         "another chat template, system message or date]",
         path.c_str(), held.size() - kept, held.size(), same);
}

std::string date_text(int64_t seconds) {
  const std::time_t t = seconds;
  std::tm local{};
  char text[64];
  if (!localtime_r(&t, &local)) return "an unknown date";
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

Session SessionFile::load(riffle_context* context, bool quiet) const {
  if (const Facts i = info(); i.on("newest_damaged"))
    notice(quiet, "[%s: the newest save is damaged; the one before, of %s, is used]", path_.c_str(),
           date_text(i.count("saved")).c_str());
  Progress progress("loading " + path_, quiet);
  riffle_session* session = nullptr;
  const riffle_status status =
      riffle_session_load(context, file_, &session, Progress::callback, &progress);
  const std::string error = status == RIFFLE_OK ? "" : riffle_context_error(context);
  if (status == RIFFLE_UNSUPPORTED && is_of_other_model(error))
    throw Exit(exit_code_of(status), error + "; give the model of the session with -m");
  check(status, context);
  return Session(session);
}

std::string named_file(const std::string& name) {
  return name.empty() ? "found an empty name, expected that of a file" : "";
}

void check_session_target(const std::string& path) {
  char err[1024] = "";
  const riffle_status status = riffle_session_check_path(path.c_str(), err, sizeof err);
  if (status != RIFFLE_OK) throw Exit(exit_code_of(status), err);
}

void check_document_target(const std::string& path) {
  check_session_target(path);
  if (is_new_file(path)) return;
  try {
    const SessionFile file(path);
    if (file.has_text() && !file.text().chat) return;
  } catch (const Exit&) {
    // not_replaced reports the problem of the file.
  }
  throw not_replaced(EXIT_USAGE, path, "a new file or a document of riffle read");
}

bool is_new_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return error || size == 0;
}

Exit not_replaced(int code, const std::string& path, const std::string& expected) {
  std::string found;
  try {
    found = path + ": found " + SessionFile(path).holds() + ", expected " + expected;
  } catch (const Exit& e) {
    found = e.what();
  }
  return Exit(code, found + "; remove the file, or use another name");
}

bool save_session(riffle_context* context, riffle_session* session, const std::string& path,
                  const SavedText& text, bool quiet, uint64_t* save_id) {
  const std::string data = packed(text);
  Progress progress("saving " + path, quiet);
  Options o;
  o.set_progress(Progress::callback, &progress);
  const riffle_status status =
      riffle_session_save(session, path.c_str(), 0, data.data(), data.size(), save_id, o.get());
  if (status == RIFFLE_FILE_CHANGED) return false;
  if (status == RIFFLE_ABORTED && interrupted())
    throw Exit(EXIT_INTERRUPTED, "stopped: " + path + " is not saved");
  check(status, context);
  return true;
}

}  // namespace riffle::cli
