// One line of a batch file as JSON, and checks of its fields, with errors that name the field.
// Lines are untrusted.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/batch/format.h"

namespace riffle::cli {

// Input is parsed into maps: ordered_json compares keys one by one, which is slow for many keys.
using JsonIn = nlohmann::json;

// Parses a line that holds one object. Throws BatchError, whose message does not name the line.
JsonIn parse_object(std::string_view line);

// Shortens text from the file for a message, to one line.
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

// Checks fields of one line. Every failure is a BatchError that names line and field.
class Fields {
 public:
  // ignored: gets the names of fields that are not read; must outlive this object. ignore_unknown:
  // whether fields that riffle does not know may be left unread too.
  Fields(size_t line, std::string custom_id, bool ignore_unknown, IgnoredFields* ignored)
      : line_(line),
        custom_id_(std::move(custom_id)),
        ignore_unknown_(ignore_unknown),
        ignored_(ignored) {}

  [[noreturn]] void fail(const char* code, const std::string& text) const;
  [[noreturn]] void wrong(const std::string& field, const JsonIn& found,
                          const std::string& expected) const;

  std::string text(const std::string& field, const JsonIn& value) const;
  // Returns a text; refuses NUL characters.
  std::string plain_text(const std::string& field, const JsonIn& value) const;
  bool truth(const std::string& field, const JsonIn& value) const;
  // Sets the option that belongs to the setting.
  void take(const std::string& field, const JsonIn& value, const SettingRow& setting,
            Options& options) const;
  double real(const std::string& field, const JsonIn& value, double low, double high) const;
  // Returns a whole number from low to high. Requires: low is not negative.
  template <typename T>
  T integer(const std::string& field, const JsonIn& value, T low, T high) const {
    const std::string expected =
        "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    // The parser stores a whole number as unsigned if it is 0 or more.
    if (!value.is_number_unsigned()) wrong(field, value, expected);
    const uint64_t v = value.get<uint64_t>();
    if (v < static_cast<uint64_t>(low) || v > static_cast<uint64_t>(high))
      wrong(field, value, expected);
    return static_cast<T>(v);
  }

  // Returns true if the caller must read the field (HONOURED). All other fields are handled here;
  // null as `use` means an unknown field. object: the object that holds the field, such as "body.".
  // described: the same for notices, without numbers of messages and parts.
  bool is_read(const FieldUse* use, const std::string& object, const std::string& described,
               const std::string& key, const JsonIn& value) const;

 private:
  void ignore(std::vector<std::string>& names, const std::string& name) const;

  size_t line_;
  std::string custom_id_;
  bool ignore_unknown_;
  IgnoredFields* ignored_;
};

}  // namespace riffle::cli
