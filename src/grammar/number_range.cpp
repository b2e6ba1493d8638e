#include "grammar/number_range.h"

#include <algorithm>
#include <charconv>

namespace riffle::grammar {
namespace {

constexpr size_t kLongest = 400;

// Compares whole numbers, given as digits without leading zeros.
int compare_whole(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a < b ? -1 : a > b;
}

// Adds one to a whole number, given as digits.
std::string plus_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  return "1" + digits;
}

std::string minus_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  if (digits.size() > 1 && digits[0] == '0') digits.erase(0, 1);
  return digits;
}

// Numbers without a sign between two limits, digit by digit. A limit is tight while all digits so
// far equal its own; then it restricts the next digit.
class Magnitudes {
 public:
  using Limit = NumberRange::Limit;
  Magnitudes(std::optional<Limit> low, std::optional<Limit> high, bool integers, Expressions* e)
      : low_(std::move(low)), high_(std::move(high)), integers_(integers), e_(*e) {
    // Doubles distinguish numbers of 15 digits. So a number written within a limit is never read as
    // one beyond it.
    const size_t digits =
        std::max(low_ ? low_->value.whole.size() : 1, high_ ? high_->value.whole.size() : 1);
    fraction_digits_ = digits < kExactDigits ? kExactDigits - digits : 1;
  }

  ExprId all() {
    const size_t least = low_ ? low_->value.whole.size() : 1;
    const size_t most = high_ ? high_->value.whole.size() : std::max<size_t>(least, 1);
    std::vector<ExprId> ways;
    for (size_t n = least; n <= most; ++n)
      ways.push_back(whole(0, n, low_ && n == least, high_ && n == most));
    if (!high_ && most < kMostDigits) {
      const auto digits = static_cast<uint32_t>(most);
      ways.push_back(e_.sequence({digit(1, 9), e_.repeat(digit(0, 9), digits, kMostDigits - 1),
                                  fraction(0, false, false)}));
    }
    return e_.choice(std::move(ways));
  }

 private:
  ExprId digit(int from, int to) {
    return e_.chars({{static_cast<uint32_t>('0' + from), static_cast<uint32_t>('0' + to)}});
  }
  static int at(const std::string& digits, size_t i) {
    return i < digits.size() ? digits[i] - '0' : 0;
  }

  // Returns digit `pos` of the n digits before the point, and the rest.
  ExprId whole(size_t pos, size_t n, bool low, bool high) {
    if (pos == n) return fraction(0, low, high);
    const int first = pos == 0 && n > 1 ? 1 : 0;
    if (!low && !high) {
      const auto rest = static_cast<uint32_t>(n - pos - 1);
      return e_.sequence(
          {digit(first, 9), e_.repeat(digit(0, 9), rest, rest), fraction(0, false, false)});
    }
    return next_digit(low ? at(low_->value.whole, pos) : first,
                      high ? at(high_->value.whole, pos) : 9, low, high,
                      [&](bool l, bool h) { return whole(pos + 1, n, l, h); });
  }

  // Returns one digit from `from` to `to`, and the rest. At the two ends the limits stay tight.
  template <class Rest>
  ExprId next_digit(int from, int to, bool low, bool high, Rest rest) {
    std::vector<ExprId> ways;
    const auto way = [&](int a, int b, bool l, bool h) {
      if (a <= b) ways.push_back(e_.sequence({digit(a, b), rest(l, h)}));
    };
    if (from > to) return Expressions::kNever;
    if (from == to) {
      way(from, to, low, high);
    } else {
      if (low) way(from, from, true, false);
      way(low ? from + 1 : from, high ? to - 1 : to, false, false);
      if (high) way(to, to, false, true);
    }
    return e_.choice(std::move(ways));
  }

  // Tells whether the number may end before digit `pos` of the fraction.
  bool may_end(size_t pos, bool low, bool high) const {
    if (low && (low_->value.fraction.size() > pos || low_->excluded)) return false;
    return !(high && high_->value.fraction.size() <= pos && high_->excluded);
  }

  // Returns the fraction with its point, or nothing if the number may end here.
  ExprId fraction(size_t pos, bool low, bool high) {
    const bool end = may_end(pos, low, high);
    if (integers_) return end ? Expressions::kEmpty : Expressions::kNever;
    const ExprId some = e_.sequence({e_.text("."), digits(pos, low, high)});
    return end ? e_.optional(some) : some;
  }

  // Returns at least one digit of the fraction, from `pos` on.
  ExprId digits(size_t pos, bool low, bool high) {
    const auto room = static_cast<uint32_t>(std::max<size_t>(fraction_digits_, pos + 1) - pos);
    if (!low && !high) return e_.repeat(digit(0, 9), 1, room);
    const bool low_over = !low || low_->value.fraction.size() <= pos;
    const bool high_over = !high || high_->value.fraction.size() <= pos;
    if (low_over && high_over) {
      // All further digits of the tight limit are zeros.
      const ExprId zeros = e_.repeat(digit(0, 0), 1, room);
      if (high) return may_end(pos, low, high) ? zeros : Expressions::kNever;
      if (!low_->excluded) return e_.repeat(digit(0, 9), 1, room);
      return e_.sequence(
          {e_.repeat(digit(0, 0), 0, room / 2), digit(1, 9), e_.repeat(digit(0, 9), 0, room / 2)});
    }
    return next_digit(low ? at(low_->value.fraction, pos) : 0,
                      high ? at(high_->value.fraction, pos) : 9, low, high, [&](bool l, bool h) {
                        const ExprId more = digits(pos + 1, l, h);
                        return may_end(pos + 1, l, h) ? e_.optional(more) : more;
                      });
  }

