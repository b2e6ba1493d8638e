#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "util/error.h"

namespace riffle {

namespace {

constexpr auto kCanonical = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Normalises text. Requires: no character after the first one is ASCII. utf8proc's own way
// (utf8proc_map) sorts combining marks by swapping neighbours, which takes quadratic time on a long
// run of them.
void append_nfc(std::string_view text, std::vector<utf8proc_int32_t>* points, std::string* out) {
  points->clear();
  for (size_t pos = 0; pos < text.size();) {
    utf8proc_int32_t c = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + pos),
                                    static_cast<utf8proc_ssize_t>(text.size() - pos), &c);
    utf8proc_int32_t parts[8];  // a canonical decomposition has 4 at most
    int boundary = 0;
    const auto n_parts = n < 1 ? n : utf8proc_decompose_char(c, parts, 8, kCanonical, &boundary);
    if (n < 1 || n_parts < 1 || n_parts > 8)
      fail(RIFFLE_INTERNAL, "utf8proc cannot decompose the text");
    points->insert(points->end(), parts, parts + n_parts);
    pos += static_cast<size_t>(n);
  }
  for (auto run = points->begin(); run != points->end();) {
    run = std::find_if(run, points->end(), [](auto c) { return combining_class(c) != 0; });
    const auto end =
        std::find_if(run, points->end(), [](auto c) { return combining_class(c) == 0; });
    if (end - run > 1) {
      std::stable_sort(run, end,
                       [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    }
    run = end;
  }
  const auto n = utf8proc_normalize_utf32(
      points->data(), static_cast<utf8proc_ssize_t>(points->size()), kCanonical);
  if (n < 0) fail(RIFFLE_INTERNAL, "utf8proc cannot compose the text");
  for (utf8proc_ssize_t i = 0; i < n; i++) {
    utf8proc_uint8_t bytes[4];
    out->append(reinterpret_cast<const char*>(bytes),
                static_cast<size_t>(utf8proc_encode_char((*points)[i], bytes)));
  }
}

}  // namespace

std::string to_nfc(std::string_view text) {
  const auto ascii = [&](size_t i) { return static_cast<uint8_t>(text[i]) < 0x80; };
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> points;
  // ASCII characters stay unchanged, except one that marks follow: each begins a normalisation of
  // its own.
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    while (end < text.size() && ascii(end)) end++;
    if (end == text.size()) {
      out.append(text, pos);
      break;
    }
    const size_t start = end > pos ? end - 1 : end;
    out.append(text, pos, start - pos);
    while (end < text.size() && !ascii(end)) end++;
    append_nfc(text.substr(start, end - start), &points, &out);
    pos = end;
  }
  return out;
}

}  // namespace riffle
