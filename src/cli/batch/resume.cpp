#include "cli/batch/resume.h"

#include <algorithm>
#include <stdexcept>

#include "cli/batch/record.h"

namespace riffle::cli {

bool torn_record(const std::string& text) {
  const std::string_view whole = std::string_view(text).substr(0, text.find('\0'));
  return std::any_of(std::begin(kRecordBegins), std::end(kRecordBegins), [&](auto begin) {
    const size_t n = std::min(whole.size(), begin.size());
    return whole.substr(0, n) == begin.substr(0, n);
  });
}

RecordHead record_of(const LineReader& reader, const std::string& line) {
  if (reader.too_long())
    throw std::runtime_error(text_of("it is longer than %zu bytes", kMaxRecordBytes));
  return parse_record(line);
}

HeldRecords scan_records(int fd, const std::string& name) {
  HeldRecords held;
  LineReader reader(fd, name, kMaxRecordBytes);
  std::string line;
  while (reader.next(line) == LineReader::Got::LINE) {
    const auto damaged = [&](const std::string& why) {
      throw Exit(EXIT_RUN, text_of("%s: line %zu is not a record of riffle batch: %s; nothing was "
                                   "changed (--restart starts over)",
                                   name.c_str(), reader.number(), why.c_str()));
    };
    if (!reader.whole()) {
      // A line without a line break must come from an interrupted run. riffle does not touch any
      // other text.
      if (reader.too_long() || !torn_record(line)) damaged("it is text of another kind");
      held.torn = true;
      break;
    }
    RecordHead head;
    try {
      head = record_of(reader, line);
    } catch (const std::runtime_error& e) {
      damaged(e.what());
    }
    if (!held.by_line.emplace(head.line, HeldRecord{head.custom_id, head.failed}).second)
      damaged(text_of("line %zu of the input already has a record above", head.line));
    if (head.line < held.last_line) held.in_order = false;
    held.last_line = std::max(held.last_line, head.line);
    held.failed += head.failed;
    if (held.model.name.empty()) held.model = head.model;
    held.bytes = reader.offset();
  }
  return held;
}

}  // namespace riffle::cli
