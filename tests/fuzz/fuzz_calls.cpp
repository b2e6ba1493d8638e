// An answer with calls of tools: the same calls wherever the text is cut, and no text that is lost.
#include <cstdlib>

#include "requests/calls/formats.h"
#include "util/json.h"

using namespace riffle::requests;

namespace {

class Said : public CallSink {
 public:
  void content(std::string_view text) override { add('t', text); }
  void begin(std::string_view name) override {
    if (name.empty()) std::abort();
    add('b', name);
    open = true;
  }
  void arguments(std::string_view json) override {
    if (!open && !json.empty()) std::abort();
    add('a', json);
  }
  void end() override {
    said +=
        "\x01"
        "e",
        last = 'e', open = false;
  }
  void broken(const std::string& error) override {
    if (error.empty()) std::abort();
    add('!', error);
    last = '!';
    open = false;
  }
  std::string said;
  bool open = false;

 private:
  // Pieces of one kind are one text.
  void add(char kind, std::string_view text) {
    if (kind != last || kind == 'b' || kind == '!') said += std::string("\x01") + kind;
    last = kind;
    said += text;
  }
  char last = 0;
};

std::string said(const CallFormat& format, std::string_view text, size_t piece) {
  static const ToolUse use = [] {
    ToolUse made;
    made.tools.push_back({"f", riffle::parse_json(R"({"type":"function","function":{"name":"f",)"
                                                  R"("parameters":{"type":"object","properties":{)"
                                                  R"("s":{"type":"string"}}}}})",
                                                  {.depth = 8, .values = 32})});
    return made;
  }();
  const auto parser = format.parser(use);
  Said out;
  for (size_t at = 0; at < text.size(); at += piece) parser->put(text.substr(at, piece), &out);
  parser->finish(&out);
  if (out.open) std::abort();
  return out.said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  const char* const signs[] = {"<|tool_call>call:", "<|tool_call_start|>", "<tool_call>",
                               "[TOOL_CALLS]", "\"parameters\": <|start_header_id|>"};
  const CallFormat* const format = call_format(signs[data[0] % 5]);
  if (!format || !format->parser) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = said(*format, text, text.size());
  for (const size_t piece : {size_t{1}, size_t{7}})
    if (said(*format, text, piece) != whole) std::abort();
  return 0;
}
