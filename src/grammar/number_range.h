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
  // JSON's notation, such as "-12.50" or "1e3". None: more than 400 digits.
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

// Digits that numbers may have before the decimal point and after it.
inline constexpr uint32_t kMostDigits = 60;
// Digits of a number between limits that is no integer, as far as the limits have no more.
inline constexpr size_t kExactDigits = 15;

// Integers are written without fraction and exponent. Other numbers have an exponent only where
// there is no limit.
ExprId number_expr(const NumberRange& range, bool integers, Expressions* out);

}  // namespace riffle::grammar
