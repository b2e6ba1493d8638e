#include "cli/batch/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/text_file.h"

namespace riffle::cli {
namespace {

constexpr size_t kMaxShards = 1000000;
using Got = LineReader::Got;

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard s;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, s.index);
  if (error == std::errc() && slash != end && *slash == '/') {
    const auto [rest, error2] = std::from_chars(slash + 1, end, s.count);
    if (error2 == std::errc() && rest == end && s.index >= 1 && s.index <= s.count &&
        s.count <= kMaxShards)
      return s;
  }
  refuse_value("--shard", "'" + text + "': expected I/N, with I from 1 to N, such as 2/3");
}

BatchInput::BatchInput(const std::string& path, const Shard& shard, const BatchDefaults& defaults)
    : name_(path == "-" ? "stdin" : path), shard_(shard), defaults_(defaults), fd_(STDIN_FILENO) {
  if (path != "-") {
    file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    fd_ = file_.get();
    if (fd_ < 0) throw Exit(EXIT_RUN, path + ": cannot open: " + std::strerror(errno));
  }
  if (::fstat(fd_, &stat_) != 0)
    throw Exit(EXIT_RUN, name_ + ": cannot read: " + std::strerror(errno));
  regular_ = S_ISREG(stat_.st_mode);
  if (S_ISDIR(stat_.st_mode))
    throw Exit(EXIT_RUN, name_ + ": cannot read: " + std::strerror(EISDIR));
  if (regular_) begin_ = ::lseek(fd_, 0, SEEK_CUR);
  if (path != "-" && is_lfs_pointer(beginning_of(path, 1024)))
    throw Exit(EXIT_RUN, lfs_complaint(path));
  if (shard.count > 1 && !regular_)
    throw Exit(EXIT_USAGE,
               "--shard: found the input " + name_ + ", expected a regular file; name one with -i");
  rewind();
}

bool BatchInput::is_file(const struct stat& other) const {
  return regular_ && stat_.st_dev == other.st_dev && stat_.st_ino == other.st_ino;
}

void BatchInput::rewind() {
  if (regular_ && ::lseek(fd_, begin_, SEEK_SET) < 0)
    throw Exit(EXIT_RUN, name_ + ": cannot read: " + std::strerror(errno));
  reader_.emplace(fd_, name_, kMaxLineBytes, interrupted);
  place_ = 0;
  over_ = fills_gaps_ = false;
  seen_.clear();
  for (auto* records : {&held_.by_line, &held_.ahead})
    for (auto& [number, record] : *records) record.found = false;
}

// Accepts a \r from another system, and a byte order mark at the very beginning.
void BatchInput::blank_or_trim(std::string& line) const {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (reader_->number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  if (line.find_first_not_of(" \t") == line.npos) line.clear();
}

void BatchInput::survey(HeldRecords held, const std::string& output) {
  held_ = std::move(held);
  output_name_ = output;
  if (!regular_) return;
  size_t lines = 0;
  while (reader_->next(line_) == Got::LINE) {
    blank_or_trim(line_);
    if (!line_.empty() || reader_->too_long()) ++lines;
  }
  if (shard_.count > 1) {
    first_ = (shard_.index - 1) * lines / shard_.count;
    end_ = shard_.index * lines / shard_.count;
    lines = end_ - first_;
  }
  total_ = remaining_ = lines;
  rewind();
  if (held_.by_line.empty() && held_.ahead.empty()) return;
  InputLine unused;
  remaining_ = 0;
  while (next(unused, true) == Got::LINE) ++remaining_;
  const bool gaps = fills_gaps_;
  rewind();
  fills_gaps_ = gaps;
}

void BatchInput::check_held(const std::string& file, HeldRecord& held, size_t number,
                            const std::string& custom_id, bool mine) const {
  const auto refuse = [&](const std::string& why) {
    throw Exit(EXIT_USAGE,
               file + " was written for other input: " + why + " (--restart starts over)");
  };
  const auto named = [](const std::string& id) {
    return id.empty() ? std::string("none")
                      : dump(Json(id.size() > 60 ? id.substr(0, 57) + "..." : id));
  };
  if (!mine)
    refuse(text_of("it has a record for line %zu, which is not in shard %zu/%zu", number,
                   shard_.index, shard_.count));
  // A line that ran out of memory before it was parsed has a record without its custom_id.
  if (held.custom_id != custom_id && !(held.failed && held.custom_id.empty()))
    refuse(text_of("its record for line %zu has custom_id %s, the line in %s has %s", number,
                   named(held.custom_id).c_str(), name_.c_str(), named(custom_id).c_str()));
  held.found = true;
}

void BatchInput::check_all_found() const {
  for (const auto* records : {&held_.by_line, &held_.ahead})
    for (const auto& [number, record] : *records)
      if (!record.found)
        throw Exit(
            EXIT_USAGE,
            text_of("%s was written for other input: it has a record for line %zu, which is "
                    "not in %s%s "
                    "(--restart starts over)",
                    (records == &held_.ahead ? file_of_ahead(record) : file_of(record)).c_str(),
                    number, name_.c_str(),
                    shard_.count > 1
                        ? text_of("'s shard %zu/%zu", shard_.index, shard_.count).c_str()
                        : ""));
}

Got BatchInput::next(InputLine& out, bool wait) {
  for (;;) {
    if (over_) return Got::END;
    const Got got = reader_->next(line_, wait);
    if (got == Got::WAIT) return got;
    if (got == Got::LINE) {
      blank_or_trim(line_);
      if (line_.empty() && !reader_->too_long()) continue;
    }
    if (got == Got::END || place_ == end_) {
      over_ = true;
      if (!interrupted()) check_all_found();
      return Got::END;
    }
    // Lines before the shard and answered lines count too when ids are checked for repetition.
    const bool mine = place_++ >= first_;
    const size_t number = reader_->number();
    out = InputLine{};
    out.number = number;
    out.error = failure_of(number, out.request.custom_id, [&] {
      if (reader_->too_long())
        throw BatchError{"line_too_long",
                         text_of("line %zu: longer than %zu bytes", number, kMaxLineBytes), ""};
      out.request = parse_batch_line(line_, number, defaults_);
      if (const auto [used, first] = seen_.emplace(out.request.custom_id, number); !first)
        throw BatchError{
            "dup_id",
            text_of("line %zu: field custom_id was used before, by line %zu", number, used->second),
            out.request.custom_id};
    });
    // The id counts as used whatever the result of its line. If there is no memory to store it, the
    // line's own error stays.
    if (out.error && !out.error->custom_id.empty())
      failure_of(number, out.error->custom_id,
                 [&] { seen_.emplace(out.error->custom_id, number); });
    const std::string& custom_id = out.error ? out.error->custom_id : out.request.custom_id;
    if (const auto ahead = held_.ahead.find(number); ahead != held_.ahead.end())
      check_held(file_of_ahead(ahead->second), ahead->second, number, custom_id, mine);
    const auto held = held_.by_line.find(number);
    if (held != held_.by_line.end())
      check_held(file_of(held->second), held->second, number, custom_id, mine);
    else if (mine) {
      if (number < held_.last_line) fills_gaps_ = true;
      return Got::LINE;
    }
  }
}

}  // namespace riffle::cli
