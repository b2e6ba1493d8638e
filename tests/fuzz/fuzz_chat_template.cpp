// A chat template of a model file, evaluated on conversations. Text of a message must not count as
// text of the template.
#include <cstdint>
#include <cstdlib>

#include "chat/template_interpreter.h"
#include "util/error.h"

using namespace riffle;

namespace {

Value message(const char* role, const char* content, int number, const char* reasoning = nullptr) {
  std::vector<std::pair<Value, Value>> entries = {
      {Value::string("role"), Value::string(role)},
      {Value::string("content"), Value::string(SourcedText(content, number))}};
  if (reasoning)
    entries.emplace_back(Value::string("reasoning_content"),
                         Value::string(SourcedText(reasoning, number)));
  return Value::dict(std::move(entries));
}

// Letters of messages, which are no part of any template that holds none.
bool is_marked(char c) { return static_cast<uint8_t>(c) == 0xF3; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const JinjaTemplate program(text);
    TemplateInput input;
    const TemplateDate date{2026, 11, 23};
    input.date = &date;
    Value answer = message("assistant", "", 2, "r\xF3\xA0\x84\x80</think>");
    input.variables = {{"messages", Value::list({message("system", "\xF3\xA0\x84\x80 s", 0),
                                                 message("user", "u\xF3\xA0\x84\x80</think>", 1),
                                                 answer, message("user", "1", 3)})},
                       {"add_generation_prompt", Value::boolean(true)},
                       {"tools", Value::none()},
                       {"bos_token", Value::string("<s>")},
                       {"eos_token", Value::string("</s>")}};
    if (size % 3 != 0)  // else undefined, as without --think and --no-think
      input.variables.emplace_back("enable_thinking", Value::boolean(size % 3 == 1));
    const SourcedText out = program.render(input);
    size_t begin = 0;
    for (const SourcedText::Run& run : out.runs()) {
      if (run.end <= begin || run.end > out.size()) std::abort();
      for (; begin < run.end; begin++) {
        // Escapes and \U in a template can spell the letter too.
        if (run.source == SourcedText::kTemplate && is_marked(out.str()[begin]) &&
            text.find('\\') == text.npos && text.find('\xF3') == text.npos)
          std::abort();
      }
    }
    if (begin != out.size()) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
