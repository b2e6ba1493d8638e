// JSON texts as trees. Neither destroying nor moving a tree allocates, so a failed allocation stays
// an exception (the values of nlohmann/json allocate in their destructor, which ends the process if
// it fails). nlohmann/json still reads the text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace riffle {

class Json {
 public:
  struct Member;

  Json();  // null
  explicit Json(bool value);
  explicit Json(int64_t value);   // a negative number, or -0
  explicit Json(uint64_t value);  // a whole number from 0
  explicit Json(double value);
  explicit Json(std::string text);
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  // Whole numbers of 64 bits, written without fraction and exponent; other numbers are real.
  bool is_unsigned() const { return std::holds_alternative<uint64_t>(value_); }
  bool is_integer() const { return is_unsigned() || std::holds_alternative<int64_t>(value_); }
  bool is_real() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_integer() || is_real(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name() const;  // "number", "object", as in the standard

  // Returns the value. Requires: it is of this type.
  bool boolean() const { return std::get<bool>(value_); }
  uint64_t whole() const { return std::get<uint64_t>(value_); }  // is_unsigned()
  int64_t integer() const;  // is_integer(); above 2^63 - 1 it wraps
  double number() const;    // is_number()
  const std::string& string() const { return std::get<std::string>(value_); }

  // Tells whether this is a number or a string with this value; 1.0 equals 1.
  bool equals(double value) const { return is_number() && number() == value; }
  bool equals(std::string_view text) const { return is_string() && string() == text; }

  // Elements of an array, members of an object. Other values have none.
  std::span<const Json> elements() const;
  std::span<const Member> members() const;
  size_t size() const { return is_object() ? members().size() : elements().size(); }
  bool empty() const { return size() == 0; }
  const Json& operator[](size_t i) const { return elements()[i]; }
  // Returns the value of the member of this name; null: there is none, or this is no object.
  const Json* find(std::string_view key) const;
  // Returns the value at a JSON pointer (RFC 6901), such as "/a/0"; null: there is none.
  const Json* at_pointer(std::string_view pointer) const;

  // Returns JSON on one line. ascii: other characters are escaped.
  std::string dump(bool ascii = false) const;

 private:
  friend class JsonBuilder;
  using Array = std::vector<Json>;
  struct Object {
    std::vector<Member> members;
    bool sorted = false;
  };

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
  std::string key;
  Json value;
};

// Defined here, since Member is complete only now.
inline Json::Json() = default;
inline Json::Json(bool value) : value_(value) {}
inline Json::Json(int64_t value) : value_(value) {}
inline Json::Json(uint64_t value) : value_(value) {}
inline Json::Json(double value) : value_(value) {}
inline Json::Json(std::string text) : value_(std::move(text)) {}
inline Json::Json(const Json&) = default;
inline Json::Json(Json&&) noexcept = default;
inline Json& Json::operator=(const Json&) = default;
inline Json& Json::operator=(Json&&) noexcept = default;
inline Json::~Json() = default;

// Returns the text as it stands between the quotes of a JSON string, escaped as by dump().
std::string json_string(std::string_view text, bool ascii = false);

// Returns a key as a token of a JSON pointer (RFC 6901).
std::string json_pointer_token(std::string_view key);

struct JsonLimits {
  size_t depth;            // levels of nested arrays and objects
  size_t values;           // values in all; bounds the memory that a tree takes
  bool count_all = false;  // keys and ends of arrays and objects count among the values
  bool exact = false;      // whole numbers beyond 64 bits are too large; else they become real
  bool sorted = false;     // members in the order of their keys, which makes find() fast; else as
                           // they are written
};

// Thrown by parse_json(). The caller knows the file and writes the error text.
struct JsonError {
  enum Kind { SYNTAX, NUMBER_TOO_LARGE, TOO_DEEP, TOO_MANY, KEY_TWICE } kind;
  size_t byte;            // SYNTAX: the first wrong byte, from 1; behind the text if it ends early
  std::string text;       // SYNTAX: "'x' at byte 3"; NUMBER_TOO_LARGE: the number;
                          // KEY_TWICE: the key
  std::string path = {};  // NUMBER_TOO_LARGE, KEY_TWICE: keys that lead there, such as "a.b"
};

// The parts of an error text about a JsonError. limits: those of the call that threw it.
struct JsonErrorWords {
  std::string found, expected;
};
JsonErrorWords words_of(const JsonError& error, const JsonLimits& limits);
// Returns the error text without its place: "found 'x' at byte 3, expected JSON".
std::string text_of(const JsonError& error, const JsonLimits& limits);

// Parses one JSON value in UTF-8. Keys of an object must differ; a key that is given twice is
// reported after the rest has been read. A number beyond the range of double is an error. The
// second form leaves in *json what it has read before an error.
Json parse_json(std::string_view text, const JsonLimits& limits);
void parse_json(std::string_view text, const JsonLimits& limits, Json* json);

}  // namespace riffle
