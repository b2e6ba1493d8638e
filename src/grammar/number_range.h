// Numbers of JSON between two limits, as expressions.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "grammar/expression.h"

namespace riffle::grammar {

// A number in decimal, exact.
class Decimal {
 public:
  // Parses JSON's notation, such as "-12.50" or "1e3". Returns nothing for more than 400 digits.
  static std::optional<Decimal> parse(std::string_view text);

  bool negative = false;
  std::string whole = "0", fraction;  // digits without superfluous zeros
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_integer() const { return fraction.empty(); }
  int64_t whole_value() const;              // without the sign; at most 18 digits before the point
  int compare(const Decimal& other) const;  // -1, 0, 1
};

struct NumberRange {
  struct Limit {
    Decimal value;
    bool excluded = false;
  };
  std::optional<Limit> low, high;
  void raise(const Limit& limit);  // low
  void lower(const Limit& limit);  // high
  bool holds(const Decimal& value) const;
  bool empty(bool integers) const;
};

// Most digits of a number before the decimal point, and after it.
inline constexpr uint32_t kMostDigits = 60;
// Most digits of a fractional number between limits, unless the limits have more.
inline constexpr size_t kExactDigits = 15;

// Returns the numbers in a range. Integers are written without fraction and exponent. Other numbers
// have an exponent only if there is no limit.
ExprId number_expr(const NumberRange& range, bool integers, Expressions* out);

}  // namespace riffle::grammar
