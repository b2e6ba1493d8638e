#include "cli/batch/ahead.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "cli/text.h"

namespace riffle::cli {

static constexpr size_t kAround = sizeof(".") - 1 + sizeof(".ahead") - 1;

AheadFile::AheadFile(const std::string& output) {
  const size_t name = output.rfind('/') + 1;  // npos + 1: 0
  // A name that would be too long is cut, and a hash of the whole name is appended.
  std::string kept = output.substr(name);
  if (kept.size() > NAME_MAX - kAround) {
    const size_t hash = std::hash<std::string>()(kept);
    kept = kept.substr(0, NAME_MAX - kAround - 17) + text_of("-%016zx", hash);
  }
  path_ = output.substr(0, name) + "." + kept + ".ahead";
}

void AheadFile::fail(const char* what, int error) const {
  throw Exit(EXIT_RUN, path_ + ": " + what + ": " + std::strerror(error));
}

size_t AheadFile::load(HeldRecords& held) {
  Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT) return 0;
    fail("cannot open", errno);
  }
  struct stat s {};
  const bool regular = ::fstat(file.get(), &s) == 0 && S_ISREG(s.st_mode);
  LineReader reader(file.get(), path_, kMaxRecordBytes);
  held.ahead_name = path_;
  std::string line;
  size_t damaged = 0;
  while (regular && reader.next(line) == LineReader::Got::LINE && reader.whole()) {
    RecordHead head;
    try {
      head = record_of(reader, line);
    } catch (const std::runtime_error&) {
      ++damaged;
      continue;
    }
    end_ = reader.offset();
    if (head.failed || held.by_line.contains(head.line)) continue;
    held.ahead[head.line] = HeldRecord{head.custom_id, false};
    records_[head.line] = {end_ - line.size() - 1, line.size()};
  }
  if (end_ == 0 && (!regular || damaged > 0 || (s.st_size > 0 && !torn_record(line))))
    throw Exit(
        EXIT_RUN,
        path_ +
            ": found a file of another kind, expected answers that riffle batch keeps there until "
            "their turn comes; move it away");
  loaded_ = std::move(file);
  return damaged;
}

std::optional<std::string> AheadFile::take(size_t line) {
  const auto at = records_.find(line);
  if (at == records_.end()) return std::nullopt;
  const Place place = at->second;
  records_.erase(at);
  std::string record(place.bytes, '\0');
  for (size_t done = 0; done < place.bytes;) {
    const ssize_t n = ::pread(file_.get() < 0 ? loaded_.get() : file_.get(), record.data() + done,
                              place.bytes - done, static_cast<off_t>(place.at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot read", n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
  return record;
}

bool AheadFile::add(const std::string& record) {
  if (file_.get() < 0) {
    file_ = Descriptor(
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file_.get() < 0 && (errno == EACCES || errno == EPERM || errno == EROFS)) return false;
    if (file_.get() < 0) fail("cannot create", errno);
    if (::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0)
      fail("cannot cut off its end", errno);
  }
  const std::string line = record + "\n";
  if (const int error = write_all(file_.get(), line)) fail("cannot write", error);
  end_ += line.size();
  unsynced_ = true;
  return true;
}

bool AheadFile::move_in(size_t line, const std::string& record) {
  if (!add(record)) return false;
  records_[line] = {end_ - record.size() - 1, record.size()};
  return true;
}

void AheadFile::clear() {
  if (end_ == 0) return;
  if (file_.get() < 0) return remove();
  if (::ftruncate(file_.get(), 0) != 0) fail("cannot be emptied", errno);
  end_ = 0;
}

void AheadFile::sync() {
  if (unsynced_) ::fdatasync(file_.get());  // records that are lost are made again
  unsynced_ = false;
}

void AheadFile::make_durable() {
  if (file_.get() < 0) return;
  if (::fsync(file_.get()) != 0 && errno != EINVAL && errno != ENOSYS) fail("cannot write", errno);
  const std::string folder = path_.substr(0, path_.rfind('/') + 1);
  const Descriptor of_name(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
  // Some file systems refuse to sync a folder.
  if (of_name.get() >= 0) (void)::fsync(of_name.get());
  unsynced_ = false;
}

void AheadFile::remove() {
  file_ = Descriptor();
  loaded_ = Descriptor();
  ::unlink(path_.c_str());
  records_.clear();
  end_ = 0;
}

}  // namespace riffle::cli
