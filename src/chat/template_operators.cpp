// Arithmetic and the two ways of formatting a string.
#include <cmath>
#include <limits>

#include "chat/python_text.h"
#include "chat/template_calls.h"
#include "util/error.h"

namespace riffle {

namespace {

[[noreturn]] void no_operator(std::string_view sign, const Value& a, const Value& b) {
  template_stop(TemplateStop::FAILED, std::string("it computes ") + type_name(a) + " " +
                                          std::string(sign) + " " + type_name(b));
}
[[noreturn]] void too_large() {
  template_stop(TemplateStop::LIMIT, "it computes a number of more than 64 bits");
}

int64_t floor_divided(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == std::numeric_limits<int64_t>::min()) too_large();
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value whole_numbers(std::string_view sign, int64_t a, int64_t b) {
  int64_t out = 0;
  bool over = false;
  if (sign == "+") over = __builtin_add_overflow(a, b, &out);
  else if (sign == "-") over = __builtin_sub_overflow(a, b, &out);
  else if (sign == "*") over = __builtin_mul_overflow(a, b, &out);
  else if (sign == "**") {
    if (b < 0) {
      if (a == 0) template_stop(TemplateStop::FAILED, "it divides by zero");
      return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    out = 1;
    if (a == 1 || b == 0) return Value::integer(1);
    if (a == 0) return Value::integer(0);
    if (a == -1) return Value::integer(b % 2 == 0 ? 1 : -1);
    if (b > 64) too_large();
    for (int64_t i = 0; i < b && !over; i++) over = __builtin_mul_overflow(out, a, &out);
  } else {
    if (b == 0) template_stop(TemplateStop::FAILED, "it divides by zero");
    if (sign == "/") return Value::real(static_cast<double>(a) / static_cast<double>(b));
    out = floor_divided(a, b);
    if (sign == "%") out = b == -1 ? 0 : a - out * b;
  }
  if (over) too_large();
  return Value::integer(out);
}

Value real_numbers(std::string_view sign, double a, double b) {
  if (sign == "+") return Value::real(a + b);
  if (sign == "-") return Value::real(a - b);
  if (sign == "*") return Value::real(a * b);
  if (sign == "**") return Value::real(std::pow(a, b));
  if (b == 0) template_stop(TemplateStop::FAILED, "it divides by zero");
  if (sign == "/") return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return Value::real(rest == 0 ? std::copysign(0.0, b) : rest);
  return Value::real(std::round((a - rest) / b));
}

Value added(const Value& a, const Value& b, TemplateBudget& budget) {
  budget.bytes(a.text().size() + b.text().size() + sizeof(SourcedText));
  const bool markup = a.markup() || b.markup();
  SourcedText out = markup && !a.markup() ? escaped(a.text()) : a.text();
  out.append(markup && !b.markup() ? escaped(b.text()) : b.text());
  return Value::string(std::move(out), markup);
}

Value repeated(const Value& what, int64_t n, TemplateBudget& budget) {
  n = std::max<int64_t>(n, 0);
  const bool list = what.is(Value::LIST);
  const size_t size = list ? what.list().items.size() * sizeof(Value) : what.text().size();
  size_t all = 0;
  if (__builtin_mul_overflow(size, static_cast<size_t>(n), &all)) all = SIZE_MAX;
  budget.bytes(all);
  budget.bytes(sizeof(SourcedText));
  if (size == 0) n = 0;
  if (list) {
    std::vector<Value> items;
    for (int64_t i = 0; i < n; i++)
      items.insert(items.end(), what.list().items.begin(), what.list().items.end());
    return Value::list(std::move(items), what.list().form);
  }
  SourcedText out;
  for (int64_t i = 0; i < n; i++) out.append(what.text());
  return Value::string(std::move(out), what.markup());
}

bool is_sequence(const Value& v) {
  return v.is(Value::STRING) || v.is_list(TemplateList::LIST) || v.is_list(TemplateList::TUPLE);
}

}  // namespace

Value binary(std::string_view sign, const Value& a, const Value& b, TemplateBudget& budget) {
  budget.step();
  if (sign == "~") {
    SourcedText out;
    append_text(a, &out, budget);
    append_text(b, &out, budget);
    return Value::string(std::move(out));
  }
  if (sign == "%" && a.is(Value::STRING))
    return Value::string(percent_format(a.text(), b, budget), a.markup());
  if (a.is_whole() && b.is_whole()) return whole_numbers(sign, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return real_numbers(sign, a.real(), b.real());
  if (sign == "+" && a.is(Value::STRING) && b.is(Value::STRING)) return added(a, b, budget);
  if (sign == "+" && a.is(Value::LIST) && b.is(Value::LIST) && a.list().form == b.list().form &&
      is_sequence(a)) {
    std::vector<Value> items = items_of(a, budget);
    for (Value& item : items_of(b, budget)) items.push_back(std::move(item));
    return Value::list(std::move(items), a.list().form);
  }
  if (sign == "*" && is_sequence(a) && b.is_whole()) return repeated(a, b.integer(), budget);
  if (sign == "*" && is_sequence(b) && a.is_whole()) return repeated(b, a.integer(), budget);
  if (a.is(Value::UNDEFINED) || b.is(Value::UNDEFINED)) {
    template_stop(TemplateStop::FAILED, "'" + (a.is(Value::UNDEFINED) ? a : b).str() +
                                            "' is undefined, but it computes " + std::string(sign) +
                                            " with it");
  }
  no_operator(sign, a, b);
}

Value negative(const Value& value) {
  if (value.is(Value::REAL)) return Value::real(-value.real());
  if (!value.is_whole()) wrong_type("a minus", value, "a number");
  if (value.integer() == std::numeric_limits<int64_t>::min()) too_large();
  return Value::integer(-value.integer());
}

// ---- formatting

namespace {

// Flags, width, precision and type of %d or {:d}.
struct Spec {
  char fill = ' ', align = 0, sign = 0, type = 0;
  bool alternate = false, commas = false;
  int64_t width = 0, precision = -1;
};

SourcedText aligned(SourcedText text, const Spec& spec, char otherwise, TemplateBudget& budget) {
  const int64_t missing = spec.width - static_cast<int64_t>(char_count(text.view()));
  if (missing <= 0) return text;
  budget.bytes(static_cast<size_t>(missing));
  const char align = spec.align ? spec.align : otherwise;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const size_t sign = align == '=' && (text.str()[0] == '-' || text.str()[0] == '+') ? 1 : 0;
  SourcedText out;
  out.append(text, 0, sign);
  out.append(std::string(static_cast<size_t>(left), spec.fill));
  out.append(text, sign);
  out.append(std::string(static_cast<size_t>(missing - left), spec.fill));
  return out;
}

std::string with_commas(std::string digits) {
  const size_t first = digits[0] == '-' || digits[0] == '+';
  const size_t end = std::min(digits.find('.'), digits.size());
  for (size_t at = end; at > first + 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string number_text(const Value& value, const Spec& spec) {
  char type = spec.type;
  if (type == 'i' || type == 'u') type = 'd';
  if (spec.precision > 100) template_stop(TemplateStop::LIMIT, "it formats more than 100 digits");
  std::string format = "%";
  if (spec.sign == '+') format += '+';
  if (spec.sign == ' ') format += ' ';
  if (spec.alternate) format += '#';
  std::string text;
  if (type == 'd' || type == 'x' || type == 'X' || type == 'o') {
    if (!value.is_number() || (type != 'd' && !value.is_whole()))
      wrong_type("a format", value, "a number");
    if (spec.precision >= 0)
      template_stop(TemplateStop::UNKNOWN, "it formats a whole number with a precision");
    if (!value.is_whole() && !(std::abs(value.real()) < 9.2e18))
      template_stop(TemplateStop::LIMIT, "it makes a number of more than 64 bits");
    const int64_t number =
        value.is_whole() ? value.integer() : static_cast<int64_t>(std::trunc(value.real()));
    if (type != 'd' && number < 0)
      template_stop(TemplateStop::UNKNOWN, "it formats a negative number in this way");
    format += "ll";
    format += type;
    text = riffle::format(format.c_str(), static_cast<long long>(number));
  } else {
    if (!value.is_number()) wrong_type("a format", value, "a number");
    if (std::abs(value.real()) > 1e200)
      template_stop(TemplateStop::LIMIT, "it formats a huge number");
    double number = value.real();
    if (type == '%') number *= 100;
    format += ".*";
    format += type == '%' ? 'f' : type;
    text = riffle::format(format.c_str(), static_cast<int>(spec.precision < 0 ? 6 : spec.precision),
                          number);
    if (type == '%') return text + "%";
  }
  return spec.commas ? with_commas(text) : text;
}

int64_t read_number(std::string_view text, size_t* pos) {
  int64_t n = 0;
  for (; *pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9'; ++*pos)
    n = std::min<int64_t>(n * 10 + (text[*pos] - '0'), 1 << 30);
  return n;
}

bool is_one_of(char c, std::string_view chars) { return chars.find(c) != chars.npos; }

SourcedText cut_to(const SourcedText& text, int64_t precision) {
  return precision < 0 ? text
                       : text.part(0, char_offset(text.view(), static_cast<size_t>(precision)));
}

}  // namespace

SourcedText percent_format(const SourcedText& format, const Value& arguments,
                           TemplateBudget& budget) {
  const std::string_view all = format.view();
  budget.bytes(all.size() + sizeof(SourcedText));
  SourcedText out;
  size_t used = 0;
  bool named = false;
  const bool tuple = arguments.is_list(TemplateList::TUPLE);
  const auto next = [&]() -> Value {
    const size_t n = tuple ? arguments.list().items.size() : 1;
    if (used >= n) template_stop(TemplateStop::FAILED, "a format has too few arguments");
    used++;
    return tuple ? arguments.list().items[used - 1] : arguments;
  };
  for (size_t pos = 0; pos < all.size();) {
    const size_t percent = std::min(all.find('%', pos), all.size());
    out.append(format, pos, percent);
    if ((pos = percent) == all.size()) break;
    pos++;
    Value value;
    bool given = false;
    if (pos < all.size() && all[pos] == '(') {
      const size_t end = all.find(')', pos);
      if (end == all.npos || !arguments.is(Value::DICT))
        template_stop(TemplateStop::FAILED, "a format asks for a name without a dict");
      const Value* const found = arguments.find(all.substr(pos + 1, end - pos - 1));
      if (!found)
        template_stop(TemplateStop::FAILED, "a format asks for a name that does not exist");
      value = *found;
      given = named = true;
      pos = end + 1;
    }
    Spec spec;
    for (; pos < all.size() && is_one_of(all[pos], "-+ 0#"); pos++) {
      if (all[pos] == '-') spec.align = '<';
      else if (all[pos] == '#') spec.alternate = true;
      else if (all[pos] == '0') spec.fill = '0';
      else if (spec.sign != '+') spec.sign = all[pos];
    }
    spec.width = read_number(all, &pos);
    if (pos < all.size() && all[pos] == '.') spec.precision = read_number(all, &++pos);
    if (pos == all.size()) template_stop(TemplateStop::FAILED, "a format ends in %");
    spec.type = all[pos++];
    if (spec.type == '%') {
      out.append("%");
      continue;
    }
    if (!given) value = next();
    SourcedText text;
    if (spec.type == 's') append_text(value, &text, budget);
    else if (spec.type == 'r') append_repr(value, &text, budget);
    else if (is_one_of(spec.type, "diuxXoeEfFgG")) text.append(number_text(value, spec));
    else template_stop(TemplateStop::UNKNOWN, std::string("it formats with %") + spec.type);
    if (spec.type == 's' || spec.type == 'r') {
      text = cut_to(text, spec.precision);
      spec.fill = ' ';
    } else if (spec.fill == '0' && !spec.align) {
      spec.align = '=';
    } else {
      spec.fill = ' ';
    }
    out.append(aligned(std::move(text), spec, '>', budget));
  }
  const bool all_used = named || arguments.is(Value::DICT) || arguments.is_list(TemplateList::LIST)
                            ? true
                            : used == (tuple ? arguments.list().items.size() : 1);
  if (!all_used) template_stop(TemplateStop::FAILED, "a format has too many arguments");
  return out;
}

namespace {

// Returns the value that a field of a format names: 0, name, 0.attribute, name[item].
Value field_value(std::string_view field, const TemplateArguments& given, int64_t* automatic,
                  TemplateBudget& budget) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string first(field.substr(0, end));
  Value value;
  if (first.empty() || first.find_first_not_of("0123456789") == first.npos) {
    if (first.empty() == (*automatic < 0) && *automatic != 0)
      template_stop(TemplateStop::FAILED, "a format mixes numbered and unnumbered fields");
    size_t pos = 0;
    const int64_t at = first.empty() ? (*automatic)++ : read_number(first, &pos);
    if (!first.empty()) *automatic = -1;
    if (at >= static_cast<int64_t>(given.list.size()))
      template_stop(TemplateStop::FAILED, "a format has too few arguments");
    value = given.list[static_cast<size_t>(at)];
  } else {
    bool found = false;
    for (const auto& [name, one] : given.keywords) {
      if (name == first) value = one;
      found = found || name == first;
    }
    if (!found) template_stop(TemplateStop::FAILED, "a format asks for a name that does not exist");
  }
  for (size_t pos = end; pos < field.size();) {
    const bool item = field[pos] == '[';
    const size_t stop =
        item ? field.find(']', pos) : std::min(field.find_first_of(".[", pos + 1), field.size());
    if (stop == field.npos) template_stop(TemplateStop::FAILED, "a format has no ]");
    const std::string name(field.substr(pos + 1, stop - pos - 1));
    size_t digits = 0;
    const int64_t index = read_number(name, &digits);
    if (!item) value = get_attribute(value, name, budget);
    else if (digits == name.size() && digits > 0)
      value = get_item(value, Value::integer(index), budget);
    else value = get_item(value, Value::string(name), budget);
    if (value.is(Value::UNDEFINED))
      template_stop(TemplateStop::FAILED, "a format asks for a part that does not exist");
    pos = stop + item;
  }
  return value;
}

SourcedText format_value(const Value& value, std::string_view text, TemplateBudget& budget) {
  Spec spec;
  size_t pos = 0;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  if (at(1) && is_one_of(at(1), "<>^=")) {
    spec.fill = at(0);
    spec.align = at(1);
    pos = 2;
  } else if (at(0) && is_one_of(at(0), "<>^=")) {
    spec.align = at(pos++);
  }
  if (at(pos) && is_one_of(at(pos), "+- ")) spec.sign = at(pos++);
  if (at(pos) == '#') spec.alternate = at(pos++) != 0;
  if (at(pos) == '0') {
    if (!spec.align) spec.fill = '0', spec.align = '=';
    pos++;
  }
  spec.width = read_number(text, &pos);
  if (at(pos) == ',') spec.commas = at(pos++) != 0;
  if (at(pos) == '.') spec.precision = read_number(text, &++pos);
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) template_stop(TemplateStop::FAILED, "a format has a bad specification");
  SourcedText out;
  const bool number = value.is_number() && !value.is(Value::BOOL);
  if (number && spec.type == 0) spec.type = value.is(Value::REAL) ? 's' : 'd';
  if (number && spec.type == 's' && spec.precision >= 0)
    template_stop(TemplateStop::UNKNOWN, "it formats a number with a precision and no type");
  if (number && spec.type != 's') {
    if (!is_one_of(spec.type, "dxXoeEfFgG%") || (spec.type == 'd' && !value.is_whole()))
      template_stop(TemplateStop::FAILED, "a format has a bad type");
    out.append(number_text(value, spec));
    return aligned(std::move(out), spec, '>', budget);
  }
  if (!text.empty() && !value.is(Value::STRING) && !number)
    template_stop(TemplateStop::FAILED,
                  "a format has a specification for a value that is not a string");
  if (spec.type && spec.type != 's') template_stop(TemplateStop::FAILED, "a format has a bad type");
  append_text(value, &out, budget);
  return aligned(cut_to(out, spec.precision), spec, number ? '>' : '<', budget);
}

}  // namespace

SourcedText brace_format(const SourcedText& format, const TemplateArguments& given,
                         TemplateBudget& budget) {
  const std::string_view all = format.view();
  budget.bytes(all.size() + sizeof(SourcedText));
  SourcedText out;
  int64_t automatic = 0;
  for (size_t pos = 0; pos < all.size();) {
    const size_t brace = std::min(all.find_first_of("{}", pos), all.size());
    out.append(format, pos, brace);
    if ((pos = brace) == all.size()) break;
    if (pos + 1 < all.size() && all[pos + 1] == all[pos]) {
      out.append(format, pos, pos + 1);
      pos += 2;
      continue;
    }
    const size_t end = all.find_first_of("{}", pos + 1);
    if (all[pos] == '}' || end == all.npos)
      template_stop(TemplateStop::FAILED, "a format has a single brace");
    if (all[end] == '{') template_stop(TemplateStop::UNKNOWN, "a format has a field in a field");
    std::string_view field = all.substr(pos + 1, end - pos - 1), spec;
    if (const size_t colon = field.find(':'); colon != field.npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = 0;
    if (const size_t mark = field.find('!'); mark != field.npos) {
      if (field.substr(mark + 1) != "r" && field.substr(mark + 1) != "s")
        template_stop(TemplateStop::UNKNOWN, "a format has a conversion");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    Value value = field_value(field, given, &automatic, budget);
    if (conversion == 's') value = to_text(value, budget);
    if (conversion == 'r') {
      SourcedText text;
      append_repr(value, &text, budget);
      value = Value::string(std::move(text));
    }
    out.append(format_value(value, spec, budget));
    pos = end + 1;
  }
  return out;
}

SourcedText escaped(const SourcedText& text) {
  SourcedText out;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size(); pos++) {
    const char c = text.str()[pos];
    const char* const entity = c == '&'    ? "&amp;"
                               : c == '<'  ? "&lt;"
                               : c == '>'  ? "&gt;"
                               : c == '"'  ? "&#34;"
                               : c == '\'' ? "&#39;"
                                           : nullptr;
    if (!entity) continue;
    out.append(text, begin, pos);
    out.append(entity, text.source_at(pos));
    begin = pos + 1;
  }
  out.append(text, begin);
  return out;
}

}  // namespace riffle
