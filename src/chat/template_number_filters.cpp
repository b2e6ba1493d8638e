#include <algorithm>
#include <cmath>

#include "chat/python_text.h"
#include "chat/template_filters.h"
#include "util/c_locale.h"
#include "util/error.h"

namespace riffle::number_filters {

Value to_int(const FilterUse& u) {
  const BoundArguments arguments = u.bound({"default", "base"});
  const Value otherwise = arguments.has(0) ? arguments[0] : Value::integer(0);
  const int64_t base = arguments.whole(1, 10);
  if (u.of.is(Value::UNDEFINED)) wrong_type("filter int", u.of, "one that is defined");
  if (u.of.is_whole()) return Value::integer(u.of.integer());
  double real = 0;
  if (u.of.is(Value::REAL)) {
    real = u.of.real();
  } else if (u.of.is(Value::STRING)) {
    std::string text(strip_left(strip_right(u.of.text().view())));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    char* end = nullptr;
    errno = 0;
    const bool letters = !text.empty() && !is_space(char_at(text, 0));
    const long long whole = strtoll_l(text.c_str(), &end, static_cast<int>(base), c_locale());
    if (letters && *end == 0 && base > 1 && base <= 36) {
      if (errno == ERANGE)
        template_stop(TemplateStop::LIMIT, "it reads a number of more than 64 bits");
      return Value::integer(whole);
    }
    real = strtod_l(text.c_str(), &end, c_locale());
    if (!letters || *end != 0 || text.find_first_of("xXpP(") != text.npos) return otherwise;
  } else {
    return otherwise;
  }
  if (!std::isfinite(real)) return otherwise;
  if (std::abs(real) >= 9.2e18)
    template_stop(TemplateStop::LIMIT, "it makes a number of more than 64 bits");
  return Value::integer(static_cast<int64_t>(real));
}

Value to_float(const FilterUse& u) {
  const BoundArguments arguments = u.bound({"default"});
  const Value otherwise = arguments.has(0) ? arguments[0] : Value::real(0);
  if (u.of.is(Value::UNDEFINED)) wrong_type("filter float", u.of, "one that is defined");
  if (u.of.is_number()) return Value::real(u.of.real());
  if (!u.of.is(Value::STRING)) return otherwise;
  const std::string text(strip_left(strip_right(u.of.text().view())));
  char* end = nullptr;
  const double real = strtod_l(text.c_str(), &end, c_locale());
  const bool good = !text.empty() && *end == 0 && text.find_first_of("xXpP(") == text.npos;
  return good ? Value::real(real) : otherwise;
}

Value rounded(const FilterUse& u) {
  const BoundArguments arguments = u.bound({"precision", "method"});
  if (!u.of.is_number()) wrong_type("filter round", u.of, "a number");
  const int64_t digits = arguments.whole(0, 0);
  const SourcedText* const method = arguments.text(1);
  const std::string how = method ? method->str() : "common";
  if (digits < -15 || digits > 15)
    template_stop(TemplateStop::UNKNOWN, "it rounds to more than 15 digits");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (how == "ceil") return Value::real(std::ceil(u.of.real() * scale) / scale);
  if (how == "floor") return Value::real(std::floor(u.of.real() * scale) / scale);
  if (how != "common") template_stop(TemplateStop::FAILED, "filter round has a bad method");
  if (u.of.is_whole() && digits >= 0) return Value::integer(u.of.integer());
  if (digits <= 0) return Value::real(std::nearbyint(u.of.real() * scale) / scale);
  const std::string text = format("%.*f", static_cast<int>(digits), u.of.real());
  return Value::real(strtod_l(text.c_str(), nullptr, c_locale()));
}

Value absolute(const FilterUse& u) {
  u.bound({});
  if (u.of.is(Value::REAL)) return Value::real(std::abs(u.of.real()));
  if (!u.of.is_whole()) wrong_type("filter abs", u.of, "a number");
  return u.of.integer() < 0 ? negative(u.of) : Value::integer(u.of.integer());
}

}  // namespace riffle::number_filters