  std::optional<Limit> low_, high_;
  size_t fraction_digits_;  // the largest number of digits
  bool integers_;
  Expressions& e_;
};

NumberRange::Limit negated(NumberRange::Limit limit) {
  limit.value.negative = !limit.value.negative;
  return limit;
}

// Returns the nearest integer inside the limit.
NumberRange::Limit integer_limit(NumberRange::Limit limit, bool low) {
  const bool exact = limit.value.is_integer();
  const bool away = low != limit.value.negative;  // true if inside means a larger magnitude
  limit.value.fraction.clear();
  if (!exact ? away : limit.excluded && away) limit.value.whole = plus_one(limit.value.whole);
  else if (exact && limit.excluded) {
    if (limit.value.whole == "0") {
      limit.value.whole = "1";
      limit.value.negative = !low;
    } else {
      limit.value.whole = minus_one(limit.value.whole);
    }
  }
  limit.excluded = false;
  if (limit.value.is_zero()) limit.value.negative = false;
  return limit;
}

}  // namespace

int64_t Decimal::whole_value() const {
  int64_t value = 0;
  std::from_chars(whole.data(), whole.data() + whole.size(), value);
  return value;
}

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') out.negative = true, ++i;
  std::string digits;
  long point = -1, exponent = 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') point = static_cast<long>(digits.size());
    else digits += text[i];
  }
  if (point < 0) point = static_cast<long>(digits.size());
  if (i < text.size()) {
    const std::string power(text.substr(i + 1));
    if (power.size() > 6) return std::nullopt;
    const bool plus = power.starts_with('+');
    std::from_chars(power.data() + plus, power.data() + power.size(), exponent);
  }
  point += exponent;
  if (digits.size() > kLongest || point > static_cast<long>(kLongest) ||
      point < -static_cast<long>(kLongest))
    return std::nullopt;
  if (point < 0) digits.insert(0, static_cast<size_t>(-point), '0'), point = 0;
  const auto p = static_cast<size_t>(point);
  if (digits.size() < p) digits.append(p - digits.size(), '0');
  out.whole = digits.substr(0, p);
  out.fraction = digits.substr(p);
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

int Decimal::compare(const Decimal& o) const {
  if (negative != o.negative) return negative ? -1 : 1;
  int c = compare_whole(whole, o.whole);
  if (c == 0) c = fraction < o.fraction ? -1 : fraction > o.fraction;
  return negative ? -c : c;
}

void NumberRange::raise(const Limit& limit) {
  const int c = low ? limit.value.compare(low->value) : 1;
  if (c > 0) low = limit;
  else if (c == 0) low->excluded = low->excluded || limit.excluded;
}

void NumberRange::lower(const Limit& limit) {
  const int c = high ? limit.value.compare(high->value) : -1;
  if (c < 0) high = limit;
  else if (c == 0) high->excluded = high->excluded || limit.excluded;
}

bool NumberRange::holds(const Decimal& value) const {
  const int below = low ? value.compare(low->value) : 1;
  const int above = high ? value.compare(high->value) : -1;
  return (below > 0 || (below == 0 && !low->excluded)) &&
         (above < 0 || (above == 0 && !high->excluded));
}

bool NumberRange::empty(bool integers) const {
  if (!low || !high) return false;
  const Limit a = integers ? integer_limit(*low, true) : *low,
              b = integers ? integer_limit(*high, false) : *high;
  const int c = a.value.compare(b.value);
  return c > 0 || (c == 0 && (a.excluded || b.excluded));
}

ExprId number_expr(const NumberRange& range, bool integers, Expressions* out) {
  Expressions& e = *out;
  if (range.empty(integers)) return Expressions::kNever;
  const ExprId digit = e.chars({{'0', '9'}});
  if (!range.low && !range.high) {
    const ExprId whole = e.choice(
        {e.text("0"), e.sequence({e.chars({{'1', '9'}}), e.repeat(digit, 0, kMostDigits - 1)})});
    const ExprId sign = e.optional(e.text("-"));
    if (integers) return e.sequence({sign, whole});
    // With at most 60 digits before the point, a double can hold the number.
    const ExprId power = e.repeat(digit, 1, 2);
    return e.sequence(
        {sign, whole, e.optional(e.sequence({e.text("."), e.repeat(digit, 1, kMostDigits)})),
         e.optional(e.sequence({e.words({"e", "E"}), e.optional(e.words({"+", "-"})), power}))});
  }
  std::optional<NumberRange::Limit> low = range.low, high = range.high;
  if (integers) {
    if (low) low = integer_limit(*low, true);
    if (high) high = integer_limit(*high, false);
  }
  std::vector<ExprId> ways;
  if (!high || !high->value.negative)
    ways.push_back(
        Magnitudes(low && !low->value.negative ? low : std::nullopt, high, integers, out).all());
  if (!low || low->value.negative) {
    std::optional<NumberRange::Limit> least, most;
    if (high && high->value.negative) least = negated(*high);
    else least = NumberRange::Limit{{}, true};  // there is no -0
    if (integers && least->excluded) least = NumberRange::Limit{*Decimal::parse("1"), false};
    if (low) most = negated(*low);
    ways.push_back(e.sequence({e.text("-"), Magnitudes(least, most, integers, out).all()}));
  }
  return e.choice(std::move(ways));
}

}  // namespace riffle::grammar
