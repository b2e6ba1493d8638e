// The reader of sessions. Checksums are made right before it reads, so that it sees what lies
// behind them.
#include <cstring>
#include <string>

#include "kv/file/session_file.h"
#include "kv/file/session_layout.h"
#include "util/checksum.h"
#include "util/error.h"

using namespace riffle;
namespace disk = riffle::session_layout;

static void seal(std::string& file, uint64_t page) {
  char* at = file.data() + page * disk::kPage;
  const uint64_t sum = checksum(at, disk::kChecksumAt);
  std::memcpy(at + disk::kChecksumAt, &sum, sizeof sum);
}

// Of a run, if it lies in the file.
static void seal_run(std::string& file, disk::Run& run) {
  if (run.offset <= file.size() && run.bytes <= file.size() - run.offset)
    run.checksum = checksum(file.data() + run.offset, run.bytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  if (size >= 3 * disk::kPage) {
    std::memcpy(file.data(), disk::kMagic, sizeof disk::kMagic);
    for (uint64_t page = 1; page <= 2; ++page) {
      disk::Save save;
      char* at = file.data() + page * disk::kPage;
      std::memcpy(&save, at, sizeof save);
      if (save.index_offset >= 3 * disk::kPage && save.index_offset <= size &&
          save.index_bytes <= size - save.index_offset) {
        char* index = file.data() + save.index_offset;
        disk::Index head;
        if (save.index_bytes >= sizeof head) {
          std::memcpy(&head, index, sizeof head);
          for (uint64_t i = 0;
               i < head.n_token_extents &&
               sizeof head + (i + 1) * sizeof(disk::TokenExtent) <= save.index_bytes;
               ++i) {
            char* place = index + sizeof head + i * sizeof(disk::TokenExtent);
            disk::TokenExtent extent;
            std::memcpy(&extent, place, sizeof extent);
            seal_run(file, extent.run);
            std::memcpy(place, &extent, sizeof extent);
          }
        }
        save.index_checksum = checksum(index, save.index_bytes);
        std::memcpy(at, &save, sizeof save);
      }
      seal(file, page);
    }
    seal(file, 0);
  }
  const FileSource source{"fuzz", size, [&](uint64_t offset, void* to, uint64_t bytes) {
                            std::memcpy(to, file.data() + offset, bytes);
                            return true;
                          }};
  try {
    const SessionContent content = read_session(source);
    if (content.kv_bytes() > size) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
