// Calls of tools as models of each family write them, cut anywhere.
#include <catch2/catch.hpp>

#include "requests/answer.h"
#include "requests/calls/formats.h"
#include "requests/calls/json_scan.h"
#include "util/json.h"

using namespace riffle;
using namespace riffle::requests;

namespace {

ToolUse tools() {
  ToolUse use;
  const Json list = parse_json(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},
      "units":{"type":"array","items":{"type":"string"}}},"required":["city"]}}},
    {"type":"function","function":{"name":"stop"}}])",
                               {.depth = 16, .values = 100});
  for (const Json& one : list.elements())
    use.tools.push_back({one.at_pointer("/function/name")->string(), one});
  return use;
}

// All that a parser says, as one text: content, name(arguments), and !error.
class Said : public CallSink {
 public:
  void content(std::string_view text) override {
    if (!in_content) said += "'";
    in_content = true;
    said += text;
  }
  void begin(std::string_view name) override { close(), said += std::string(name) + "("; }
  void arguments(std::string_view json) override { said += json; }
  void end() override { said += ")"; }
  void broken(const std::string& error) override {
    close();
    said += "!" + error;
  }
  void close() {
    if (std::exchange(in_content, false)) said += "'";
  }
  std::string said;
  bool in_content = false;
};

const CallFormat& format_named(const std::string& name) {
  for (const char* const sign :
       {"<|tool_call>call:", "<|tool_call_start|>", "<arg_key> <tool_call>",
        "<function= <tool_call>", "<tool_call>", "[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]",
        "'\"parameters\": ' <|start_header_id|>", "<|channel|>commentary functions."})
    if (const CallFormat* const format = call_format(sign); format && format->name == name)
      return *format;
  FAIL("no format " << name);
  std::abort();
}

std::string parsed(const std::string& format, const std::vector<std::string>& parts) {
  const ToolUse use = tools();
  const std::unique_ptr<CallParser> parser = format_named(format).parser(use);
  Said out;
  for (const std::string& part : parts) parser->put(part, &out);
  parser->finish(&out);
  out.close();
  return out.said;
}

