// Writes JSON on one line.
#pragma once
#include <string>
#include <string_view>

namespace riffle::requests {

// Returns the text as a JSON string, in quotes. Bytes that form no character become U+FFFD.
std::string json_text(std::string_view text);
std::string json_number(float value);  // 0.1F as 0.1; null if not finite

// Builds objects and lists: the caller gives names and values in order.
class JsonText {
 public:
  JsonText& begin(char bracket);  // { or [
  JsonText& end(char bracket);    // } or ]
  JsonText& key(std::string_view name);
  JsonText& raw(std::string_view json);
  JsonText& string(std::string_view text) { return raw(json_text(text)); }
  template <class Whole>
  JsonText& whole(Whole n) {
    return raw(std::to_string(n));
  }
  std::string take() { return std::move(out_); }

 private:
  void separate();

  std::string out_;
  bool comma_ = false;
};

}  // namespace riffle::requests
