// The schema of a function's parameters: it is refused, or becomes the grammar of its calls.
#include <cstdint>

#include "requests/tool_grammar.h"
#include "util/error.h"
#include "util/json.h"

using namespace riffle::requests;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 8192) return 0;
  const char* const signs[] = {"<|tool_call>call:",     "<|tool_call_start|>",
                               "<arg_key> <tool_call>", "<function= <tool_call>",
                               "<tool_call>",           "'\"parameters\": ' <|start_header_id|>"};
  const CallFormat* const format = call_format(signs[data[0] % 6]);
  if (!format) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  ToolUse use;
  use.choice = data[0] / 6 % 2 ? ToolUse::REQUIRED : ToolUse::AUTO;
  try {
    use.tools.push_back(
        {"f", riffle::parse_json(R"({"type":"function","function":{"name":"f","parameters":)" +
                                     std::string(text) + "}}",
                                 {.depth = 66, .values = 10000})});
  } catch (const riffle::JsonError&) {
    return 0;
  }
  try {
    riffle::grammar::Expressions e;
    (void)tool_answers(use, *format, riffle::grammar::Expressions::kNever, &e);
  } catch (const riffle::Error&) {
  }
  return 0;
}
