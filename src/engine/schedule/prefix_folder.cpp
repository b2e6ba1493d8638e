#include "engine/schedule/prefix_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "util/error.h"

namespace riffle {
namespace {

constexpr size_t kDigits = 16;  // digits of each half of a name
constexpr std::string_view kEnd = ".kv";
constexpr size_t kNameBytes = 2 * kDigits + 1 + kEnd.size();
// Suffix that riffle_session_save appends while a file is not complete.
constexpr std::string_view kPart = ".part-";
// A file without a write for this time belongs to a process that was killed.
constexpr time_t kLeftSeconds = 3600;

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Tells whether a name has the form of name_of(): nothing else in the folder is ever removed.
bool is_entry(std::string_view name) {
  return name.size() == kNameBytes && is_hex(name.substr(0, kDigits)) && name[kDigits] == '-' &&
         is_hex(name.substr(kDigits + 1, kDigits)) && name.substr(2 * kDigits + 1) == kEnd;
}

bool is_left_over(std::string_view name, const struct stat& s) {
  return name.size() > kNameBytes && is_entry(name.substr(0, kNameBytes)) &&
         name.substr(kNameBytes, kPart.size()) == kPart &&
         s.st_mtime + kLeftSeconds < std::time(nullptr);
}

// Calls `use` with every name in the folder; a missing folder has none.
template <class Use>
void each_name(const std::string& path, Use use) {
  const auto close = [](DIR* d) { ::closedir(d); };
  const std::unique_ptr<DIR, decltype(close)> folder(::opendir(path.c_str()), close);
  while (const dirent* e = folder ? ::readdir(folder.get()) : nullptr) use(std::string(e->d_name));
}

}  // namespace

struct PrefixFolder::Listing {
  struct File {
    timespec used{};
    std::string name;
    uint64_t bytes = 0;
  };
  std::vector<File> entries;
  std::vector<std::string> left_over;
  uint64_t bytes = 0;  // bytes of the entries
};

PrefixFolder::PrefixFolder(std::string path, uint64_t limit)
    : path_(std::move(path)), limit_(limit) {
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) io_error(path_, "cannot create", errno);
  struct stat s {};
  if (::stat(path_.c_str(), &s) != 0) io_error(path_, "cannot open", errno);
  if (!S_ISDIR(s.st_mode)) throw Error(RIFFLE_IO, path_ + ": found a file, expected a folder");
  if (::access(path_.c_str(), R_OK | W_OK | X_OK) != 0) io_error(path_, "cannot write", errno);
  const std::string lock = path_ + "/lock";
  lock_ = FileDescriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock_ < 0) io_error(lock, "cannot open", errno);
}

std::string PrefixFolder::name_of(uint64_t group, uint64_t content) {
  return format("%016llx-%016llx%s", static_cast<unsigned long long>(group),
                static_cast<unsigned long long>(content), kEnd.data());
}

std::set<std::string> PrefixFolder::names(uint64_t group) const {
  const std::string begin = name_of(group, 0).substr(0, kDigits + 1);
  std::set<std::string> found;
  each_name(path_, [&](std::string name) {
    if (is_entry(name) && name.starts_with(begin)) found.insert(std::move(name));
  });
  return found;
}

bool PrefixFolder::has(const std::string& name) const {
  struct stat s {};
  return ::lstat(path_of(name).c_str(), &s) == 0;
}

void PrefixFolder::touch(const std::string& name) const {
  ::utimensat(AT_FDCWD, path_of(name).c_str(), nullptr, 0);  // fails if the file is gone
}

void PrefixFolder::remove(const std::string& name) const { ::unlink(path_of(name).c_str()); }

PrefixFolder::Listing PrefixFolder::list() const {
  Listing found;
  each_name(path_, [&](std::string name) {
    struct stat s {};
    if (::lstat(path_of(name).c_str(), &s) != 0 || !S_ISREG(s.st_mode)) return;
    if (is_left_over(name, s)) found.left_over.push_back(name);
    if (!is_entry(name)) return;
    found.bytes += static_cast<uint64_t>(s.st_size);
    found.entries.push_back({s.st_mtim, std::move(name), static_cast<uint64_t>(s.st_size)});
  });
  return found;
}

uint64_t PrefixFolder::limit(uint64_t in_use) const {
  if (limit_) return limit_;
  struct statvfs disk {};
  if (::statvfs(path_.c_str(), &disk) != 0) return in_use;  // then the folder does not grow
  return (static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize + in_use) / 2;
}

bool PrefixFolder::holds(uint64_t bytes) const { return bytes <= limit(limit_ ? 0 : list().bytes); }

void PrefixFolder::evict(const std::string& newest) const {
  // A process that is suspended with the lock must not block others for long. Two processes at once
  // would only remove too much.
  for (int i = 0; i < 100 && ::flock(lock_, LOCK_EX | LOCK_NB) != 0 &&
                  (errno == EWOULDBLOCK || errno == EINTR);
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  Listing all = list();
  for (const std::string& name : all.left_over) remove(name);
  std::sort(all.entries.begin(), all.entries.end(), [&](const auto& a, const auto& b) {
    const auto key = [&](const Listing::File& f) {
      return std::tuple(f.name == newest, f.used.tv_sec, f.used.tv_nsec, f.name);
    };
    return key(a) < key(b);
  });
  const uint64_t most = limit(all.bytes);
  for (const Listing::File& f : all.entries) {
    if (all.bytes <= most) break;
    remove(f.name);
    all.bytes -= f.bytes;
  }
  ::flock(lock_, LOCK_UN);
}

}  // namespace riffle
