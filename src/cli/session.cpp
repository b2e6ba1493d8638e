#include "cli/session.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace riffle::cli {

namespace fs = std::filesystem;

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
  const auto expected = [&](const std::string& found) {
    return Exit(EXIT_RUN,
                path + ": found " + found + ", expected a session, or the name of a new file");
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) throw expected("a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) throw expected("a device or pipe");
  if (fs::exists(status)) {
    constexpr std::string_view kMagic = "RIFFLEKV";  // what a session begins with
    std::string begin(kMagic.size(), '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    if (file.gcount() > 0 && begin != kMagic) throw expected("another kind of file");
  }
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Exit(EXIT_RUN, text_of("%s: cannot write into the folder %s: %s", path.c_str(),
                                 folder.c_str(), std::strerror(errno)));
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
