// Requests through the C interface: fields, refusals, chunks and responses, tools.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "api/api_handles.h"
#include "chat/chat_template.h"
#include "requests/calls/json_scan.h"
#include "riffle_grammar.h"
#include "riffle_request.h"
#include "riffle_text.h"
#include "tests/text/vocabulary.h"

using namespace riffle;
using nlohmann::json;

namespace {

struct FreeRequest {
  void operator()(riffle_request* r) const { riffle_request_free(r); }
};
using Request = std::unique_ptr<riffle_request, FreeRequest>;

Request created(const std::string& body, riffle_request_kind kind = RIFFLE_REQUEST_CHAT,
                const riffle_options* options = nullptr, uint32_t flags = 0) {
  riffle_request* r = nullptr;
  char err[1024];
  const riffle_status status =
      riffle_request_create(kind, body.data(), body.size(), options, flags, &r, err, sizeof err);
  REQUIRE(r);
  CHECK((status == RIFFLE_OK) == (riffle_request_refusal(r) == nullptr));
  if (status != RIFFLE_OK) CHECK(std::string(err) == riffle_request_error(r));
  return Request(r);
}

std::string refusal(const std::string& body, riffle_request_kind kind = RIFFLE_REQUEST_CHAT) {
  const Request r = created(body, kind);
  const riffle_info* const facts = riffle_request_refusal(r.get());
  if (!facts) return "";
  return std::string(riffle_info_text(facts, "param")) + "|" + riffle_info_text(facts, "code") +
         "|" + riffle_info_text(facts, "message");
}

const char* const kUser = R"("messages":[{"role":"user","content":"Hi"}])";
const char* const kTools =
    R"("tools":[{"type":"function","function":{"name":"get","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"},"n":{"type":"integer"}},"required":["n"]}}}])";

std::string with(const std::string& fields) {
  return "{" + std::string(kUser) + "," + fields + "}";
}

const char* const kHermes =
    "{%- if tools %}{{- '<|im_start|>system\n' }}{%- for t in tools %}{{- t | tojson }}{%- endfor "
    "%}"
    "{{- '<tool_call><|im_end|>\n' }}{%- endif %}{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}{%- for c in m.tool_calls or [] %}"
    "{{- '\n<tool_call>' ~ (c.function.arguments | tojson) ~ '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}{{- '<|im_start|>assistant\n' }}";

// The demo model, with another template if one is given; null, with a word, if it is not here.
struct FreeModel {
  void operator()(riffle_model* m) const { riffle_model_free(m); }
};
using LoadedModel = std::unique_ptr<riffle_model, FreeModel>;
LoadedModel demo_model(const char* chat_template) {
  const std::string path = riffle_test::demo_file("riffle-27m-32k-q8_0.gguf");
  riffle_model* model = nullptr;
  if (path.empty() || riffle_model_load(path.c_str(), nullptr, &model, nullptr, 0) != RIFFLE_OK) {
    WARN("SKIPPED: the demo model is not here");
    return nullptr;
  }
  if (chat_template)
    model->model->chat = std::make_unique<const ChatTemplate>(std::string_view(chat_template));
  return LoadedModel(model);
}

riffle_token token_of(int32_t id, const std::string& text) {
  return {id, text.c_str(), text.size(), -0.5f, nullptr, 0};
}

}  // namespace

TEST_CASE("facts of a request", "[requests]") {
  const Request r = created(with(R"("n":3,"stream":true,"stream_options":{"include_usage":true},)"
                                 R"("model":"m","user":"u","temperature":0.5,)" +
                                 std::string(kTools)));
  const riffle_info* const info = riffle_request_info(r.get());
  CHECK(riffle_info_number(info, "n_answers") == 3);
  CHECK(riffle_info_number(info, "stream") == 1);
  CHECK(riffle_info_number(info, "include_usage") == 1);
  CHECK(riffle_info_number(info, "n_tools") == 1);
  CHECK(riffle_info_text(info, "model") == std::string("m"));
  CHECK(riffle_info_text(info, "ignored_0") == std::string("body.user"));
  CHECK(riffle_request_tokens(r.get(), 0, nullptr) == nullptr);
  CHECK(riffle_request_options(r.get(), 0) == nullptr);
}

