#include "kv/file/session_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kv/file/session_layout.h"
#include "model/model.h"
#include "util/checked.h"
#include "util/checksum.h"
#include "util/error.h"
#include "util/file.h"

namespace riffle {

namespace disk = session_layout;

void bad_session(const std::string& file, const std::string& field, const std::string& found,
                 const std::string& expected) {
  throw Error(RIFFLE_BAD_SESSION, file + ": " + (field.empty() ? "" : field + ": ") + "found " +
                                      found + ", expected " + expected);
}

uint64_t SessionContent::kv_bytes() const {
  const KvShape shape = origin.shape();
  uint64_t bytes = 0;
  for (const KvExtent& e : extents)
    bytes += uint64_t(e.n) * shape.heads(e.layer) * shape.block_bytes(e.layer);
  return bytes;
}

uint64_t SessionContent::state_bytes() const {
  uint64_t bytes = 0;
  for (const StateRun& s : states) bytes += s.state.bytes + s.logits.bytes;
  return bytes;
}

static uint64_t save_id_of(uint64_t generation, uint64_t end, uint64_t index_checksum) {
  Checksum sum;
  for (const uint64_t value : {generation, end, index_checksum}) sum.add_value(value);
  return std::max<uint64_t>(sum.value(), 1);
}

uint64_t SavedAs::save_id() const { return save_id_of(generation, end, index_checksum); }
uint64_t SessionContent::save_id() const { return save_id_of(generation, end, index_checksum); }

namespace {

// The most tokens of a session: as many as blocks can hold.
constexpr int64_t kMaxTokens = int64_t(1) << 30;
// A sparse file of terabytes costs nothing, so the file's size does not bound memory. These limits
// do. An index grows by about 10 KB a save, and a save that would pass a tenth of this writes a new
// file.
constexpr uint64_t kMaxIndex = uint64_t(1) << 30, kMaxState = uint64_t(4) << 30;
constexpr uint64_t kPiece = uint64_t(1) << 20;  // bytes read and checksummed at a time

// Fields are checked one by one, so that each error names one.
class Reader {
 public:
  explicit Reader(const FileSource& source) : source_(source) {}

  SessionContent read() {
    read_header();
    read_index(newest_save());
    return std::move(c_);
  }

  disk::Save newest_save() {
    constexpr disk::Save kNone{};
    disk::Save saves[2], newest{};
    bool damaged = false;
    for (int i = 0; i < 2; ++i) {
      const bool whole = page(1 + i, &saves[i], "save");
      if (whole && saves[i].generation > newest.generation) newest = saves[i];
      damaged |= !whole && std::memcmp(&saves[i], &kNone, sizeof kNone) != 0;
    }
    if (newest.generation == 0)
      bad("save", "bytes that do not match their checksum", "an undamaged file");
    if (newest.end > source_.size)
      bad("", std::to_string(source_.size) + " bytes",
          std::to_string(newest.end) + " bytes: the file was cut; restore it from a copy");
    // A save ends at the end of the file. If this one does, the damaged one is older and of no use.
    c_.newest_damaged = damaged && newest.end < source_.size;
    return newest;
  }

 private:
  [[noreturn]] void bad(const std::string& field, const std::string& found,
                        const std::string& expected) const {
    bad_session(source_.name, field, found, expected);
  }

  void bytes(uint64_t offset, void* to, uint64_t n, const char* field) const {
    if (!inside(offset, n, source_.size))
      bad(field, format("bytes up to %llu", static_cast<unsigned long long>(offset + n)),
          format("at most %llu, the file's size", static_cast<unsigned long long>(source_.size)));
    if (!source_.read(offset, to, n))
      throw Error(RIFFLE_IO, source_.name + ": the file was shortened while it was read");
  }

  // Reads a page. Returns false if its checksum is wrong.
  template <class T>
  bool page(uint64_t number, T* out, const char* field) const {
    std::vector<char> page(disk::kPage);
    bytes(number * disk::kPage, page.data(), disk::kPage, field);
    std::memcpy(out, page.data(), sizeof *out);
    return load_unaligned<uint64_t>(page.data() + disk::kChecksumAt) ==
           checksum(page.data(), disk::kChecksumAt);
  }

  void number(const char* field, int64_t found, int64_t least, int64_t most) const {
    if (found < least || found > most)
      bad(field, std::to_string(found), std::to_string(least) + " to " + std::to_string(most));
  }

  static std::string text(const char* field, size_t bytes) {
    return std::string(field, strnlen(field, bytes));
  }

