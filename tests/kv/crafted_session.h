// Session files with whatever a test wants in them, and checksums that fit.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "kv/file/session_layout.h"
#include "util/checksum.h"
#include "util/file.h"

namespace riffle::test {

namespace disk = session_layout;

// 20 tokens of one layer with one KV head of 16 f16 values in blocks of 16 tokens: two blocks of
// 1,024 bytes. Unwritten parts are holes, so a file may be larger than the disk.
struct CraftedSession {
  static constexpr uint64_t kTokensAt = 3 * disk::kPage, kBlocksAt = 4 * disk::kPage,
                            kIndexAt = 6 * disk::kPage;

  disk::Header header{};
  disk::Index index{};
  disk::Save save{1, kIndexAt, 0, 0, 7 * disk::kPage, 0};
  std::vector<disk::TokenExtent> tokens{{0, 20, {kTokensAt, 80, zeros(80)}}};
  std::vector<disk::Extent> extents{{0, 0, 2, 2, kBlocksAt}};
  std::vector<disk::StateRun> states;
  uint64_t index_hole = 0;  // bytes of a hole that belong to the index too

  CraftedSession() {
    std::memcpy(header.magic, disk::kMagic, sizeof header.magic);
    header.version = disk::kVersion;
    header.page = disk::kPage;
    header.n_layers = header.n_kv_heads = 1;
    header.head_dim = header.block_size = 16;
    header.vocab_size = 8;
    index.n_tokens = 20;
  }

  // Adds a second layer, which keeps a state of 64 bytes, after 7 and after all 20 tokens.
  void add_states() {
    header.n_layers = 2;
    header.n_shapes = 2;
    header.shapes[0] = {0, 1, 16, 0};
    header.shapes[1] = {3, 0, 0, 64};
    header.shape_of[1] = 1;
    states = {{7, 1, 0, {7 * disk::kPage, 64, zeros(64)}, {}},
              {20, 0, 0, {8 * disk::kPage, 64, zeros(64)}, {9 * disk::kPage, 32, zeros(32)}}};
    save.end = 10 * disk::kPage;
  }

  // The checksum of that many zero bytes, which is what a hole in a file reads as.
  static uint64_t zeros(uint64_t bytes) {
    const std::string piece(1 << 16, '\0');
    Checksum sum;
    for (; bytes > piece.size(); bytes -= piece.size()) sum.add(piece.data(), piece.size());
    sum.add(piece.data(), bytes);
    return sum.value();
  }

  void write(const std::string& path) {
    index.n_token_extents = tokens.size();
    index.n_extents = extents.size();
    std::string text(reinterpret_cast<const char*>(&index), sizeof index);
    const auto append = [&](const auto& value) {
      text.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    if (header.n_shapes == 2) append(uint64_t{states.size()});
    for (const auto& e : tokens) append(e);
    for (const auto& e : extents) append(e);
    for (const auto& e : extents) append(zeros(e.stride < 1000 ? e.stride * 1024 : 0));
    for (const auto& state : states) append(state);
    save.index_bytes = text.size() + index_hole;
    const std::string whole = text + std::string(std::min(index_hole, disk::kPage), '\0');
    save.index_checksum = checksum(whole.data(), whole.size());
    const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600));
    REQUIRE(fd >= 0);
    REQUIRE(::ftruncate(fd, static_cast<off_t>(save.end)) == 0);
    page(fd, 0, header);
    page(fd, 1, save);
    page(fd, 2, disk::Save{});
    REQUIRE(::pwrite(fd, text.data(), text.size(), static_cast<off_t>(save.index_offset)) ==
            static_cast<ssize_t>(text.size()));
  }

 private:
  template <class T>
  static void page(int fd, uint64_t number, const T& content) {
    std::string page(disk::kPage, '\0');
    std::memcpy(page.data(), &content, sizeof content);
    const uint64_t sum = checksum(page.data(), disk::kChecksumAt);
    std::memcpy(page.data() + disk::kChecksumAt, &sum, sizeof sum);
    REQUIRE(::pwrite(fd, page.data(), page.size(), static_cast<off_t>(number * disk::kPage)) ==
            static_cast<ssize_t>(page.size()));
  }
};

}  // namespace riffle::test
