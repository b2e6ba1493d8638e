// Files of sessions with other numbers in them, and checksums that fit; answers from them.
#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "kv/block_layout.h"
#include "kv/file/session_layout.h"
#include "tests/engine/test_model.h"
#include "util/checksum.h"

namespace riffle::test {

// The parts that may be changed: each block of each extent, the logits, each extent itself, and the
// header.
struct SpoilSession {
  std::function<void(std::byte* block, const BlockLayout&, int64_t layer, int head, int64_t number)>
      block;
  std::function<void(float* logits, int64_t n)> logits;
  std::function<void(session_layout::Extent&)> extent;
  std::function<void(session_layout::Header&)> header;
};

// The file's newest save is changed.
inline std::string spoiled(std::string bytes, const SpoilSession& change) {
  namespace disk = session_layout;
  const auto sum = [&](uint64_t offset, uint64_t n) { return checksum(&bytes[offset], n); };
  disk::Header h;
  std::memcpy(&h, bytes.data(), sizeof h);
  if (change.header) {
    change.header(h);
    std::memcpy(bytes.data(), &h, sizeof h);
    const uint64_t sealed = sum(0, disk::kChecksumAt);
    std::memcpy(&bytes[disk::kChecksumAt], &sealed, sizeof sealed);
  }
  disk::Save saves[2];
  for (int i = 0; i < 2; ++i)
    std::memcpy(&saves[i], &bytes[(1 + i) * disk::kPage], sizeof saves[i]);
  const int newest = saves[1].generation > saves[0].generation;
  disk::Save& save = saves[newest];
  disk::Index index;
  std::memcpy(&index, &bytes[save.index_offset], sizeof index);
  if (change.logits) {
    change.logits(reinterpret_cast<float*>(&bytes[index.logits.offset]), h.vocab_size);
    index.logits.checksum = sum(index.logits.offset, index.logits.bytes);
    std::memcpy(&bytes[save.index_offset], &index, sizeof index);
  }
  const BlockLayout layout{h.block_size, h.head_dim, static_cast<KvType>(h.kv_type)};
  const uint64_t state_count = h.version > disk::kWithoutStates ? sizeof(uint64_t) : 0;
  const uint64_t extents = save.index_offset + sizeof index + state_count +
                           index.n_token_extents * sizeof(disk::TokenExtent);
  for (uint64_t i = 0; change.extent && i < index.n_extents; ++i) {
    disk::Extent e;
    std::memcpy(&e, &bytes[extents + i * sizeof e], sizeof e);
    change.extent(e);
    std::memcpy(&bytes[extents + i * sizeof e], &e, sizeof e);
  }
  uint64_t sums = extents + index.n_extents * sizeof(disk::Extent);
  for (uint64_t i = 0; change.block && i < index.n_extents; ++i) {
    disk::Extent e;
    std::memcpy(&e, &bytes[extents + i * sizeof e], sizeof e);
    for (int head = 0; head < h.n_kv_heads; ++head, sums += 8) {
      const uint64_t run = e.offset + uint64_t(head) * e.stride * layout.bytes();
      for (int64_t b = 0; b < e.n; ++b)
        change.block(reinterpret_cast<std::byte*>(&bytes[run + b * layout.bytes()]), layout,
                     e.layer, head, e.first + b);
      const uint64_t made = sum(run, e.stride * layout.bytes());
      std::memcpy(&bytes[sums], &made, sizeof made);
    }
  }
  save.index_checksum = sum(save.index_offset, save.index_bytes);
  const uint64_t page = (1 + newest) * disk::kPage;
  std::memcpy(&bytes[page], &save, sizeof save);
  const uint64_t sealed = sum(page, disk::kChecksumAt);
  std::memcpy(&bytes[page + disk::kChecksumAt], &sealed, sizeof sealed);
  return bytes;
}

// The first number of a token's key, or of its value, becomes NaN or infinity; in 8 bits the whole
// group does.
inline void spoil_row(std::byte* block, const BlockLayout& layout, int64_t token, bool value,
                      bool infinite) {
  std::byte* row =
      block + token % layout.block_size * layout.row_bytes() + (value ? layout.value_offset() : 0);
  const float f32 = infinite ? INFINITY : NAN;
  const uint16_t f16 = infinite ? 0xfc00 : 0x7e01;
  const uint8_t scale = infinite ? 0xf8 : 0xfc;
  switch (layout.type) {
    case KvType::F32: std::memcpy(row, &f32, sizeof f32); break;
    case KvType::F16: std::memcpy(row, &f16, sizeof f16); break;
    case KvType::Q8: std::memcpy(row + layout.head_dim, &scale, 1); break;
  }
}

// Six tokens at temperature 0.
inline riffle_status answer(riffle_session* s) {
  GenerateOptions g;
  g.max_tokens = 6;
  g.ignore_eos = true;
  g.sampling.temperature = 0;
  return generate(s, &g, nullptr, nullptr, nullptr);
}

inline void check_named(Runtime& r, riffle_session* s, const std::string& begin) {
  CHECK(answer(s) == RIFFLE_BAD_SESSION);
  const std::string text = riffle_context_error(r.context);
  INFO(text);
  CHECK(text.find(begin) == 0);
  CHECK(text.find('\n') == std::string::npos);
}

}  // namespace riffle::test
