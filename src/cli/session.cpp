#include "cli/session.h"

namespace riffle::cli {

SessionFile::SessionFile(const std::string& path) : path_(path) {
  char err[1024] = "";
  const riffle_status status = riffle_session_file_open(path.c_str(), &file_, err, sizeof err);
  if (status != RIFFLE_OK) throw Exit(exit_code_of(status), err);
}

const SavedText& SessionFile::text() const {
  if (!text_) {
    const riffle_session_file_info i = info();
    text_ = unpacked(path_, {static_cast<const char*>(i.data), i.data_size});
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

riffle_session_file_info SessionFile::info() const {
  riffle_session_file_info info{};
  info.struct_size = sizeof info;
  riffle_session_file_get_info(file_, &info);
  return info;
}

Session SessionFile::load(riffle_context* context, bool quiet) const {
  Progress progress("loading " + path_, quiet);
  riffle_session* session = nullptr;
  check(riffle_session_load(context, file_, &session, Progress::callback, &progress), context);
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

void save_session(riffle_context* context, riffle_session* session, const std::string& path,
                  const SavedText& text, bool quiet) {
  const std::string data = packed(text);
  Progress progress("saving " + path, quiet);
  riffle_save_options o;
  riffle_save_defaults(&o);
  o.data = data.data();
  o.data_size = data.size();
  o.progress = Progress::callback;
  o.progress_user = &progress;
  check(riffle_session_save(session, path.c_str(), &o), context);
}

}  // namespace riffle::cli
