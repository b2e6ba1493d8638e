// The bytes of a session's file. Numbers are little-endian. Page 0 holds the header, which does not
// change. Pages 1 and 2 hold the last save and the one before, in turn; each names its index. Saved
// bytes are never overwritten, so an interrupted save leaves the previous one intact. The version
// is 4 if layers keep a recurrent state, else 3. Version 2 had no table of layers: they were alike.
// Version 1 had the same bytes, but its `tokenizer` was made only of pieces, without merges and
// scores; such files are refused.
#pragma once
#include <cstdint>

#include "kv/block_layout.h"

namespace riffle::session_layout {

inline constexpr uint64_t kPage = 4096;
inline constexpr char kMagic[8] = {'R', 'I', 'F', 'F', 'L', 'E', 'K', 'V'};
inline constexpr uint32_t kVersion = 4, kWithoutStates = 3, kOldestVersion = 2;
inline constexpr uint64_t kMaxStates = 64;  // the most states of a session
inline constexpr int kMaxShapes = 16;       // the most different shapes

// Data that a layer keeps: 0 keys and values, 2 none, since it uses an earlier layer's, 3 a
// recurrent state, 4 keys that are the values too.
struct Shape {
  int32_t keeps, n_kv_heads, head_dim, state_bytes;
};

struct Header {
  char magic[8];
  uint32_t version, page;
  int32_t n_layers, n_kv_heads, head_dim, block_size, vocab_size, kv_type;
  uint64_t weights, tokenizer, rotation;
  int64_t created;
  char model[256], architecture[64];  // padded with zeros
  // Different shapes of layers; 0: all are keys and values of n_kv_heads heads of head_dim.
  uint32_t n_shapes, unused;
  Shape shapes[kMaxShapes];
  uint8_t shape_of[1024];   // shape of each layer
  int16_t source_of[1024];  // for each layer that attends to an earlier one's keys: that layer
};

struct Save {
  uint64_t generation;  // from 1
  uint64_t index_offset, index_bytes, index_checksum;
  uint64_t end;
  int64_t saved;
};

// The last 8 bytes of a page are the checksum of the bytes before them.
inline constexpr uint64_t kChecksumAt = kPage - 8;

struct Run {
  uint64_t offset, bytes, checksum;
};

// Index::keys: SequenceKv::unrotated and chose_tiles.
inline constexpr uint32_t kUnrotated = 1, kChoseTiles = 2;

// The index: this, then in version 4 the number of states (uint64_t), then token extents, KV
// extents, for each KV extent the checksums of its heads, and the states.
struct Index {
  int64_t n_tokens;
  int64_t marks[2];
  uint32_t n_marks, keys;  // keys: kUnrotated, kChoseTiles
  uint64_t n_token_extents, n_extents;
  Run logits, state, data;
  char state_kind[64];  // padded with zeros
};

struct TokenExtent {
  int64_t first, n;
  Run run;
};

struct Extent {
  int64_t layer, first, n, stride;
  uint64_t offset;
};

// The states of all layers after n_tokens tokens, and the logits there or nothing. Ascending; the
// last one is of all tokens. kind: 0 any length, 1 the end of a prompt, 2 shortly before one.
struct StateRun {
  int64_t n_tokens;
  uint32_t kind, unused;
  Run state, logits;
};

static_assert(sizeof(StateRun) == 64);
static_assert(sizeof(Header) == 16 + 24 + 24 + 8 + 320 + 8 + 256 + 1024 + 2048);
static_assert(sizeof(Header) <= kChecksumAt && kMaxLayers <= 1024);
static_assert(sizeof(Save) == 48 && sizeof(Run) == 24 && sizeof(Index) == 184);
static_assert(sizeof(TokenExtent) == 40 && sizeof(Extent) == 40);

}  // namespace riffle::session_layout
