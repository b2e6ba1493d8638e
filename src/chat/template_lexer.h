// A Jinja template cut into text and tags, and the tags into tokens, as Jinja does it with the
// settings of Hugging Face's transformers (trim_blocks, lstrip_blocks).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace riffle {

struct TemplateToken {
  enum Kind { NAME, INTEGER, REAL, STRING, SIGN } kind = SIGN;
  std::string text;  // SIGN: the operator; STRING: its value
  int64_t number = 0;
  double real = 0;
};

struct TemplateTag {
  enum Kind { TEXT, OUTPUT, STATEMENT } kind = TEXT;
  int line = 1;
  std::string text;  // TEXT
  std::vector<TemplateToken> tokens;
};

// Throws Error RIFFLE_UNSUPPORTED, which names the line, for text that is not a template or exceeds
// 1 MiB.
std::vector<TemplateTag> cut_template(std::string_view text);

// Throws the error of a template: one line of text, which begins with the template's line number.
[[noreturn]] [[gnu::format(printf, 2, 3)]] void bad_template(int line, const char* format, ...);

}  // namespace riffle
