// A line of riffle batch: a request or a BatchError that names the line, nothing else.
#include <cstdlib>

#include "cli/batch/format.h"

using namespace riffle::cli;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    BatchDefaults defaults;
    defaults.sampling.dry_base = 1.75F;  // as riffle_sampling_default sets it
    defaults.ignore_unknown = size % 2 != 0;
    const BatchRequest r = parse_batch_line(line, 7, defaults);
    // The library takes every value that the reader accepts.
    const bool fine =
        !r.custom_id.empty() && r.custom_id.size() <= kMaxNameBytes && r.max_tokens >= -1 &&
        r.max_tokens != 0 && r.messages.empty() != r.chat && r.prompts.empty() == r.chat &&
        r.stop.size() <= 16 && r.sampling.temperature >= 0 && r.sampling.temperature <= 100 &&
        r.sampling.top_k >= 0 && r.sampling.top_p >= 0 && r.sampling.top_p <= 1 &&
        r.sampling.min_p >= 0 && r.sampling.min_p <= 1 && r.sampling.xtc_probability >= 0 &&
        r.sampling.xtc_probability <= 1 && r.sampling.dry_multiplier >= 0 &&
        r.sampling.dry_base >= 1 && (!r.breakers || r.breakers->size() <= 16);
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
