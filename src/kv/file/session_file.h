// Reads a session from disk (README.md, Files). Everything except the KV blocks is checked and
// copied when the file is opened; the blocks are checked when a sequence takes them.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/kv_shape.h"
#include "util/file.h"

namespace riffle {

// The most bytes of the caller's data.
inline constexpr uint64_t kMaxSessionData = uint64_t(1) << 30;

// Origin of a session. A session fits one model, and contexts that hold keys and values in the same
// form.
struct SessionOrigin {
  std::string model, architecture;  // names for messages
  int32_t block_size = 0, vocab_size = 0;
  KvType type = KvType::F16;
  // Shape of each layer, without windows: these depend on the context's length.
  std::vector<LayerShape> layers;
  uint64_t weights = 0;    // hash of shape, type and some bytes of every tensor
  uint64_t tokenizer = 0;  // hash of all pieces, and merges or scores; 0: none
  uint64_t rotation = 0;   // hash of RoPE's frequencies; with q8 also of biases that keys lack

  KvShape shape() const { return {block_size, type, layers}; }
  // Tells whether layers keep a recurrent state; then the file has states.
  bool has_states() const {
    return std::any_of(layers.begin(), layers.end(),
                       [](const LayerShape& l) { return l.state_bytes > 0; });
  }
};

// Bytes of a file and their checksum.
struct FileRun {
  uint64_t offset = 0, bytes = 0, checksum = 0;
};

// Blocks [first, first + n) of a layer. In the file each of the layer's heads has `stride` blocks
// in a row: the first n are these, the others were cut off.
struct KvExtent {
  int layer = 0;
  int64_t first = 0, n = 0, stride = 0;
  uint64_t offset = 0;
  std::vector<uint64_t> checksums;  // checksum of each head's `stride` blocks
};

// Tokens [first, first + n) of the text. Its run may have more that were cut off.
struct TokenExtent {
  int64_t first = 0, n = 0;
  FileRun run;
};

// The states of all layers after some tokens, and the logits there, or nothing.
struct StateRun : Checkpoint {
  FileRun state, logits;
};

struct SessionContent {
  SessionOrigin origin;
  int64_t created = 0, saved = 0;  // seconds since 1970
  uint64_t generation = 0;         // counts saves
  uint64_t index_checksum = 0;
  uint64_t end = 0;             // bytes after it belong to no save
  bool newest_damaged = false;  // a later save was damaged
  Marks marks;
  bool unrotated = false, chose_tiles = false;  // as in SequenceKv
  std::vector<int32_t> tokens;
  std::vector<TokenExtent> token_extents;
  std::vector<KvExtent> extents;  // extents of each layer in token order; layers in order
  std::vector<StateRun> states;   // ascending; the last is that of all tokens
  FileRun logits;                 // f32 [vocab_size] after the last token, or nothing
  FileRun state, data;            // a selector's; the caller's
  std::string state_kind;         // selector and settings of the state; "": none

  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  uint64_t kv_bytes() const;     // bytes of the blocks that are not cut off
  uint64_t state_bytes() const;  // bytes of the states
  uint64_t save_id() const;
};

// The file that a save has written, and the save's identity.
struct SavedAs {
  dev_t device = 0;
  ino_t inode = 0;
  uint64_t generation = 0, end = 0, index_checksum = 0;

  // Returns an id that differs between saves of different content, in any file. Never 0.
  uint64_t save_id() const;
};

// A file as readers see it.
struct FileSource {
  std::string name;  // for error texts
  uint64_t size = 0;
  // Copies bytes that lie inside the size; returns false if they are gone.
  std::function<bool(uint64_t offset, void* to, uint64_t bytes)> read;
};

// Throws RIFFLE_BAD_SESSION, or RIFFLE_UNSUPPORTED for a file of a newer version.
SessionContent read_session(const FileSource& source);
// Returns the id of the newest save at path; 0: there is no file, or an empty one. Throws
// RIFFLE_IO, RIFFLE_BAD_SESSION.
uint64_t save_id_at(const std::string& path);

class SessionFile {
 public:
  // Also throws RIFFLE_IO (missing, unreadable, not a regular file).
  static std::shared_ptr<const SessionFile> open(const std::string& path) {
    return std::shared_ptr<const SessionFile>(new SessionFile(path));
  }
  ~SessionFile();
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;

  const std::string& path() const { return source_.name; }
  uint64_t size() const { return source_.size; }
  const SessionContent& content() const { return content_; }
  // Throws RIFFLE_BAD_SESSION if the bytes do not match the checksum, RIFFLE_IO if they are gone.
  std::string read(const FileRun& run) const;
  void read(uint64_t offset, void* to, uint64_t bytes) const;
  // Returns a read-only mapping of the whole file, which lives as long as the object. If another
  // program cuts the file, reading the missing bytes raises SIGBUS.
  const std::byte* mapped() const { return map_; }
  // Returns true if path names this file, under any name, and no other save has followed.
  bool is_current(const std::string& path) const;
  // Returns true if this is the file that a save wrote, with that save as its newest.
  bool is_as_written(const SavedAs& as) const;

 private:
  explicit SessionFile(const std::string& path);

  struct stat info_ = {};  // when it was opened; before fd_, which fills it in
  FileDescriptor fd_;
  FileSource source_;
  SessionContent content_;
  std::byte* map_ = nullptr;
};

[[noreturn]] void bad_session(const std::string& file, const std::string& field,
                              const std::string& found, const std::string& expected);

}  // namespace riffle
