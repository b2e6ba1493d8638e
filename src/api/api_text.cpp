// The function of riffle_text.h that needs no model.
#include "riffle_text.h"
#include "text/tokenizer.h"

extern "C" int64_t riffle_utf8_error(const char* text, size_t text_len) {
  return text ? riffle::utf8_error({text, text_len}) : -1;
}
