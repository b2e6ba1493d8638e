// A line of riffle batch: a request, or a refusal that names the field, nothing else.
#include <cstdlib>
#include <cstring>

#include "riffle_request.h"
#include "riffle_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const char* const line = reinterpret_cast<const char*>(data);
  const uint32_t flags = size % 2 != 0 ? RIFFLE_REQUEST_IGNORE_UNKNOWN : 0;
  const auto kind = static_cast<riffle_request_kind>(size / 2 % 3);
  riffle_request* r = nullptr;
  char err[512];
  const riffle_status status =
      riffle_request_create(kind, line, size, nullptr, flags, &r, err, sizeof err);
  if (status == RIFFLE_OUT_OF_MEMORY) {
    riffle_request_free(r);
    return 0;
  }
  if (!r) std::abort();
  const auto is_utf8 = [](const char* text) {
    return text && riffle_utf8_error(text, std::strlen(text)) < 0;
  };
  if (const riffle_info* const refusal = riffle_request_refusal(r)) {
    if (status == RIFFLE_OK || !*err || !*riffle_info_text(refusal, "reason")) std::abort();
    if (!is_utf8(riffle_info_text(refusal, "message"))) std::abort();
    if (!is_utf8(riffle_info_text(refusal, "custom_id"))) std::abort();
  } else {
    const riffle_info* const info = riffle_request_info(r);
    const double n = riffle_info_number(info, "n"), all = riffle_info_number(info, "n_answers");
    const bool line_id = *riffle_info_text(info, "custom_id") != '\0';
    const bool fine = status == RIFFLE_OK && n >= 1 && n <= 128 && all >= n && all <= 4096 &&
                      line_id == (kind == RIFFLE_REQUEST_BATCH_LINE) &&
                      riffle_info_number(info, "n_unknown") <= 32 &&
                      riffle_info_number(info, "n_ignored") <= 32;
    if (!fine || !is_utf8(riffle_info_text(info, "custom_id")) ||
        !is_utf8(riffle_info_text(info, "model")))
      std::abort();
  }
  riffle_request_free(r);
  return 0;
}
