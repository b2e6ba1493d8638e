// A request as JSON, and checks of its fields, with errors that name the field.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "requests/request.h"
#include "util/json.h"

namespace riffle::requests {

// Parses a text that holds one object. Throws Refused. custom_id: gets this member of the object as
// far as it was read, also before an exception.
Json parse_object(std::string_view text, std::string* custom_id);

// Returns the members in the order of their keys, so that of several errors the same one is
// reported, whatever order they are written in.
std::vector<const Json::Member*> members_by_key(const Json& object);

// Returns the member of this name; null: there is none, or it is null.
const Json* given(const Json& object, std::string_view name);

// Shortens text from the request for a message, to one line in quotes.
std::string shown(std::string text);

// Treatment of a field.
enum class Use {
  HONOURED,  // the caller reads it
  NO_OP,     // accepted with values that change nothing, refused with others
  IGNORED,   // any value: no answer depends on it
  REFUSED    // any value but null
};
struct FieldUse {
  std::string_view name;
  Use use;
  const char* no_ops = nullptr;   // NO_OP: the values, as a JSON array
  const char* instead = nullptr;  // REFUSED: what to use
};

// Returns the entry of this name in an array of FieldUse or of a type derived from it, or null.
template <typename Table>
auto field_named(const Table& table, std::string_view name) -> decltype(std::data(table)) {
  const auto at = std::find_if(std::begin(table), std::end(table),
                               [&](const FieldUse& use) { return use.name == name; });
  return at == std::end(table) ? nullptr : &*at;
}

// Checks fields of one request. Every failure is a Refused that names the field.
class Fields {
 public:
  // ignored: gets the names of fields that are not read; must outlive this object. ignore_unknown:
  // whether fields that riffle does not know may be left unread too.
  Fields(bool ignore_unknown, IgnoredFields* ignored)
      : ignore_unknown_(ignore_unknown), ignored_(ignored) {}

  // text: the whole message. field: with its path.
  [[noreturn]] void fail(const Reason& reason, const std::string& field,
                         const std::string& text) const;
  [[noreturn]] void missing(const std::string& field, const std::string& expected = "") const;
  [[noreturn]] void wrong(const std::string& field, const Json& found,
                          const std::string& expected) const;

  std::string text(const std::string& field, const Json& value) const;
  // Returns a text; refuses NUL characters.
  std::string plain_text(const std::string& field, const Json& value) const;
  bool truth(const std::string& field, const Json& value) const;
  // Sets the setting with this name (util/settings.h).
  void take(const std::string& field, const Json& value, const char* setting,
            GenerateOptions* options) const;
  double real(const std::string& field, const Json& value, double low, double high) const;
  // Returns a whole number from low to high. Requires: low is not negative.
  template <typename T>
  T integer(const std::string& field, const Json& value, T low, T high) const {
    const std::string expected =
        "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    if (!value.is_unsigned()) wrong(field, value, expected);
    const uint64_t v = value.whole();
    if (v < static_cast<uint64_t>(low) || v > static_cast<uint64_t>(high))
      wrong(field, value, expected);
    return static_cast<T>(v);
  }

  // Returns true if the caller must read the field (HONOURED). All other fields are handled here;
  // null as `use` means an unknown field. object: the object that holds the field, such as "body.".
  // described: the same for notices, without numbers of messages and parts.
  bool is_read(const FieldUse* use, const std::string& object, const std::string& described,
               const std::string& key, const Json& value) const;

 private:
  void ignore(std::vector<std::string>& names, const std::string& name) const;

  bool ignore_unknown_;
  IgnoredFields* ignored_;
};

}  // namespace riffle::requests
