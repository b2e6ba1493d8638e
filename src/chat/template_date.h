// The date that a template may be given. Nothing here looks at a clock.
#pragma once
#include <string>
#include <string_view>

namespace riffle {

struct TemplateDate {
  int year = 0, month = 0, day = 0;  // 2026, 1 to 12, 1 to 31
};
// "2026-11-23". False if text is no such date.
bool read_date(std::string_view text, TemplateDate* date);

// Python's strftime, at midnight and in English. Throws TemplateStop for a directive that it does
// not have.
std::string date_text(const TemplateDate& date, std::string_view format);

}  // namespace riffle