TEST_CASE("a refusal names the field as OpenAI does", "[requests]") {
  CHECK(refusal(with(R"("temperature":200)")) ==
        "temperature|invalid_value|field body.temperature is 200, expected a number, 0 to 100");
  CHECK(refusal(with(R"("tempature":1)")) ==
        "tempature|unknown_parameter|field body.\"tempature\" is not supported");
  CHECK(refusal("{}") ==
        "messages|missing_required_parameter|fields body.prompt and body.messages are missing, "
        "expected one of them");
  CHECK(refusal(R"({"messages":[{"content":"a"}]})") ==
        "messages[0].role|missing_required_parameter|field body.messages[0].role is missing");
  CHECK(refusal(R"({"prompt":"a"})") ==
        "prompt|invalid_value|field body.prompt is given, expected body.messages for a chat "
        "completion");
  CHECK(refusal("{" + std::string(kUser) + "}", RIFFLE_REQUEST_COMPLETION) ==
        "messages|invalid_value|field body.messages is given, expected body.prompt for a "
        "completion");
  CHECK(refusal("[") == "||found the end of the text at byte 2, expected JSON");
  CHECK(refusal("{\"a\":1,\"a\":2}") ==
        "||field \"a\": found the key \"a\" twice in one object, expected it once");
  CHECK(refusal("{\"a\":{\"b\":1e999}}") ==
        "||field \"a.b\": found the number 1e999, expected a number from -1.8e308 to 1.8e308");
  CHECK(refusal("[]") == "||the text is a JSON array, expected an object");
  CHECK(refusal("{\"a\":\"\xff\"}") == "||byte 7 is not valid UTF-8");
  CHECK(refusal(std::string(1000, '[')) ==
        "||the text is nested deeper than 128 levels, expected 128 at most");
  CHECK(refusal(with(R"("functions":[{"name":"f"}])"))
            .starts_with("functions|unsupported_value|field body.functions is "));
}

TEST_CASE("fields of tools are checked", "[requests]") {
  const auto tools = [](const std::string& fields) { return refusal(with(fields)); };
  const std::string all = kTools;
  CHECK(tools(all).empty());
  CHECK(tools(all + R"(,"tool_choice":"required","parallel_tool_calls":false)").empty());
  CHECK(tools(all + R"(,"tool_choice":{"type":"function","function":{"name":"get"}})").empty());
  CHECK(tools(all + R"(,"tool_choice":{"type":"function","function":{"name":"set"}})") ==
        "tool_choice|invalid_value|field body.tool_choice.function.name is \"set\", expected the "
        "name of a tool");
  CHECK(tools(R"("tool_choice":"required")") ==
        "tools|missing_required_parameter|field body.tools is missing, expected tools with this "
        "body.tool_choice");
  CHECK(tools(R"("tools":[],"tool_choice":"required")") ==
        "tools|missing_required_parameter|field body.tools is an empty list, expected tools with "
        "this body.tool_choice");
  CHECK(tools(R"("tools":[{"type":"function"}])") ==
        "tools[0].function|missing_required_parameter|field body.tools[0].function is missing");
  CHECK(tools(R"("tools":[{"type":"function","function":{"name":"a b"}}])") ==
        "tools[0].function.name|invalid_value|field body.tools[0].function.name is \"a b\", "
        "expected 1 to 64 letters, digits, _ - and .");
  const auto messages = [](const std::string& more) {
    return refusal(R"({"messages":[{"role":"user","content":"a"},)" + more + "]}");
  };
  const std::string call =
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":)";
  CHECK(messages(call + R"({"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1",)"
                        R"("content":"x"})")
            .empty());
  CHECK(messages(call + R"({"name":"f","arguments":"{}"}}]})")
            .starts_with("messages[1].tool_calls|invalid_value|"));
  CHECK(messages(call + R"({"name":"f","arguments":"{"}}]},{"role":"user","content":"x"})") ==
        "messages[1].tool_calls[0].function.arguments|invalid_value|field body.messages[1]."
        "tool_calls[0].function.arguments: found the end of the text at byte 2, expected JSON");
  CHECK(messages(call + R"({"name":"f","arguments":"{\"a\":1,\"a\":2}"}}]},)"
                        R"({"role":"user","content":"x"})") ==
        "messages[1].tool_calls[0].function.arguments|invalid_value|field body.messages[1]."
        "tool_calls[0].function.arguments: found the key \"a\" twice in one object, expected it "
        "once");
  CHECK(messages(call + R"({"name":"f","arguments":")" + std::string(200, '[') +
                 R"("}}]},{"role":"user","content":"x"})") ==
        "messages[1].tool_calls[0].function.arguments|invalid_value|field body.messages[1]."
        "tool_calls[0].function.arguments: found values nested deeper than 128 levels, expected at "
        "most 128");
  CHECK(messages(R"({"role":"assistant","content":null})") ==
        "messages[1].content|invalid_value|field body.messages[1].content is null, expected a "
        "string or a list of parts of type text");
}

