// The functions of riffle_text.h that need no model.
#include "api/api_handles.h"
#include "riffle_text.h"
#include "text/tokenizer.h"
#include "util/json.h"

using namespace riffle;

extern "C" {

int64_t riffle_utf8_error(const char* text, size_t text_len) {
  return text ? utf8_error({text, text_len}) : -1;
}

bool riffle_check_json(const char* text, size_t text_len, char* err, size_t err_size) {
  // The limits of requests and of their schemas are smaller.
  constexpr JsonLimits kLimits{.depth = 256, .values = SIZE_MAX};
  return guarded(err, err_size, [&] {
           require(text || !text_len, "text");
           const std::string_view json(text ? text : "", text_len);
           if (const int64_t at = utf8_error(json); at >= 0)
             fail(RIFFLE_BAD_TEXT, "byte %lld is not valid UTF-8", static_cast<long long>(at) + 1);
           try {
             parse_json(json, kLimits);
           } catch (const JsonError& e) {
             // JSON allows a key that is given twice.
             if (e.kind != JsonError::KEY_TWICE)
               throw Error(RIFFLE_BAD_ARGUMENT, text_of(e, kLimits));
           }
         }) == RIFFLE_OK;
}

}  // extern "C"
