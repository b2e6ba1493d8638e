#include "cli/session.h"

#include <nlohmann/json.hpp>

namespace riffle::cli {

namespace {

// The format of what is kept beside a session.
constexpr int kFormat = 1;

std::string packed(const SavedText& t) {
  Json out = {{"riffle", kFormat}, {"kind", t.chat ? "chat" : "document"}};
  if (t.chat) {
    Json messages = Json::array();
    for (const Message& m : t.messages)
      messages.push_back(
          {{"role", m.role}, {"content", m.content}, {"reasoning_content", m.reasoning}});
    out["messages"] = messages;
  } else {
    out["message"] = t.message;
    out["system"] = t.system;
  }
  out["document"] = t.document;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

SavedText unpacked(const std::string& path, const riffle_session_file_info& info) {
  const auto other = [&](const char* found) {
    return Exit(EXIT_RUN, path + ": found " + found +
                              " beside the session, expected a document of riffle read or a chat");
  };
  if (info.data_size == 0) throw other("nothing");
  const auto* data = static_cast<const char*>(info.data);
  const Json json = Json::parse(data, data + info.data_size, nullptr, false);
  SavedText t;
  try {
    if (json.at("riffle") != kFormat) throw other("the text of a newer riffle");
    t.chat = json.at("kind") == "chat";
    t.document = json.at("document");
    if (t.chat)
      for (const Json& m : json.at("messages"))
        t.messages.push_back({m.at("role"), m.at("content"), m.at("reasoning_content")});
    else t.message = json.at("message"), t.system = json.at("system");
  } catch (const Json::exception&) {
    throw other("something else");
  }
  return t;
}

}  // namespace

SessionFile::SessionFile(const std::string& path) : path_(path) {
  char err[1024] = "";
  const riffle_status status = riffle_session_file_open(path.c_str(), &file_, err, sizeof err);
  if (status != RIFFLE_OK) throw Exit(exit_code_of(status), err);
  try {
    text_ = unpacked(path, info());
  } catch (...) {
    riffle_session_file_free(file_);
    throw;
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
