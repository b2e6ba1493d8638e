// The date that a template may get from the caller. Nothing here reads a clock.
#pragma once
#include <string>
#include <string_view>

namespace riffle {

struct TemplateDate {
  int year = 0, month = 0, day = 0;  // 2026, 1 to 12, 1 to 31
};
// Reads "2026-11-23". Returns false if text is not such a date.
bool read_date(std::string_view text, TemplateDate* date);

// Returns Python's strftime for midnight, in English. Throws TemplateStop for directives that
// riffle does not support.
std::string date_text(const TemplateDate& date, std::string_view format);

}  // namespace riffle