  void read_header() {
    char begin[kBeginning] = {};
    static_assert(sizeof begin >= sizeof disk::kMagic);
    const size_t n = std::min<uint64_t>(source_.size, sizeof begin);
    if (n > 0) bytes(0, begin, n, "");
    if (n > 0 && std::memcmp(begin, disk::kMagic, sizeof disk::kMagic) != 0)
      bad("", words_of_beginning({begin, n}), "a session of riffle");
    if (source_.size < 3 * disk::kPage)
      bad("", std::to_string(source_.size) + " bytes",
          "a session of riffle, of at least " + std::to_string(3 * disk::kPage) + " bytes");
    disk::Header h;
    const bool whole = page(0, &h, "header");
    if (h.version > disk::kVersion)
      unsupported(source_.name, "version", std::to_string(h.version),
                  std::to_string(disk::kVersion) + ", or a newer riffle");
    if (!whole) bad("header", "bytes that do not match their checksum", "an undamaged file");
    if (h.version < disk::kOldestVersion)
      unsupported(source_.name, "version", std::to_string(h.version),
                  std::to_string(disk::kOldestVersion) + " to " + std::to_string(disk::kVersion) +
                      ": the text must be read again");
    number("page", h.page, disk::kPage, disk::kPage);
    SessionOrigin& o = c_.origin;
    number("n_layers", h.n_layers, 1, kMaxLayers);
    number("n_kv_heads", h.n_kv_heads, 1, kMaxKvHeads);
    number("head_dim", h.head_dim, 1, kMaxHeadDim);
    number("block_size", o.block_size = h.block_size, 1, 64);
    number("vocab_size", o.vocab_size = h.vocab_size, 1, 1 << 24);
    number("kv_type", h.kv_type, 0, static_cast<int>(KvType::Q8));
    o.type = static_cast<KvType>(h.kv_type);
    o.weights = h.weights;
    o.tokenizer = h.tokenizer;
    o.rotation = h.rotation;
    o.model = text(h.model, sizeof h.model);
    o.architecture = text(h.architecture, sizeof h.architecture);
    c_.created = h.created;
    read_layers(h);
    shape_ = o.shape();
  }

  void read_layers(const disk::Header& h) {
    std::vector<LayerShape>& layers = c_.origin.layers;
    layers.assign(h.n_layers, {LayerKeeps::KV, h.n_kv_heads, h.head_dim});
    number("n_shapes", h.n_shapes, 0, h.version < disk::kWithoutStates ? 0 : disk::kMaxShapes);
    for (int i = 0; i < h.n_layers && h.n_shapes > 0; ++i) {
      number("layer's shape", h.shape_of[i], 0, h.n_shapes - 1);
      const disk::Shape& shape = h.shapes[h.shape_of[i]];
      LayerShape& layer = layers[i];
      number("shape's kind", shape.keeps, 0, static_cast<int>(LayerKeeps::KEYS));
      layer.keeps = static_cast<LayerKeeps>(shape.keeps);
      if (layer.keeps == LayerKeeps::WINDOW_KV) bad("shape's kind", "1", "0, 2, 3 or 4");
      const bool has_heads = layer.keeps != LayerKeeps::STATE;
      number("shape's n_kv_heads", shape.n_kv_heads, has_heads, has_heads ? kMaxKvHeads : 0);
      number("shape's head_dim", shape.head_dim, has_heads, has_heads ? kMaxHeadDim : 0);
      number("shape's state", shape.state_bytes, 0,
             has_heads || h.version < disk::kVersion ? 0 : 1 << 30);
      if (shape.state_bytes % 64 != 0)
        bad("shape's state", std::to_string(shape.state_bytes) + " bytes", "a multiple of 64");
      layer.state_bytes = shape.state_bytes;
      layer.n_kv_heads = shape.n_kv_heads;
      layer.head_dim = shape.head_dim;
      if (layer.keeps == LayerKeeps::EARLIER_KV)
        number("layer's source", layer.source = h.source_of[i], 0, i - 1);
    }
  }

  // Checks that bytes lie where a save may put them.
  void place(const char* field, uint64_t offset, uint64_t n) const {
    if (offset < 3 * disk::kPage || !inside(offset, n, c_.end))
      bad(field,
          format("%llu bytes at %llu", static_cast<unsigned long long>(n),
                 static_cast<unsigned long long>(offset)),
          format("bytes from %llu to %llu", static_cast<unsigned long long>(3 * disk::kPage),
                 static_cast<unsigned long long>(c_.end)));
  }

  // Notes the bytes of a run or an extent; check_apart checks all of them.
  void note(uint64_t offset, uint64_t n) {
    if (n > 0) parts_.push_back({offset, n});
  }

