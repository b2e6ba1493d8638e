// Paths that are links.
#include "util/file.h"

#include <unistd.h>

#include <filesystem>

#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;
namespace fs = std::filesystem;

TEST_CASE("a link's file is found before and after it is there", "[file]") {
  const TempDir temp;
  fs::create_directory(temp / "far");
  fs::create_directory_symlink("far", temp / "folder");
  fs::create_symlink("file", temp / "beside");
  fs::create_symlink("../beside", temp / "far/back");
  fs::create_symlink(temp / "folder/back", temp / "chain");
  fs::create_symlink("missing/file", temp / "nowhere");
  const fs::path file = fs::canonical(temp.path()) / "file";
  for (const bool there : {false, true}) {
    INFO(there);
    if (there) write_file(file.string(), "x");
    for (const char* name : {"file", "beside", "far/back", "chain"}) {
      INFO(name);
      CHECK(fs::weakly_canonical(real_path(temp / name)) == file);
      CHECK(!fs::is_symlink(real_path(temp / name)));
    }
  }
  CHECK(real_path(temp / "nowhere") == temp / "missing/file");
}

TEST_CASE("links that lead nowhere are errors, so that none is replaced", "[file]") {
  const TempDir temp;
  fs::create_symlink("second", temp / "first");
  fs::create_symlink("first", temp / "second");
  write_file(temp / "file", "x");
  fs::create_symlink("file/below", temp / "below");
  for (const char* name : {"first", "second", "below"})
    expect_error(RIFFLE_IO, {name, "cannot follow the link"}, [&] { real_path(temp / name); });
}

TEST_CASE("a pipe without a path keeps its name", "[file]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const FileDescriptor read(ends[0]), write(ends[1]);
  const std::string name = "/proc/self/fd/" + std::to_string(ends[1]);
  CHECK(real_path(name) == name);
}
