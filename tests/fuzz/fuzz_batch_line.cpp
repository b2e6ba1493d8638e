// A line of riffle batch: a request or a BatchError that names the line, nothing else.
#include <cstdlib>

#include "cli/batch/format.h"

using namespace riffle::cli;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    BatchDefaults defaults;
    defaults.ignore_unknown = size % 2 != 0;
    const BatchRequest r = parse_batch_line(line, 7, defaults);
    // The library takes every value that the reader accepts.
    const bool fine = !r.custom_id.empty() && r.custom_id.size() <= kMaxNameBytes &&
                      r.messages.empty() != r.chat && r.prompts.empty() == r.chat &&
                      r.answer.count("max-tokens") != 0 && r.answer.number("temp") >= 0 &&
                      r.answer.number("temp") <= 100 && r.answer.number("top-p") >= 0 &&
                      r.answer.number("top-p") <= 1 && r.answer.number("dry-base") >= 1;
    if (!fine || riffle_utf8_error(r.custom_id.data(), r.custom_id.size()) >= 0) std::abort();
    for (const BatchPrompt& prompt : r.prompts)
      if (prompt.text.empty() == prompt.tokens.empty() ||
          riffle_utf8_error(prompt.text.data(), prompt.text.size()) >= 0)
        std::abort();
    if (r.prompts.size() > kMaxPrompts || r.ignored.unknown.size() > kMaxIgnoredNames ||
        r.ignored.without_effect.size() > kMaxIgnoredNames)
      std::abort();
  } catch (const BatchError& e) {
    if (e.code.empty() || !e.message.starts_with("line 7: ")) std::abort();
  }
  return 0;
}