  // Checks that runs and extents do not overlap, so that reading all of them reads no byte twice,
  // and blocks that are used in place have one owner.
  void check_apart() {
    std::sort(parts_.begin(), parts_.end());
    for (size_t i = 1; i < parts_.size(); ++i) {
      const auto [offset, n] = parts_[i - 1];
      if (parts_[i].first < offset + n)
        bad("index",
            format("%llu bytes at %llu and others at %llu", static_cast<unsigned long long>(n),
                   static_cast<unsigned long long>(offset),
                   static_cast<unsigned long long>(parts_[i].first)),
            "runs that do not overlap");
    }
  }

  FileRun run(const char* field, const disk::Run& r, uint64_t most) {
    if (r.bytes > most)
      bad(field, std::to_string(r.bytes) + " bytes", "at most " + std::to_string(most));
    if (r.bytes > 0) place(field, r.offset, r.bytes);
    note(r.offset, r.bytes);
    return {r.offset, r.bytes, r.checksum};
  }

  void read_index(const disk::Save& save) {
    c_.generation = save.generation;
    c_.saved = save.saved;
    c_.end = save.end;
    c_.index_checksum = save.index_checksum;
    place("index", save.index_offset, save.index_bytes);
    note(save.index_offset, save.index_bytes);
    disk::Index head;
    if (save.index_bytes < sizeof head || save.index_bytes > kMaxIndex)
      bad("index", std::to_string(save.index_bytes) + " bytes",
          format("%zu to %llu", sizeof head, static_cast<unsigned long long>(kMaxIndex)));
    std::string index(save.index_bytes, '\0');
    bytes(save.index_offset, index.data(), index.size(), "index");
    if (checksum(index.data(), index.size()) != save.index_checksum)
      bad("index", "bytes that do not match their checksum", "an undamaged file");
    std::memcpy(&head, index.data(), sizeof head);
    number("n_tokens", head.n_tokens, 0, kMaxTokens);
    number("marks", head.n_marks, 0, Marks::kMost);
    number("keys", head.keys, 0, disk::kUnrotated | disk::kChoseTiles);
    c_.unrotated = head.keys & disk::kUnrotated;
    c_.chose_tiles = head.keys & disk::kChoseTiles;
    for (uint32_t i = 0; i < head.n_marks; ++i)
      number("mark", head.marks[i], i == 0 ? 0 : head.marks[i - 1] + 1, head.n_tokens);
    for (uint32_t i = head.n_marks; i-- > 0;) c_.marks.add(head.marks[i]);  // none replaces another
    const uint64_t logits = 4 * uint64_t(c_.origin.vocab_size);
    c_.logits = run("logits", head.logits, logits);
    if (c_.logits.bytes > 0 && c_.logits.bytes != logits)
      bad("logits", std::to_string(c_.logits.bytes) + " bytes", std::to_string(logits));
    c_.state = run("selector's state", head.state, kMaxState);
    c_.state_kind = text(head.state_kind, sizeof head.state_kind);
    c_.data = run("caller's data", head.data, kMaxSessionData);
    uint64_t states = 0, at_extents = sizeof head;
    if (c_.origin.has_states()) {
      if (index.size() < sizeof head + sizeof states)
        bad("index", std::to_string(index.size()) + " bytes",
            std::to_string(sizeof head + sizeof states) + " at least");
      states = load_unaligned<uint64_t>(index.data() + sizeof head);
      if (states > disk::kMaxStates)
        bad("states", std::to_string(states), "at most " + std::to_string(disk::kMaxStates));
      at_extents += sizeof states;
    }
    const uint64_t rest = index.size() - at_extents;
    uint64_t a = 0, b = 0, all = 0;
    const bool fits = checked_mul(head.n_token_extents, sizeof(disk::TokenExtent), &a) &&
                      checked_mul(head.n_extents, sizeof(disk::Extent), &b) &&
                      checked_add(a, b, &all) &&
                      checked_add(all, states * sizeof(disk::StateRun), &all) && all <= rest;
    const char* at = index.data() + at_extents;
    if (!fits || all + sums_bytes(at + a, head.n_extents) != rest)
      bad("index", std::to_string(index.size()) + " bytes",
          format("those of %llu token extents and %llu KV extents",
                 static_cast<unsigned long long>(head.n_token_extents),
                 static_cast<unsigned long long>(head.n_extents)) +
              (states > 0 ? " and " + std::to_string(states) + " states" : ""));
    read_tokens(head.n_tokens, at, head.n_token_extents);
    at += a;
    read_extents(at, at + head.n_extents * sizeof(disk::Extent), head.n_extents);
    read_states(index.data() + index.size() - states * sizeof(disk::StateRun), states);
    check_apart();
  }

