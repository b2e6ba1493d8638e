#include "util/read_ahead.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/model/test_files.h"
#include "util/file.h"

using namespace riffle;
using namespace riffle::test;

// Pages of memory that are in the system's page cache.
static size_t pages_here(const void* data, size_t bytes) {
  std::vector<unsigned char> here((bytes + 4095) / 4096);
  REQUIRE(::mincore(const_cast<void*>(data), bytes, here.data()) == 0);
  size_t n = 0;
  for (const unsigned char h : here) n += h & 1;
  return n;
}

TEST_CASE("what is read ahead comes into the page cache, and nothing else", "[read_ahead]") {
  const TempDir temp;
  const std::string path = temp / "weights";
  constexpr size_t kBytes = size_t(64) << 20, kFirst = size_t(40) << 20, kSome = size_t(8) << 20;
  write_file(path, std::string(kBytes, 'w'));
  {
    const FileDescriptor file(::open(path.c_str(), O_RDWR));
    REQUIRE(::fsync(file) == 0);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  }
  const auto file = MappedFile::open(path);
  if (pages_here(file->view().data, kBytes) > 0) {
    WARN("SKIPPED: this file system keeps its files in memory");
    return;
  }
  // Not from a page's beginning.
  const uint8_t* from = file->view().data + kFirst + 100;
  ReadAhead ahead({file}, {{from, kSome}});
  ahead.wait();
  const size_t want = kSome / 4096;
  for (int i = 0; i < 1000 && pages_here(from - 100, kSome) < want; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(pages_here(from - 100, kSome) == want);
  CHECK(pages_here(file->view().data, kFirst / 2) == 0);
}

TEST_CASE("reading ahead ends with its owner", "[read_ahead]") {
  const TempDir temp;
  const std::string path = temp / "weights";
  write_file(path, std::string(size_t(1) << 20, 'w'));
  const auto file = MappedFile::open(path);
  std::vector<MappedBytes> parts(1 << 20, {file->view().data, file->view().size});  // 1 TiB
  const auto begin = std::chrono::steady_clock::now();
  { ReadAhead ahead({file}, std::move(parts)); }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}
