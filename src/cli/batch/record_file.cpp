#include "cli/batch/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "cli/printable.h"
#include "cli/text_file.h"

namespace riffle::cli {

RecordFile::RecordFile(const std::string& path, const char* flag, const BatchInput& input,
                       bool quiet)
    : path_(path), name_(path == "-" ? "stdout" : path), fd_(STDOUT_FILENO) {
  if (path == "-") {
    ::fstat(fd_, &stat_);
    return;
  }
  struct stat s {};
  const bool exists = ::stat(path.c_str(), &s) == 0;
  if (!exists) {
    path_ = link_target(path);  // > in a shell creates the target of a link too
    if (path_.empty()) fail("cannot create", ELOOP);
  }
  // A pipe is opened only for writing, so that riffle notices when its reader goes away.
  const int flags = O_CLOEXEC | (!exists              ? O_RDWR | O_CREAT | O_EXCL
                                 : S_ISREG(s.st_mode) ? O_RDWR
                                                      : O_WRONLY);
  file_ = Descriptor(::open(path_.c_str(), flags, 0666));
  if (file_.get() < 0) fail(exists ? "cannot open" : "cannot create", errno);
  fd_ = file_.get();
  created_ = !exists;
  if (::fstat(fd_, &stat_) != 0) fail("cannot open", errno);
  if (!S_ISREG(stat_.st_mode)) return;
  if (input.is_file(stat_))
    throw Exit(EXIT_USAGE, std::string(flag) + " " + path + " is the input file");
  regular_ = true;
  // A killed process holds the lock until the system has freed its memory.
  int locked = -1;
  for (int i = 0; i < 50 && (locked = ::flock(fd_, LOCK_EX | LOCK_NB)) != 0 &&
                  (errno == EWOULDBLOCK || errno == EINTR);
       ++i) {
    if (interrupted()) break;
    if (i == 10) notice(quiet, "[waiting for another riffle batch that has %s open]", path.c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    errno = EWOULDBLOCK;
  }
  if (locked != 0) {
    if (errno == EWOULDBLOCK) {
      created_ = false;  // the other process owns the file now
      throw Exit(EXIT_RUN, path + ": another riffle batch is writing to it");
    }
    notice(quiet, "[%s cannot be locked (%s): make sure that no other riffle batch writes to it]",
           path.c_str(), std::strerror(errno));
  }
  // The process that held the lock may have removed an empty file between open and lock.
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0 || now.st_ino != stat_.st_ino || now.st_dev != stat_.st_dev) {
    created_ = false;
    throw Exit(EXIT_RUN,
               path + ": another riffle batch has just removed it: run this command again");
  }
}

RecordFile::~RecordFile() { leave(); }

// Removes an empty file that this run created but never wrote.
void RecordFile::leave() {
  struct stat s {};
  if (created_ && ::fstat(fd_, &s) == 0 && s.st_size == 0) ::unlink(path_.c_str());
  created_ = false;
}

bool RecordFile::terminal() const { return is_terminal(fd_); }

bool RecordFile::is_file(const RecordFile& other) const {
  return S_ISREG(stat_.st_mode) && stat_.st_dev == other.stat_.st_dev &&
         stat_.st_ino == other.stat_.st_ino;
}

void RecordFile::fail(const char* what, int error) const {
  throw Exit(EXIT_RUN, name_ + ": " + what + ": " + std::strerror(error));
}

void RecordFile::visit(uint64_t from, uint64_t to, const Visit& visit) const {
  if (::lseek(fd_, static_cast<off_t>(from), SEEK_SET) < 0) fail("cannot read", errno);
  LineReader reader(fd_, name_, kMaxRecordBytes);
  std::string line;
  for (uint64_t at = from; at < to && reader.next(line) == LineReader::Got::LINE;
       at = from + reader.offset())
    visit(record_of(reader, line), line, at);
}

void RecordFile::begin(uint64_t bytes) {
  created_ = false;
  if (!regular_) return;
  end_ = bytes;
  if (::ftruncate(fd_, static_cast<off_t>(end_)) != 0) fail("cannot cut off its end", errno);
  if (::lseek(fd_, static_cast<off_t>(end_), SEEK_SET) < 0) fail("cannot write", errno);
}

void RecordFile::write(const std::string& record) {
  const std::string line = (terminal() ? printable(record) : record) + "\n";
  if (const int error = write_all(fd_, line)) {
    if (regular_ && ::ftruncate(fd_, static_cast<off_t>(end_)) != 0)
      fail("cannot write, and cannot cut off its end", error);
    fail("cannot write", error);
  }
  end_ += line.size();
  unsynced_ = true;
}

void RecordFile::sync() {
  if (!regular_ || !unsynced_) return;
  // Network file systems report a full disk only here.
  if (::fdatasync(fd_) != 0 && errno != EINVAL && errno != ENOSYS && errno != EROFS)
    fail("cannot write", errno);
  unsynced_ = false;
}

}  // namespace riffle::cli
