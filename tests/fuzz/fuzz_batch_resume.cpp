// An output file that riffle batch is to go on with: refused, or a number of whole records and
// perhaps a piece of one.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/batch/resume.h"
#include "cli/common.h"

using namespace riffle::cli;

static HeldRecords scan(const uint8_t* data, size_t size) {
  const int fd = memfd_create("out", 0);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size) || lseek(fd, 0, SEEK_SET) != 0)
    std::abort();
  try {
    HeldRecords held = scan_records(fd, "out");
    close(fd);
    return held;
  } catch (...) {
    close(fd);
    throw;
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const HeldRecords held = scan(data, size);
    // The kept part ends with a record, holds one record a line, and reads as the same again.
    size_t lines = 0, failed = 0;
    for (size_t i = 0; i < held.bytes && i < size; ++i) lines += data[i] == '\n';
    for (const auto& [line, record] : held.by_line) {
      failed += record.failed;
      if (line == 0 || line > held.last_line) std::abort();
    }
    if (held.bytes > size || (held.bytes > 0 && data[held.bytes - 1] != '\n') ||
        lines != held.by_line.size() || failed != held.failed || held.torn != (held.bytes < size))
      std::abort();
    const HeldRecords again = scan(data, held.bytes);
    if (again.torn || again.bytes != held.bytes || again.by_line.size() != held.by_line.size())
      std::abort();
  } catch (const Exit& e) {
    if (e.code() != EXIT_RUN || !std::string(e.what()).starts_with("out: line ")) std::abort();
  }
  return 0;
}