  void read_states(const char* at, uint64_t n) {
    const auto bytes = static_cast<int64_t>(shape_.state_bytes());
    const int64_t logits = 4 * int64_t(c_.origin.vocab_size);
    for (uint64_t i = 0; i < n; ++i, at += sizeof(disk::StateRun)) {
      const auto s = load_unaligned<disk::StateRun>(at);
      if (s.n_tokens <= (i == 0 ? 0 : c_.states.back().n_tokens) || s.n_tokens > c_.n_tokens())
        bad("state's length", std::to_string(s.n_tokens),
            "ascending lengths from 1 to " + std::to_string(c_.n_tokens()));
      number("state's kind", s.kind, 0, Checkpoint::LEAD);
      number("state's bytes", static_cast<int64_t>(s.state.bytes), bytes, bytes);
      const bool has_logits = s.logits.bytes > 0;
      number("bytes of the logits after a state", static_cast<int64_t>(s.logits.bytes),
             has_logits ? logits : 0, has_logits ? logits : 0);
      c_.states.push_back({{s.n_tokens, static_cast<Checkpoint::Kind>(s.kind)},
                           run("state", s.state, s.state.bytes),
                           run("logits after a state", s.logits, s.logits.bytes)});
    }
    if (c_.origin.has_states() && c_.n_tokens() > 0 &&
        (c_.states.empty() || c_.states.back().n_tokens != c_.n_tokens()))
      bad("states", "none after all tokens", "one after " + std::to_string(c_.n_tokens()));
  }

  // Returns the bytes of the checksums of these extents, whose layer numbers are not checked yet.
  uint64_t sums_bytes(const char* at, uint64_t n_extents) const {
    uint64_t heads = 0;
    for (uint64_t i = 0; i < n_extents; ++i, at += sizeof(disk::Extent)) {
      const int64_t layer = load_unaligned<disk::Extent>(at).layer;
      number("extent's layer", layer, 0, shape_.n_layers() - 1);
      heads += shape_.heads(static_cast<int>(layer));
    }
    return 8 * heads;
  }

  void read_tokens(int64_t n_tokens, const char* at, uint64_t n_extents) {
    int64_t known = 0;
    for (uint64_t i = 0; i < n_extents; ++i, at += sizeof(disk::TokenExtent)) {
      const auto e = load_unaligned<disk::TokenExtent>(at);
      number("token extent's first", e.first, known, known);
      number("token extent's length", e.n, 1, n_tokens - known);
      number("token extent's bytes", static_cast<int64_t>(e.run.bytes), 4 * e.n, 4 * kMaxTokens);
      const TokenExtent extent{e.first, e.n, run("tokens", e.run, 4 * kMaxTokens)};
      c_.token_extents.push_back(extent);
      known += e.n;
      take_tokens(extent);
    }
    if (known != n_tokens)
      bad("token extents", std::to_string(known) + " tokens", std::to_string(n_tokens));
    for (const int32_t token : c_.tokens) number("token", token, 0, c_.origin.vocab_size - 1);
  }

  // Adds the extent's tokens, checked piece by piece, so that memory grows with the bytes that are
  // read.
  void take_tokens(const TokenExtent& extent) {
    Checksum sum;
    std::vector<int32_t> some;
    for (uint64_t at = 0; at < extent.run.bytes; at += kPiece) {
      const uint64_t n = std::min(kPiece, extent.run.bytes - at), first = at / 4;
      some.resize((n + 3) / 4);
      bytes(extent.run.offset + at, some.data(), n, "tokens");
      sum.add(some.data(), n);
      const uint64_t all = extent.n, used = first < all ? std::min(n / 4, all - first) : 0;
      c_.tokens.insert(c_.tokens.end(), some.begin(), some.begin() + used);
    }
    if (extent.run.bytes % 4 != 0 || sum.value() != extent.run.checksum)
      bad("tokens", "bytes that do not match their checksum", "an undamaged file");
  }