TEST_CASE("chunks of a stream add up to the response", "[requests]") {
  const LoadedModel model = demo_model(kHermes);
  if (!model) return;
  const Request r = created(with(R"("stream":true,"stream_options":{"include_usage":true},)"
                                 R"("logprobs":true,)" +
                                 std::string(kTools)));
  char err[1024] = "";
  REQUIRE(riffle_request_prepare(r.get(), model.get(), err, sizeof err) == RIFFLE_OK);
  size_t n = 0;
  const int32_t* const tokens = riffle_request_tokens(r.get(), 0, &n);
  REQUIRE(tokens);
  std::string prompt(4 * n + 4096, '\0');
  size_t length = 0;
  REQUIRE(riffle_detokenize(model.get(), tokens, n, prompt.data(), prompt.size(), &length) ==
          RIFFLE_OK);
  CHECK(prompt.substr(0, length).find("\"required\": [\"n\"]") != std::string::npos);
  REQUIRE(riffle_request_set_names(r.get(), "demo", nullptr) == RIFFLE_OK);

  std::string content, name, arguments, finish;
  size_t logprobs = 0, chunks = 0;
  const auto take = [&](const riffle_json& chunk) {
    if (!chunk.data) return;
    ++chunks;
    const json j = json::parse(std::string(chunk.data, chunk.len));
    CHECK(j["object"] == "chat.completion.chunk");
    CHECK(j["model"] == "demo");
    CHECK(j["usage"].is_null());
    const json& choice = j["choices"][0];
    if (chunks == 1) CHECK(choice["delta"]["role"] == "assistant");
    content += choice["delta"].value("content", "");
    if (choice["delta"].contains("tool_calls"))
      for (const json& call : choice["delta"]["tool_calls"]) {
        CHECK(call["index"] == 0);
        name += call["function"].value("name", "");
        arguments += call["function"].value("arguments", "");
      }
    if (!choice["logprobs"].is_null()) logprobs += choice["logprobs"]["content"].size();
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  };
  const char* const parts[] = {"I",           " look.",
                               "\n<tool",     "_call>\n{\"name\"",
                               ": \"get\", ", "\"arguments\": {\"n\"",
                               ": 7}",        "}\n</tool_call>"};
  riffle_json chunk{};
  std::string added;  // by riffle_request_part
  const auto take_part = [&] {
    riffle_answer_part part{};
    REQUIRE(riffle_request_part(r.get(), &part) == RIFFLE_OK);
    CHECK(part.reasoning_len == 0);
    added.append(part.content, part.content_len);
  };
  for (const char* const part : parts) {
    const std::string text = part;
    const riffle_token token = token_of(300, text);
    REQUIRE(riffle_request_token(r.get(), 0, &token, &chunk) == RIFFLE_OK);
    take(chunk);
    take_part();
  }
  CHECK(riffle_request_usage(r.get(), &chunk) == RIFFLE_OK);
  CHECK(chunk.data == nullptr);
  riffle_json body{};
  CHECK(riffle_request_response(r.get(), &body) == RIFFLE_BAD_ARGUMENT);
  const riffle_result result{RIFFLE_FINISH_STOP, 9};
  REQUIRE(riffle_request_end(r.get(), 0, &result, 5, &chunk) == RIFFLE_OK);
  take(chunk);
  take_part();
  CHECK(content == "I look.");
  CHECK(added == content);
  CHECK(name == "get");
  CHECK(arguments == "{\"n\": 7}");
  CHECK(finish == "tool_calls");
  CHECK(logprobs == std::size(parts));
  REQUIRE(riffle_request_usage(r.get(), &chunk) == RIFFLE_OK);
  const json usage = json::parse(std::string(chunk.data, chunk.len));
  CHECK(usage["choices"].empty());
  CHECK(usage["usage"]["completion_tokens"] == 9);
  CHECK(usage["usage"]["prompt_tokens"] == n);
  CHECK(usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 5);

  REQUIRE(riffle_request_response(r.get(), &body) == RIFFLE_OK);
  const json whole = json::parse(std::string(body.data, body.len));
  CHECK(whole["id"] == usage["id"]);
  const json& message = whole["choices"][0]["message"];
  CHECK(message["content"] == content);
  CHECK(message["tool_calls"][0]["function"]["arguments"] == arguments);
  CHECK(whole["choices"][0]["finish_reason"] == "tool_calls");
  riffle_tool_call call{};
  REQUIRE(riffle_request_call(r.get(), 0, 0, &call));
  CHECK(call.name == name);
  CHECK(call.id == message["tool_calls"][0]["id"]);
  CHECK(*call.error == '\0');
  CHECK_FALSE(riffle_request_call(r.get(), 0, 1, &call));
}

