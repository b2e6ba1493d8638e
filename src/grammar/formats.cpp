#include "grammar/formats.h"

#include <map>

namespace riffle::grammar {
namespace {

// RFC 3339. Days fit their months. February 29 needs a year that is a multiple of 4 and, if it ends
// in 00, of 400. Years begin with 0001, as in Python's datetime.
constexpr const char* kDate =
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]"
    "[0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
// Leap seconds are left out, since only some offsets allow them.
constexpr const char* kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
// Quoted names and addresses in brackets are left out.
constexpr const char* kEmail =
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}){0,2}"
    "@[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    "(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,3}";
constexpr const char* kUuid =
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
// RFC 3339, appendix A: a unit may follow only the next larger one.
constexpr const char* kDuration =
    "P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?"
    "|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)|[0-9]+W)";
// At most 4 labels. A label is one or two runs of up to 30 letters and digits, with a hyphen
// between two runs. So a name has at most 247 of the 253 characters allowed.
constexpr const char* kHostname =
    "[A-Za-z0-9]{1,30}(?:-[A-Za-z0-9]{1,30})?"
    "(?:\\.[A-Za-z0-9]{1,30}(?:-[A-Za-z0-9]{1,30})?){0,3}";
constexpr const char* kIpv4 =
    "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}"
    "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
// An IPv4 address as its end is left out. H stands for a group.
constexpr const char* kIpv6 =
    "(?:(?:H:){7}H|(?:H:){1,7}:|(?:H:){1,6}:H|(?:H:){1,5}(?::H){1,2}|(?:H:){1,4}(?::H){1,3}"
    "|(?:H:){1,3}(?::H){1,4}|(?:H:){1,2}(?::H){1,5}|H:(?::H){1,6}|:(?:(?::H){1,7}|:))";
// RFC 3986, without users and without addresses in brackets. C stands for a character of a path.
constexpr const char* kUri =
    "[A-Za-z][A-Za-z0-9+.-]*:(?://[A-Za-z0-9._~-]*(?::[0-9]{1,5})?(?:/C*)*|/?(?:C+(?:/C*)*)?)"
    "(?:\\?(?:C|[/?])*)?(?:#(?:C|[/?])*)?";

std::string with(std::string pattern, char letter, const std::string& text) {
  for (size_t at = 0; (at = pattern.find(letter, at)) != pattern.npos; at += text.size())
    pattern.replace(at, 1, text);
  return pattern;
}

const std::map<std::string, std::string>& patterns() {
  static const std::map<std::string, std::string> all = {
      {"date", std::string("^") + kDate + "$"},
      {"time", std::string("^") + kTime + "$"},
      {"date-time", std::string("^") + kDate + "[Tt]" + kTime + "$"},
      {"uuid", std::string("^") + kUuid + "$"},
      {"email", std::string("^") + kEmail + "$"},
      {"duration", std::string("^") + kDuration + "$"},
      {"hostname", std::string("^") + kHostname + "$"},
      {"ipv4", std::string("^") + kIpv4 + "$"},
      {"ipv6", "^" + with(kIpv6, 'H', "[0-9A-Fa-f]{1,4}") + "$"},
      {"uri", "^" + with(kUri, 'C', "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})") + "$"}};
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