  void read_extents(const char* at, const char* sums, uint64_t n_extents) {
    const int64_t blocks = shape_.in_blocks(c_.n_tokens());
    int64_t layer = 0, from = 0;
    for (uint64_t i = 0; i < n_extents; ++i, at += sizeof(disk::Extent)) {
      const auto e = load_unaligned<disk::Extent>(at);
      number("extent's layer", e.layer, layer, shape_.n_layers() - 1);
      const int64_t heads = shape_.heads(static_cast<int>(e.layer));
      if (heads == 0)
        bad("extent's layer", std::to_string(e.layer), "one that keeps keys and values");
      if (e.layer > layer) from = 0;
      layer = e.layer;
      number("extent's first block", e.first, from, blocks);
      number("extent's blocks", e.n, 1, blocks - e.first);
      number("extent's stride", e.stride, e.n, kMaxBlocks);
      from = e.first + e.n;
      if (e.offset % disk::kPage != 0)
        bad("extent's offset", std::to_string(e.offset),
            "a multiple of " + std::to_string(disk::kPage));
      // At most 2^24 blocks of 2^10 heads, each of at most 2^21 bytes: no overflow.
      const uint64_t bytes =
          uint64_t(e.stride) * heads * shape_.block_bytes(static_cast<int>(e.layer));
      place("extent", e.offset, bytes);
      note(e.offset, bytes);
      KvExtent& extent = c_.extents.emplace_back();
      extent.layer = static_cast<int>(e.layer);
      extent.first = e.first;
      extent.n = e.n;
      extent.stride = e.stride;
      extent.offset = e.offset;
      extent.checksums.resize(heads);
      std::memcpy(extent.checksums.data(), sums, 8 * heads);
      sums += 8 * heads;
    }
  }

  const FileSource& source_;
  SessionContent c_;
  KvShape shape_;                                     // shape of c_.origin
  std::vector<std::pair<uint64_t, uint64_t>> parts_;  // offset and bytes of runs and extents
};

bool read_at(int fd, uint64_t offset, void* to, uint64_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n =
        ::pread(fd, at, std::min<uint64_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n, offset += n, bytes -= n;
  }
  return true;
}

}  // namespace

SessionContent read_session(const FileSource& source) { return Reader(source).read(); }

static FileSource source_of(const std::string& path, int fd, const struct stat& info) {
  return {
      path, static_cast<uint64_t>(info.st_size),
      [fd](uint64_t offset, void* to, uint64_t bytes) { return read_at(fd, offset, to, bytes); }};
}

uint64_t save_id_at(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 && errno == ENOENT) return 0;
  const FileDescriptor fd = open_regular(path, &info);
  if (info.st_size == 0) return 0;
  const FileSource source = source_of(path, fd, info);
  const disk::Save save = Reader(source).newest_save();
  return save_id_of(save.generation, save.end, save.index_checksum);
}

SessionFile::SessionFile(const std::string& path) : fd_(open_regular(path, &info_)) {
  const int fd = fd_;
  source_ = source_of(path, fd, info_);
  for (;;) {
    try {
      content_ = read_session(source_);
      break;
    } catch (const Error&) {
      // Another save may have ended after the size was read and before the newest save was read.
      const uint64_t before = source_.size;
      if (::fstat(fd, &info_) != 0) throw;
      source_.size = static_cast<uint64_t>(info_.st_size);
      if (source_.size <= before) throw;
    }
  }
  void* map = ::mmap(nullptr, source_.size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) io_error(path, "cannot map", errno);
  map_ = static_cast<std::byte*>(map);
}

SessionFile::~SessionFile() {
  if (map_) ::munmap(map_, source_.size);
}

void SessionFile::read(uint64_t offset, void* to, uint64_t bytes) const {
  if (!source_.read(offset, to, bytes))
    throw Error(RIFFLE_IO, path() + ": the file was shortened while it was read");
}

std::string SessionFile::read(const FileRun& run) const {
  // Memory grows with the bytes that are read: a large run may be a hole.
  std::string bytes;
  Checksum sum;
  for (uint64_t at = 0; at < run.bytes; at += kPiece) {
    const uint64_t n = std::min(kPiece, run.bytes - at);
    bytes.resize(at + n);
    read(run.offset + at, bytes.data() + at, n);
    sum.add(bytes.data() + at, n);
  }
  if (run.bytes > 0 && sum.value() != run.checksum)
    bad_session(path(), format("bytes at %llu", static_cast<unsigned long long>(run.offset)),
                "some that do not match their checksum", "an undamaged file");
  return bytes;
}

bool SessionFile::is_as_written(const SavedAs& as) const {
  return info_.st_dev == as.device && info_.st_ino == as.inode &&
         content_.generation == as.generation && content_.end == as.end &&
         content_.index_checksum == as.index_checksum;
}

bool SessionFile::is_current(const std::string& path) const {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 || info.st_dev != info_.st_dev ||
      info.st_ino != info_.st_ino)
    return false;
  for (int i = 1; i <= 2; ++i) {
    disk::Save save;
    if (!source_.read(i * disk::kPage, &save, sizeof save) || save.generation > content_.generation)
      return false;
  }
  return true;
}

}  // namespace riffle