TEST_CASE("a broken call is in the answer", "[requests]") {
  const LoadedModel model = demo_model(kHermes);
  if (!model) return;
  const Request r = created(with(kTools));
  REQUIRE(riffle_request_prepare(r.get(), model.get(), nullptr, 0) == RIFFLE_OK);
  const std::string text = "<tool_call>{\"name\": \"get\", \"arguments\": {\"n\": }}</tool_call>";
  const riffle_token token = token_of(300, text);
  REQUIRE(riffle_request_token(r.get(), 0, &token, nullptr) == RIFFLE_OK);
  const riffle_result result{RIFFLE_FINISH_STOP, 9};
  REQUIRE(riffle_request_end(r.get(), 0, &result, 0, nullptr) == RIFFLE_OK);
  riffle_json body{};
  REQUIRE(riffle_request_response(r.get(), &body) == RIFFLE_OK);
  const json choice = json::parse(std::string(body.data, body.len))["choices"][0];
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["tool_error"] ==
        "tool_calls[0]: byte 48 of the call: arguments: byte 7 is not JSON");
  CHECK(choice["message"]["tool_calls"][0]["function"]["arguments"] == "{\"n\": }}");
}

namespace {

struct Drawn {
  riffle_request* request;
  bool whole = true;
};
bool on_token(void* user, size_t, const riffle_token* token) {
  auto* const drawn = static_cast<Drawn*>(user);
  drawn->whole = riffle_request_token(drawn->request, 0, token, nullptr) == RIFFLE_OK;
  return drawn->whole;
}

// Answers with the demo model, at temperature 1. Returns the answer's facts as JSON.
json answered(riffle_model* model, riffle_context* context, const std::string& body) {
  const Request r = created(body);
  char err[1024] = "";
  INFO(body);
  const riffle_status status = riffle_request_prepare(r.get(), model, err, sizeof err);
  INFO(err);
  REQUIRE(status == RIFFLE_OK);
  size_t n = 0;
  const int32_t* const tokens = riffle_request_tokens(r.get(), 0, &n);
  riffle_session* session = nullptr;
  REQUIRE(riffle_session_create(context, &session) == RIFFLE_OK);
  REQUIRE(riffle_prefill_to(session, tokens, n, nullptr, nullptr) == RIFFLE_OK);
  Drawn drawn{r.get()};
  riffle_result result{};
  const riffle_status generated =
      riffle_generate(session, riffle_request_options(r.get(), 0), on_token, &drawn, &result);
  INFO(riffle_context_error(context));
  CHECK(generated == RIFFLE_OK);
  CHECK(drawn.whole);
  riffle_session_free(session);
  REQUIRE(riffle_request_end(r.get(), 0, &result, 0, nullptr) == RIFFLE_OK);
  riffle_json response{};
  REQUIRE(riffle_request_response(r.get(), &response) == RIFFLE_OK);
  return json::parse(std::string(response.data, response.len))["choices"][0];
}

}  // namespace

