#include "cli/chat_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/common.h"

namespace riffle::cli {
namespace {

// Checks the tools by the rules of requests. The library reads the file's own text, so that it
// also finds a field that is given twice. body: the members of a body without its messages.
void check_fields(const std::string& path, const std::string& body) {
  const std::string text = R"({"messages":[{"role":"user","content":"x"}],)" + body + "}";
  const Options options;
  riffle_request* made = nullptr;
  const riffle_status status = riffle_request_create(RIFFLE_REQUEST_CHAT, text.data(), text.size(),
                                                     options.get(), 0, &made, nullptr, 0);
  const RequestHandle request(made);
  if (!made) throw std::bad_alloc();
  if (status != RIFFLE_OK) throw Exit(EXIT_USAGE, path + ": " + refusal_text(made));
}

}  // namespace

Tools read_tools(const std::string& path) {
  const std::string text = read_file(path);
  Json json;
  try {
    json = parse_json(text);
  } catch (const std::runtime_error& e) {
    throw Exit(EXIT_USAGE, path + ": " + e.what());
  }
  Tools tools{.name = path};
  if (json.is_array()) {
    check_fields(path, "\"tools\":" + text);
    tools.list = dump(json);
  } else if (json.is_object() && json.contains("tools")) {
    for (const auto& [key, value] : json.items())
      if (key != "tools" && key != "tool_choice" && key != "parallel_tool_calls")
        throw Exit(EXIT_USAGE, path + ": found the field " + dump(key) +
                                   ", expected tools, tool_choice or parallel_tool_calls");
    const size_t first = text.find('{') + 1;
    check_fields(path, text.substr(first, text.rfind('}') - first));
    const auto member = [&](const char* name) {
      return json.contains(name) && !json[name].is_null() ? dump(json[name]) : "";
    };
    tools.list = member("tools");
    tools.choice = member("tool_choice");
    tools.parallel = member("parallel_tool_calls");
  } else {
    throw Exit(EXIT_USAGE, path + ": found " +
                               (json.is_object() ? "an object without the field tools"
                                                 : "a JSON " + std::string(json.type_name())) +
                               ", expected a list of tools, or an object with the field tools");
  }
  if (tools.list.empty() || tools.list == "[]")
    throw Exit(EXIT_USAGE, path + ": found no tools, expected one or more");
  return tools;
}

std::vector<ToolCall> waiting_calls(const std::vector<Message>& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(),
                                 [](const Message& m) { return m.role != "tool"; });
  if (last == messages.rend()) return {};
  std::vector<ToolCall> waiting = last->calls;
  for (auto m = messages.rbegin(); m != last; ++m)
    std::erase_if(waiting, [&](const ToolCall& call) { return call.id == m->call_id; });
  return waiting;
}

std::string names_of(const std::vector<ToolCall>& calls) {
  std::vector<std::string> names;
  for (const ToolCall& call : calls) names.push_back(call.name);
  return joined(names);
}

Message result_message(const std::vector<ToolCall>& waiting, const std::string& typed) {
  if (waiting.empty())
    throw Exit(
        EXIT_RUN,
        "/result: found no call without a result, expected an answer that calls a tool first");
  const size_t end = typed.find_first_of(kSpaces), text = typed.find_first_not_of(kSpaces, end);
  const std::string name = typed.substr(0, end);
  const auto call = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const ToolCall& one) { return one.name == name; });
  if (call == waiting.end())
    throw Exit(EXIT_RUN,
               "/result: found '" + name +
                   "', expected the name of a call without a result: " + names_of(waiting));
  if (end == typed.npos || text == typed.npos)
    throw Exit(EXIT_RUN, "/result " + name + ": found no result, expected /result NAME TEXT");
  return {.role = "tool", .content = typed.substr(text), .call_id = call->id};
}

std::vector<Message> answerable(std::vector<Message> messages) {
  while (!messages.empty() && messages.back().role != "user" &&
         !(messages.back().role == "tool" && waiting_calls(messages).empty()))
    messages.pop_back();
  return messages;
}

std::string call_line(const ToolCall& call) {
  std::string arguments = call.arguments;
  // Inside strings JSON has no line break, so this changes only white space between values.
  std::replace_if(
      arguments.begin(), arguments.end(),
      [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return "/call " + call.name + " " + arguments + "\n";
}

}  // namespace riffle::cli
