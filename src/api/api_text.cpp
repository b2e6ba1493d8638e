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
  constexpr size_t kMostLevels = 256;  // the limits of requests and of their schemas are smaller
  return guarded(err, err_size, [&] {
           require(text || !text_len, "text");
           const std::string_view json(text ? text : "", text_len);
           if (const int64_t at = utf8_error(json); at >= 0)
             fail(RIFFLE_BAD_TEXT, "byte %lld is not valid UTF-8", static_cast<long long>(at) + 1);
           try {
             parse_json(json, {.depth = kMostLevels, .values = SIZE_MAX});
           } catch (const JsonError& e) {
             switch (e.kind) {
               case JsonError::KEY_TWICE: return;  // JSON allows it
               case JsonError::SYNTAX:
                 throw Error(RIFFLE_BAD_ARGUMENT, "not valid JSON: " + e.text);
               case JsonError::NUMBER_TOO_LARGE:
                 throw Error(RIFFLE_BAD_ARGUMENT,
                             "found a number out of range, expected numbers of at most 1.8e308");
               default:
                 fail(RIFFLE_BAD_ARGUMENT,
                      "found values nested deeper than %zu levels, expected at most that many",
                      kMostLevels);
             }
           }
         }) == RIFFLE_OK;
}

}  // extern "C"
