#include "cli/saved_text.h"

#include <nlohmann/json.hpp>

namespace riffle::cli {

// The format of the data that is kept with a session.
static constexpr int kFormat = 1;

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
    if (t.all_tokens) out["all_tokens"] = t.all_tokens;
  }
  out["document"] = t.document;
  return dump(out);
}

SavedText unpacked(const std::string& path, std::string_view data) {
  const auto other = [&](const char* found) {
    return Exit(EXIT_RUN, path + ": found " + found +
                              " next to the session, expected a document of riffle read or a chat");
  };
  if (data.empty()) throw other("nothing");
  const Json json = Json::parse(data.begin(), data.end(), nullptr, false);
  SavedText t;
  try {
    if (json.at("riffle") != kFormat) throw other("the text of a newer riffle");
    t.chat = json.at("kind") == "chat";
    t.document = json.at("document");
    if (t.chat)
      for (const Json& m : json.at("messages"))
        t.messages.push_back({m.at("role"), m.at("content"), m.at("reasoning_content")});
    else {
      t.message = json.at("message");
      t.system = json.at("system");
      t.all_tokens = json.value("all_tokens", size_t{0});
    }
  } catch (const Json::exception&) {
    throw other("something else");
  }
  return t;
}

}  // namespace riffle::cli
