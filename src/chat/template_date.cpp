#include "chat/template_date.h"

#include "chat/template_value.h"

namespace riffle {
namespace {

constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                   "May",       "June",     "July",     "August",
                                   "September", "October",  "November", "December"};
constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};

bool is_leap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }
int days_before(int year, int month) {
  static constexpr int kBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  return kBefore[month - 1] + (month > 2 && is_leap(year));
}

}  // namespace

std::string date_text(const TemplateDate& date, std::string_view format) {
  const int years = date.year - 1, day_of_year = days_before(date.year, date.month) + date.day;
  const int weekday = (years * 365 + years / 4 - years / 100 + years / 400 + day_of_year) % 7;
  std::string out;
  const auto number = [&](int value, int digits, bool bare) {
    std::string text = std::to_string(value);
    while (!bare && static_cast<int>(text.size()) < digits) text.insert(0, "0");
    out += text;
  };
  for (size_t i = 0; i < format.size(); i++) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    const bool bare = format[i + 1] == '-';
    i += bare ? 2 : 1;
    switch (i < format.size() ? format[i] : 0) {
      case 'd': number(date.day, 2, bare); break;
      case 'm': number(date.month, 2, bare); break;
      case 'Y': number(date.year, 1, bare); break;
      case 'y': number(date.year % 100, 2, bare); break;
      case 'j': number(day_of_year, 3, bare); break;
      case 'H':
      case 'M':
      case 'S': number(0, 2, bare); break;
      case 'I': number(12, 2, bare); break;
      case 'p': out += "AM"; break;
      case 'B': out += kMonths[date.month - 1]; break;
      case 'b':
      case 'h': out.append(kMonths[date.month - 1], 3); break;
      case 'A': out += kDays[weekday]; break;
      case 'a': out.append(kDays[weekday], 3); break;
      case 'F': out += date_text(date, "%Y-%m-%d"); break;
      case 'T': out += "00:00:00"; break;
      case '%': out += '%'; break;
      default:
        template_stop(TemplateStop::UNKNOWN,
                      "it writes a date as '" + std::string(format.substr(0, 60)) + "'");
    }
  }
  return out;
}

bool read_date(std::string_view text, TemplateDate* date) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  int parts[3] = {};
  static constexpr size_t kAt[] = {0, 5, 8, 11};
  for (size_t i = 0; i < 3; i++) {
    for (size_t at = kAt[i]; at + 1 < kAt[i + 1]; at++) {
      if (text[at] < '0' || text[at] > '9') return false;
      parts[i] = 10 * parts[i] + (text[at] - '0');
    }
  }
  *date = {parts[0], parts[1], parts[2]};
  if (date->year < 1 || date->month < 1 || date->month > 12 || date->day < 1) return false;
  const int next =
      date->month == 12 ? 365 + is_leap(date->year) : days_before(date->year, date->month + 1);
  return date->day <= next - days_before(date->year, date->month);
}

}  // namespace riffle