TEST_CASE("an answer that must call does so, in the syntax of each format", "[requests]") {
  const LoadedModel model = demo_model(nullptr);
  if (!model) return;
  riffle_options* const o = riffle_options_create();
  riffle_options_set(o, "ctx", "2048");
  riffle_options_set(o, "threads", "1");
  riffle_options_set(o, "device", "cpu");
  riffle_context* context = nullptr;
  REQUIRE(riffle_context_create(model.get(), o, &context, nullptr, 0) == RIFFLE_OK);
  riffle_options_free(o);
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"get_weather",)"
      R"("parameters":{"type":"object",)"
      R"("properties":{"days":{"type":"integer","minimum":1,"maximum":9},)"
      R"("exact":{"type":"boolean"},"unit":{"type":"string","enum":["C","F"]},)"
      R"("note":{"type":"string","maxLength":8}},)"
      R"("required":["days","unit"]}}},{"type":"function","function":{"name":"stop"}}],)"
      R"("temperature":1,"max_tokens":500,"tool_choice":)";
  // Signs of the formats, as in a template.
  const char* const signs[] = {
      "<tool_call>",       "<tool_call> <function=", "<tool_call> <arg_key>",
      "[TOOL_CALLS]",      "[TOOL_CALLS] [ARGS]",    "<|start_header_id|> \"parameters\": ",
      "<|tool_call>call:", "<|tool_call_start|>"};
  for (const char* const sign : signs) {
    const std::string text = std::string("{% if tools %}{{ '") + sign +
                             "' }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    model->model->chat = std::make_unique<const ChatTemplate>(text);
    for (int seed = 0; seed < 4; ++seed) {
      const bool named = seed % 2 == 0;
      const std::string choice =
          named ? R"({"type":"function","function":{"name":"get_weather"}})" : R"("required")";
      const json answer = answered(
          model.get(), context,
          with(tools + choice + R"(,"parallel_tool_calls":false,"seed":)" + std::to_string(seed)));
      INFO(sign << " " << answer.dump());
      REQUIRE(answer["message"].contains("tool_calls"));
      CHECK(answer["finish_reason"] == "tool_calls");
      CHECK(answer["message"]["content"].is_null());
      REQUIRE(answer["message"]["tool_calls"].size() == 1);
      const json& function = answer["message"]["tool_calls"][0]["function"];
      if (named) CHECK(function["name"] == "get_weather");
      const json arguments = json::parse(std::string(function["arguments"]));
      if (function["name"] == "stop") {
        CHECK(arguments.empty());
        continue;
      }
      CHECK(arguments["days"].is_number_integer());
      CHECK((arguments["days"] >= 1 && arguments["days"] <= 9));
      CHECK((arguments["unit"] == "C" || arguments["unit"] == "F"));
      if (arguments.contains("exact")) CHECK(arguments["exact"].is_boolean());
      if (arguments.contains("note")) CHECK(arguments["note"].is_string());
    }
  }
  riffle_context_free(context);
}

TEST_CASE("free text is free up to a call, which follows its schema", "[requests]") {
  const LoadedModel model = demo_model(kHermes);
  if (!model) return;
  const auto matcher_of = [&](const std::string& more) {
    const Request r = created(with(kTools + more));
    REQUIRE(riffle_request_prepare(r.get(), model.get(), nullptr, 0) == RIFFLE_OK);
    const riffle_options* const options = riffle_request_options(r.get(), 0);
    REQUIRE(options->answer.grammar);
    return grammar::Matcher(options->answer.grammar->grammar, {});
  };
  const auto fits = [&](const std::string& text, const std::string& more = "") {
    grammar::Matcher m = matcher_of(more);
    return !m.accept(text) ? "no" : m.complete() ? "whole" : "begun";
  };
  const std::string call =
      "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 3}}\n</tool_call>";
  CHECK(fits("") == std::string("whole"));
  CHECK(fits("A <tool> of\n<tool_call is <<tool_cal") == std::string("whole"));
  CHECK(fits("Now <tool_call>") == std::string("begun"));
  CHECK(fits("Now <tool_call>x") == std::string("no"));
  CHECK(fits("Now\n" + call) == std::string("whole"));
  CHECK(fits(call + "\n" + call + " done <tool_") == std::string("whole"));
  CHECK(fits("<tool_call>\n{\"name\": \"set\"") == std::string("no"));
  CHECK(fits("<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": \"") == std::string("no"));
  CHECK(fits(call + call, R"(,"parallel_tool_calls":false)") == std::string("no"));
  CHECK(fits("", R"(,"tool_choice":"required")") == std::string("begun"));
  CHECK(fits("N", R"(,"tool_choice":"required")") == std::string("no"));
  CHECK(fits(call + "\n" + call, R"(,"tool_choice":"required")") == std::string("whole"));
  // With a schema for the answer: a call, or a text that fits.
  const std::string schema =
      R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}})";
  CHECK(fits("12", schema) == std::string("whole"));
  CHECK(fits(call, schema) == std::string("whole"));
  CHECK(fits("a", schema) == std::string("no"));
}

