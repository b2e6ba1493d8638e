#include "grammar/formats.h"

#include <map>

namespace riffle::grammar {
namespace {

// RFC 3339. Days fit their months, and February 29 its year: one that can be divided by 4, and if
// it ends in 00, its first half can.
constexpr const char* kDate =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
// Without leap seconds, which only some offsets allow.
constexpr const char* kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
// Without quoted names and addresses in brackets.
constexpr const char* kEmail =
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}){0,2}"
    "@[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    "(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,3}";
constexpr const char* kUuid =
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";

const std::map<std::string, std::string>& patterns() {
  static const std::map<std::string, std::string> all = {
      {"date", std::string("^") + kDate + "$"},
      {"time", std::string("^") + kTime + "$"},
      {"date-time", std::string("^") + kDate + "[Tt]" + kTime + "$"},
      {"uuid", std::string("^") + kUuid + "$"},
      {"email", std::string("^") + kEmail + "$"}};
  return all;
}

}  // namespace

const char* format_pattern(const std::string& name) {
  const auto it = patterns().find(name);
  return it == patterns().end() ? nullptr : it->second.c_str();
}

std::string format_names() {
  std::string names;
  for (const auto& [name, pattern] : patterns()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace riffle::grammar
