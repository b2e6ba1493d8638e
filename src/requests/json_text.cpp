#include "requests/json_text.h"

#include <charconv>
#include <cmath>

#include "text/tokenizer.h"
#include "util/error.h"
#include "util/json.h"

namespace riffle::requests {

std::string json_text(std::string_view text) {
  std::string valid;
  append_valid_utf8(text, false, &valid);
  return "\"" + json_string(valid) + "\"";
}

std::string json_number(float value) {
  if (!std::isfinite(value)) return "null";
  const std::string digits = format("%.7g", static_cast<double>(value));
  double shown = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), shown);
  return Json(shown).dump();
}

void JsonText::separate() {
  if (comma_) out_ += ',';
  comma_ = false;
}

JsonText& JsonText::begin(char bracket) {
  separate();
  out_ += bracket;
  return *this;
}

JsonText& JsonText::end(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonText& JsonText::key(std::string_view name) {
  separate();
  out_ += json_text(name) + ":";
  return *this;
}

JsonText& JsonText::raw(std::string_view json) {
  separate();
  out_ += json;
  comma_ = true;
  return *this;
}

}  // namespace riffle::requests
