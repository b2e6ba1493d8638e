#include "model/formats/huge_pages.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <thread>

#include "kernels/common/splitmix64.h"
#include "tests/model/test_files.h"
#include "util/memory_limits.h"
#include "util/thread_pool.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::string random_text(size_t bytes, uint64_t seed) {
  std::string text(bytes, 0);
  for (char& c : text) c = static_cast<char>(splitmix64_next(seed) >> 56);
  return text;
}

// Whether an address is in a mapping of the file itself.
bool is_in_file(const void* address, const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &from, &to) == 2 &&
        from <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < to)
      return line.find(path) != line.npos;
  }
  return false;
}

}  // namespace

TEST_CASE("a file that is moved reads the same, also meanwhile", "[huge_pages]") {
  const TempDir temp;
  const std::string path = temp / "weights";
  const std::string text = random_text((size_t(11) << 20) + 12345, 1);
  write_file(path, text);
  const auto file = MappedFile::open(path);
  REQUIRE(file->view().text() == text);
  CHECK(reinterpret_cast<uintptr_t>(file->view().data) % (2 << 20) == 0);
  CHECK(is_in_file(file->view().data, path));
  CHECK(file->pieces() == 6);

  std::atomic<bool> stop{false}, same{true};
  std::thread reader([&] {
    while (!stop)
      if (std::memcmp(file->view().data, text.data(), text.size()) != 0) same = false;
  });
  std::vector<std::thread> movers;
  std::atomic<size_t> moved{0};
  for (int i = 0; i < 3; ++i)
    movers.emplace_back([&] {
      while (file->move_piece()) ++moved;
    });
  for (std::thread& t : movers) t.join();
  stop = true;
  reader.join();
  CHECK(same);
  CHECK(moved == 6);
  CHECK(file->view().text() == text);
  CHECK(!is_in_file(file->view().data, path));
  CHECK(!is_in_file(file->view().data + text.size() - 1, path));
  CHECK(!file->move_piece());
  // What was moved is not dropped: nothing would bring it back.
  file->drop(file->view().data, text.size());
  CHECK(file->view().text() == text);
}

TEST_CASE("huge pages take files a part at a time", "[huge_pages]") {
  const TempDir temp;
  std::vector<std::shared_ptr<MappedFile>> files;
  std::vector<std::string> texts;
  for (const size_t bytes : {size_t(3) << 20, size_t(100), size_t(90) << 20}) {
    texts.push_back(random_text(bytes, bytes));
    write_file(temp / std::to_string(bytes), texts.back());
    files.push_back(MappedFile::open(temp / std::to_string(bytes)));
  }
  ThreadPool threads(2);
  HugePages pages(files);
  const auto in_place = [&] {
    size_t n = 0;
    for (const auto& file : files)
      for (size_t at = 0; at < file->view().size; at += size_t(2) << 20)
        n += is_in_file(file->view().data + at, temp / "") ? 1 : 0;
    return n;
  };
  REQUIRE(in_place() == 48);
  pages.move_some(threads);
  if (in_place() == 48) {
    WARN("SKIPPED: this processor or system does without huge pages, or little memory is free");
    return;
  }
  CHECK(in_place() == 45);  // a sixteenth
  for (int i = 1; i < 16; ++i) pages.move_some(threads);
  CHECK(in_place() == 0);
  pages.move_some(threads);
  for (size_t i = 0; i < files.size(); ++i) CHECK(files[i]->view().text() == texts[i]);
}
