#include "cli/conversation.h"

#include <ctime>
#include <new>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/text_file.h"

namespace riffle::cli {
namespace {

Json message_json(const Message& m) {
  check_no_nul("the message", m.content);
  for (const std::string* text : {&m.content, &m.reasoning})
    if (const int64_t at = riffle_utf8_error(text->data(), text->size()); at >= 0)
      throw Exit(EXIT_RUN, text_of("the message is not UTF-8: invalid sequence at byte %lld",
                                   static_cast<long long>(at)));
  Json json = {{"role", m.role}, {"content", m.content}};
  if (!m.reasoning.empty()) json["reasoning_content"] = m.reasoning;
  if (!m.call_id.empty()) json["tool_call_id"] = m.call_id;
  if (m.calls.empty()) return json;
  if (m.content.empty()) json["content"] = nullptr;
  for (const ToolCall& call : m.calls)
    json["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return json;
}

// Returns the body of a request. The user's tool_choice applies only to answers to a question. If
// it also applied after a result, a model that must call a tool would never answer.
std::string body_of(const std::vector<Message>& messages, const Tools& tools) {
  Json list = Json::array();
  for (const Message& m : messages) list.push_back(message_json(m));
  std::string body = "{\"messages\":" + dump(list);
  if (!tools.list.empty()) {
    body += ",\"tools\":" + tools.list;
    const bool result = !messages.empty() && messages.back().role == "tool";
    if (!tools.choice.empty() && !result) body += ",\"tool_choice\":" + tools.choice;
    if (!tools.parallel.empty()) body += ",\"parallel_tool_calls\":" + tools.parallel;
  }
  return body + "}";
}

Exit refusal(const riffle_request* request, riffle_status status, const Tools& tools) {
  const std::string param = Facts(riffle_request_refusal(request)).text("param");
  const bool of_tools = param.starts_with("tool") || param.starts_with("parallel_tool_calls");
  return {exit_code_of(status), (of_tools ? tools.name + ": " : "") + refusal_text(request)};
}

}  // namespace

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

Options conversation_options(const Thinking& thinking, const Options& answer) {
  Options options = answer;
  options.set("thinking", thinking.enabled);
  options.set("reasoning-effort", thinking.effort ? thinking.effort : "");
  options.set("date", today());
  return options;
}

ChatPrompt chat_prompt(riffle_model* model, const std::vector<Message>& messages,
                       const Thinking& thinking, const Options& answer, const Tools& tools) {
  const Options options = conversation_options(thinking, answer);
  const std::string body = body_of(messages, tools);
  riffle_request* made = nullptr;
  riffle_status status = riffle_request_create(RIFFLE_REQUEST_CHAT, body.data(), body.size(),
                                               options.get(), 0, &made, nullptr, 0);
  ChatPrompt prompt;
  prompt.request.reset(made);
  if (!made) throw std::bad_alloc();
  if (status == RIFFLE_OK) status = riffle_request_prepare(made, model, nullptr, 0);
  if (status != RIFFLE_OK) throw refusal(made, status, tools);
  size_t n = 0;
  const int32_t* const tokens = riffle_request_tokens(made, 0, &n);
  prompt.tokens.assign(tokens, tokens + n);
  prompt.fitted = Facts(riffle_request_info(made)).text("fitted");
  return prompt;
}

std::vector<int32_t> chat_tokens(riffle_model* model, const std::vector<Message>& messages) {
  return chat_prompt(model, messages, {}).tokens;
}

std::string refusal_text(const riffle_request* request) {
  std::string text = Facts(riffle_request_refusal(request)).text("message");
  for (size_t at = text.find("body."); at != text.npos; at = text.find("body.", at))
    text.erase(at, 5);
  return text;
}

const char* fitted_text(const std::string& fitted) {
  if (fitted == "joined")
    return "messages of the same role in a row were joined; the model's chat template requires "
           "alternating roles";
  if (fitted == "moved")
    return "system messages became user messages; the model's chat template does not take them";
  return "";
}

}  // namespace riffle::cli