// Checks the text as a whole, byte by byte, and cut in two at every place.
void check(const std::string& format, const std::string& text, const std::string& expected) {
  INFO(format << ": " << text);
  CHECK(parsed(format, {text}) == expected);
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  CHECK(parsed(format, bytes) == expected);
  size_t wrong = 0;
  for (size_t at = 1; at < text.size(); ++at)
    wrong += parsed(format, {text.substr(0, at), text.substr(at)}) != expected;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("calls as JSON between tags (Hermes, Qwen)", "[requests]") {
  check("hermes",
        "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo "
        "}\\\"\", \"days\": 2}}\n</tool_call>",
        "'Let me see.'get_weather({\"city\": \"Oslo }\\\"\", \"days\": 2})");
  check("hermes",
        "<tool_call>{\"arguments\":{\"city\":\"A\"},\"name\":\"get_weather\"}</tool_call>\n"
        "<tool_call>\n{\"name\": \"stop\"}\n</tool_call>\n done",
        "get_weather({\"city\":\"A\"})stop({})'done'");
  check("hermes", "a < b <tool> <tool_cal", "'a < b <tool> <tool_cal'");
  check("hermes", "no call \n", "'no call \n'");
  // The end marker is missing; arguments are a text; several calls in one pair of tags.
  check("hermes", "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}", "stop({})");
  check("hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        "stop({\"a\": 1})");
  check("hermes",
        "<tool_call>{\"name\":\"stop\"}\n{\"name\":\"stop\",\"arguments\":{}}</tool_call>",
        "stop({})stop({})");
}

TEST_CASE("a broken call loses no text and says where", "[requests]") {
  check("hermes", "x <tool_call>{\"nam\": 1}</tool_call> y",
        "'x<tool_call>{\"nam\": 1}'!byte 22 of the call: expected a name'</tool_call> y'");
  check("hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": }}\n</tool_call> y",
        "stop({\"a\": }}\n!byte 49 of the call: arguments: byte 7 is not JSON'y'");
  check("hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": [1",
        "stop({\"a\": [1!byte 50 of the call: the answer ended, expected the end of a value");
  // Behind the arguments, in a value that is not passed on until it ends, and behind a good call.
  check("hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {}, \"b\": z  \"q\"}</tool_call>",
        "stop({}, \"b\": z  \"q\"}!byte 54 of the call: expected a comma or the end of an object");
  check("hermes",
        "<tool_call>{\"name\": \"stop\", \"arguments\": {}}\n{\"nam\": 1, \"k\": 3}</tool_call>",
        "stop({})'{\"nam\": 1, \"k\": 3}'!byte 64 of the call: expected a name'</tool_call>'");
  check("lfm2", "<|tool_call_start|>[stop(), x]<|tool_call_end|>",
        "stop({})', '!byte 29 of the call: the answer ended, expected ('x]<|tool_call_end|>'");
  check("xml", "<tool_call><function=stop><parameter=n>\n123",
        "stop({\"n\": 123!byte 44 of the call: the answer ended, expected </parameter>");
  check("xml", "<tool_call><function=stop><parameter=n>\n\"a</parameter></function>",
        "stop({\"n\": \"a</parameter></function>!byte 66 of the call: the answer ended, expected "
        "</parameter>");
  check("glm", "<tool_call>stop<arg_key>n</arg_key><arg_value>12",
        "stop({\"n\": 12!byte 49 of the call: the answer ended, expected </arg_value>");
}

TEST_CASE("a parameter that is written twice breaks its call", "[requests]") {
  check("xml",
        "<tool_call><function=stop><parameter=n>1</parameter><parameter=n>2</parameter></function>"
        "</tool_call>",
        "stop({\"n\": 1<parameter=n>2</parameter></function>!byte 53 of the call: found the "
        "parameter \"n\" twice, expected it once");
  check("glm",
        "<tool_call>stop<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>n</arg_key>"
        "<arg_value>2</arg_value></tool_call>",
        "stop({\"n\": 1<arg_key>n</arg_key><arg_value>2</arg_value>!byte 60 of the call: found the "
        "parameter \"n\" twice, expected it once");
}

// A schema that allows members of any name cannot forbid that one comes twice.
TEST_CASE("a value may have a key twice, arguments may not", "[requests]") {
  check("xml",
        "<tool_call><function=stop><parameter=n>{\"a\": 1, \"a\": 2}</parameter></function>"
        "</tool_call>",
        "stop({\"n\": {\"a\": 1, \"a\": 2}})");
  check("hermes",
        "<tool_call>{\"name\": \"stop\", \"arguments\": {\"n\": {\"a\": 1, \"a\": 2}}}</tool_call>",
        "stop({\"n\": {\"a\": 1, \"a\": 2}})");
}

TEST_CASE("a value that does not begin as JSON has no strings that hide its end", "[requests]") {
  check("xml", "<tool_call><function=stop><parameter=n>a {\"b</parameter></function></tool_call>",
        "stop({\"n\": \"a {\\\"b\"})");
}

TEST_CASE("an end marker that is cut is no content", "[requests]") {
  check("hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {}}\n</to", "stop({})");
  check("lfm2", "<|tool_call_start|>[stop()]<|tool_ca", "stop({})");
  check("gemma4", "<|tool_call>call:stop{}<tool_", "stop({})");
}

TEST_CASE("calls as XML (Qwen3-Coder, Qwen3.5)", "[requests]") {
  check("xml",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nSan \"José\"\nx\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
        "<parameter=units>\n[\"C\", \"F\"]\n</parameter>\n</function>\n</tool_call>",
        "get_weather({\"city\": \"San \\\"José\\\"\\nx\", \"days\": 3, \"exact\": true, \"units\": "
        "[\"C\", \"F\"]})");
  check("xml", "I stop.\n\n<function=stop>\n</function>\n</tool_call>", "'I stop.'stop({})");
  check("xml",
        "<tool_call>\n<function=stop>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=stop>\n<parameter=why>\nsoon\n</parameter>\n</function>\n</tool_call>",
        "stop({})stop({\"why\": \"soon\"})");
  check("xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\n</parameter>\n</function>",
        "get_weather({\"city\": \"\"})");
  check("xml", "<tool_call>\n<function=stop>\n<b></tool_call>z",
        "stop(<b>!byte 29 of the call: expected <parameter= or </function>'z'");
  check("xml", "a <function=(> b",
        "'a<function=(>'!byte 13 of the call: expected the name of a function' b'");
  check("xml", "x<function=y",
        "'x<function='!byte 1 of the call: the answer ended, expected the name of a function'y'");
}

TEST_CASE("calls with keys and values in tags (GLM)", "[requests]") {
  check("glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "get_weather({\"city\": \"Oslo\", \"days\": 2})");
  check("glm", "<tool_call>stop</tool_call>", "stop({})");
}

TEST_CASE("calls of Llama 3", "[requests]") {
  check("llama3", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}",
        "get_weather({\"city\": \"Oslo\"})");
  check("llama3",
        "<|python_tag|>{\"name\": \"stop\", \"parameters\": {}}; {\"name\": \"stop\", "
        "\"parameters\": {}}",
        "stop({})stop({})");
  check("llama3", "Hello {\"name\"", "'Hello {\"name\"'");
  // An object that calls no tool is an answer.
  check("llama3", "{\"name\": \"Bob\", \"parameters\": {\"age\": 3}}",
        "'{\"name\": \"Bob\", \"parameters\": {\"age\": 3}}'");
  check("llama3", "{\"a\": 1}", "'{\"a\": 1}'");
  check("llama3", "<|python_tag|>print(1)", "'<|python_tag|>print(1)'");
  check("llama3", "", "");
}

TEST_CASE("calls of Mistral", "[requests]") {
  check("mistral",
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]stop[CALL_ID]abc[ARGS]{}",
        "get_weather({\"city\": \"Oslo\"})stop({})");
  check("mistral", "[TOOL_CALLS]stop{\"a\": 1}", "stop({\"a\": 1})");
  check("mistral_list",
        "Yes. [TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"A\"}}, "
        "{\"name\": \"stop\", \"arguments\": {}}]",
        "'Yes.'get_weather({\"city\": \"A\"})stop({})");
  check("mistral", "[TOOL_CALLS]stop[ARGS]no",
        "stop(no!byte 25 of the call: the answer ended, "
        "expected the end of the arguments");
}

TEST_CASE("calls of Gemma 4", "[requests]") {
  check("gemma4",
        "<|tool_call>call:get_weather{city:<|\"|>Os\"lo, }<|\"|>,days:2,exact:true,units:[<|\"|>C"
        "<|\"|>,<|\"|>F<|\"|>],more:{a:1.5,b:{}}}<tool_call|>",
        "get_weather({\"city\":\"Os\\\"lo, }\",\"days\":2,\"exact\":true,\"units\":[\"C\",\"F\"],"
        "\"more\":{\"a\":1.5,\"b\":{}}})");
  check("gemma4",
        "Now.\n<|tool_call>call:stop{}<tool_call|><|tool_call>call:stop{why:soon}"
        "<tool_call|>",
        "'Now.'stop({})stop({\"why\":\"soon\"})");
  check("gemma4", "<|tool_call>stop{}<tool_call|>",
        "'<|tool_call>'!byte 13 of the call: expected call:'stop{}<tool_call|>'");
}

TEST_CASE("calls of LFM2", "[requests]") {
  check("lfm2",
        "<|tool_call_start|>[get_weather(city=\"Os'lo\", days=2, exact=True, units=['a\\'b', "
        "None]), stop()]<|tool_call_end|>Done.",
        "get_weather({\"city\": \"Os'lo\", \"days\": 2, \"exact\": true, \"units\": [\"a'b\", "
        "null]})stop({})'Done.'");
  check("lfm2", "<|tool_call_start|>[stop(a={'k': {'l': [1, 2]}})]<|tool_call_end|>",
        "stop({\"a\": {\"k\": {\"l\": [1, 2]}}})");
  check("lfm2", "<|tool_call_start|>[{\"name\": \"stop\", \"arguments\": {}}]<|tool_call_end|>",
        "stop({})");
  check("lfm2", "<|tool_call_start|>[stop(a=\"b\\/c\\d\")]<|tool_call_end|>",
        "stop({\"a\": \"b\\/c\\\\d\"})");
  check("lfm2", "<|tool_call_start|>[stop(3)]<|tool_call_end|>",
        "stop({3)]!byte 26 of the call: expected a keyword and =");
}

TEST_CASE("calls of gpt-oss are messages to functions", "[requests]") {
  // 1 <|start|>, 2 <|channel|>, 3 <|message|>, 4 <|end|>, 6 <|constrain|>; 5 is text.
  AnswerForm form;
  form.marks = {"<|channel|>analysis<|message|>",
                "<|end|><|start|>assistant<|channel|>final<|message|>"};
  form.marks.header_tokens = {4, 1, 2};
  form.marks.message_token = 3;
  form.marks.answer_channel = "final";
  form.marks.calls = true;
  using Tokens = std::vector<std::pair<int32_t, std::string>>;
  const auto said = [&](const Tokens& tokens) {
    AnswerSplit split(form, false);
    std::string out;
    const auto add = [&](const AnswerPart& part) {
      if (!part.reasoning.empty()) out += "[" + part.reasoning + "]";
      if (!part.content.empty()) out += "'" + part.content + "'";
      for (const CallEvent& e : part.calls)
        out += e.kind == CallEvent::BEGIN       ? e.text + "("
               : e.kind == CallEvent::ARGUMENTS ? e.text
               : e.kind == CallEvent::END       ? ")"
                                                : "!" + e.text;
    };
    for (const auto& [token, text] : tokens) add(split.put(token, text));
    add(split.finish());
    return out;
  };
  CHECK(said({{2, ""},
              {5, "analysis"},
              {3, ""},
              {5, "why"},
              {4, ""},
              {1, ""},
              {5, "assistant"},
              {2, ""},
              {5, "commentary"},
              {5, " to=functions.stop "},
              {6, ""},
              {5, "json"},
              {3, ""},
              {5, "{\"a\":"},
              {5, " 1}"}}) == "[why]stop({\"a\": 1})");
  CHECK(said({{5, " to"},
              {5, "=functions."},
              {5, "stop"},
              {2, ""},
              {5, "commentary json"},
              {3, ""},
              {5, "{}"}}) == "stop({})");
  CHECK(said({{2, ""}, {5, "commentary to=functions.stop"}, {3, ""}, {5, "{"}}) ==
        "stop({!arguments: byte 2 is not JSON");
  CHECK(said({{2, ""}, {5, "final"}, {3, ""}, {5, "to=functions.x"}}) == "'to=functions.x'");
  // Two calls; a preamble for the user stays apart from the answer.
  CHECK(said({{2, ""},
              {5, "commentary to=functions.a"},
              {3, ""},
              {5, "{}"},
              {4, ""},
              {1, ""},
              {5, "assistant"},
              {2, ""},
              {5, "commentary to=functions.b"},
              {3, ""},
              {5, "{}"}}) == "a({})b({})");
  form.marks.calls = false;
  CHECK(said({{2, ""}, {5, "commentary to=functions.a"}, {3, ""}, {5, "{}"}}) == "[{}]");
}

TEST_CASE("control tokens among the markers are seen", "[requests]") {
  const ToolUse use = tools();
  AnswerForm form;
  form.format = &format_named("mistral");
  form.markers = {{7, "[TOOL_CALLS]"}, {8, "[ARGS]"}};
  form.tools = &use;
  AnswerSplit split(form, false);
  std::string content, calls;
  const auto add = [&](const AnswerPart& part) {
    content += part.content;
    for (const CallEvent& e : part.calls) calls += e.text + "|";
  };
  for (const auto& [token, text] : std::vector<std::pair<int32_t, std::string>>{
           {5, "Now. "}, {7, ""}, {5, "stop"}, {8, ""}, {5, "{\"a\""}, {5, ": 1}"}})
    add(split.put(token, text));
  add(split.finish());
  CHECK(content == "Now.");
  CHECK(calls == "stop|{\"a\"|: 1}||");
}

TEST_CASE("formats are found by the template's text", "[requests]") {
  const auto name = [](const char* text) {
    const CallFormat* const format = call_format(text);
    return std::string(format ? format->name : "none");
  };
  CHECK(name("{{ messages }}") == "none");
  CHECK(name("<tool_call>\n{\"name\": <function-name>") == "hermes");
  CHECK(name("<tool_call>\n<function=example>\n<parameter=x>") == "xml");
  CHECK(name("List of tools: [' <|im_start|>") == "lfm2");
  CHECK(name("List of tools: <tool_call>") == "hermes");
  CHECK(name("' to=' 'functions.' + c.name + '<|channel|>commentary '") == "harmony");
  CHECK(name("<|channel|>final<|message|>") == "none");
  CHECK(name("[AVAILABLE_TOOLS] [TOOL_CALLS]") == "mistral_list");
}