TEST_CASE("an answer of Llama 3 is constrained once it names a tool", "[requests]") {
  const LoadedModel model = demo_model(
      "{% if tools %}{{ tools | tojson }}<|start_header_id|>{\"parameters\": }{% endif %}"
      "{% for m in messages %}{{ m.content }}{% endfor %}");
  if (!model) return;
  const Request r = created(with(kTools));
  REQUIRE(riffle_request_prepare(r.get(), model.get(), nullptr, 0) == RIFFLE_OK);
  const riffle_options* const options = riffle_request_options(r.get(), 0);
  REQUIRE(options->answer.grammar);
  const auto fits = [&](const std::string& text) {
    grammar::Matcher m(options->answer.grammar->grammar, {});
    return !m.accept(text) ? "no" : m.complete() ? "whole" : "begun";
  };
  CHECK(fits("Hi {\"name\": \"get\"") == std::string("whole"));
  CHECK(fits("{\"name\": \"get\", \"parameters\": {\"n\": 3}}") == std::string("whole"));
  CHECK(fits("{\"name\": \"get\", \"parameters\": {\"n\": ") == std::string("begun"));
  CHECK(fits("{\"name\": \"get\", \"parameters\": {\"n\": \"") == std::string("no"));
}

TEST_CASE("tools that a model cannot have are refused", "[requests]") {
  const LoadedModel model = demo_model("{% for m in messages %}{{ m.content }}{% endfor %}");
  if (!model) return;
  const auto refused = [&](const std::string& body) {
    const Request r = created(body);
    char err[1024] = "";
    CHECK(riffle_request_prepare(r.get(), model.get(), err, sizeof err) == RIFFLE_UNSUPPORTED);
    CHECK(riffle_info_text(riffle_request_refusal(r.get()), "http_status") == nullptr);
    CHECK(riffle_info_number(riffle_request_refusal(r.get()), "http_status") == 400);
    return std::string(riffle_info_text(riffle_request_refusal(r.get()), "param")) + ": " + err;
  };
  CHECK(refused(with(kTools)) ==
        "tools: field body.tools is not supported: this model's chat template has no place for "
        "tools; use a model whose template has one, or leave tools out");
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"get"}})"})
    CHECK(refused(with(std::string(kTools) + R"(,"tool_choice":)" + choice)) ==
          "tools: field body.tools is not supported: this model's chat template has no place for "
          "tools; use a model whose template has one, or leave tools out");
  CHECK(
      refused(R"({"messages":[{"role":"user","content":"a"},{"role":"tool","content":"b"}]})") ==
      "messages[1].role: field body.messages[1].role is not supported: this model's chat "
      "template does not print calls of tools; use a model whose template does, or leave the calls "
      "and their results out");
  model->model->chat = std::make_unique<const ChatTemplate>(
      std::string_view("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"));
  CHECK(refused(with(kTools)) ==
        "tools: field body.tools is not supported: riffle does not know how this model writes "
        "calls of tools");
  model->model->chat = std::make_unique<const ChatTemplate>(std::string_view(
      "{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>{% for m in messages %}"
      "{{ m.content }}{% endfor %}"));
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 31; ++i) deep = R"({"type":"object","properties":{"a":)" + deep + "}}";
  const Request r = created(
      with(R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + deep + "}}]"));
  char err[1024] = "";
  CHECK(riffle_request_prepare(r.get(), model.get(), err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(err) ==
        "tools: found values nested deeper than 64 levels, expected at most that many");
}
