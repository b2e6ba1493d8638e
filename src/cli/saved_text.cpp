#include "cli/saved_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace riffle::cli {

namespace {

// Formats of the data that is kept with a session. Only a chat with tools has the newer one, so
// that earlier versions of riffle, which would drop its calls, refuse it.
constexpr int kFormat = 1, kToolsFormat = 2;

bool has_tools(const SavedText& t) {
  return !t.tools.list.empty() ||
         std::any_of(t.messages.begin(), t.messages.end(),
                     [](const Message& m) { return !m.calls.empty() || !m.call_id.empty(); });
}

Json packed_message(const Message& m, bool tools) {
  Json json = {{"role", m.role}, {"content", m.content}, {"reasoning_content", m.reasoning}};
  if (!tools) return json;
  json["tool_call_id"] = m.call_id;
  json["tool_calls"] = Json::array();
  for (const ToolCall& call : m.calls)
    json["tool_calls"].push_back(
        {{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
  return json;
}

Message unpacked_message(const Json& json, bool tools) {
  Message m{json.at("role"), json.at("content"), json.at("reasoning_content")};
  if (!tools) return m;
  m.call_id = json.at("tool_call_id");
  for (const Json& call : json.at("tool_calls"))
    m.calls.push_back({call.at("id"), call.at("name"), call.at("arguments")});
  return m;
}

}  // namespace

std::string packed(const SavedText& t) {
  const bool tools = t.chat && has_tools(t);
  Json out = {{"riffle", tools ? kToolsFormat : kFormat}, {"kind", t.chat ? "chat" : "document"}};
  if (t.chat) {
    Json messages = Json::array();
    for (const Message& m : t.messages) messages.push_back(packed_message(m, tools));
    out["messages"] = messages;
    if (tools) {
      const auto value = [](const std::string& json) {
        return json.empty() ? Json(nullptr) : Json::parse(json);
      };
      out["tools"] = {{"list", value(t.tools.list)},
                      {"choice", value(t.tools.choice)},
                      {"parallel", value(t.tools.parallel)}};
    }
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
    const bool tools = json.at("riffle") == kToolsFormat;
    if (!tools && json.at("riffle") != kFormat) throw other("the text of a newer riffle");
    t.chat = json.at("kind") == "chat";
    t.document = json.at("document");
    if (t.chat) {
      for (const Json& m : json.at("messages")) t.messages.push_back(unpacked_message(m, tools));
      const auto value = [&](const char* name) {
        const Json& member = json.at("tools").at(name);
        return member.is_null() ? "" : dump(member);
      };
      if (tools) t.tools = {path, value("list"), value("choice"), value("parallel")};
    } else {
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
