#include "kv/file/session_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "kv/file/session_layout.h"
#include "util/buffer.h"
#include "util/checksum.h"
#include "util/error.h"
#include "util/file.h"

namespace riffle {

namespace disk = session_layout;

namespace {

uint64_t in_pages(uint64_t bytes) { return (bytes + disk::kPage - 1) / disk::kPage * disk::kPage; }

void go_on_or_throw(const std::string& path, const SaveProgress& progress, double done,
                    double total) {
  if (progress && !progress(done, total))
    throw Error(RIFFLE_ABORTED, path + ": saving was stopped");
}

// Places of all parts of a save, and the checksums of the written ones.
class Saving {
 public:
  // first_block: from here on, KV is written; earlier blocks stay where `before` has them. end:
  // where to begin in the file.
  Saving(const SessionToSave& session, const SessionContent* before, int64_t unchanged,
         uint64_t end)
      : s_(session), shape_(session.origin.shape()), end_(end) {
    const int64_t n_tokens = static_cast<int64_t>(s_.tokens.size());
    const int64_t kept = before ? unchanged : 0;
    place_extents(before, kept / shape_.block_size());
    if (before)
      for (TokenExtent e : before->token_extents) {
        e.n = std::min(e.n, kept - e.first);
        if (e.n > 0) token_extents_.push_back(e);
      }
    if (n_tokens > kept) {
      const auto fresh = s_.tokens.subspan(kept);
      token_extents_.push_back({kept, n_tokens - kept, blob(fresh.data(), fresh.size_bytes())});
    }
    logits_ =
        again_or_blob(before ? &before->logits : nullptr, s_.logits.data(), s_.logits.size_bytes());
    state_ = again_or_blob(before ? &before->state : nullptr, s_.state.data(), s_.state.size());
    data_ = again_or_blob(before ? &before->data : nullptr, s_.data.data(), s_.data.size());
    place_states(before);
    index_offset_ = take(index_bytes());
  }

  uint64_t end() const { return end_; }
  uint64_t index_checksum() const { return index_checksum_; }
  // Returns the bytes of keys and values, which progress counts.
  double kv_bytes() {
    double bytes = 0;
    for (const KvExtent* e : fresh())
      bytes += static_cast<double>(e->n * shape_.block_bytes(e->layer) * shape_.heads(e->layer));
    return bytes;
  }

  void write_kv(int fd, const std::string& path, ThreadPool& threads,
                const SaveProgress& progress) {
    struct Task {
      KvExtent* extent;
      int head;
    };
    std::vector<Task> tasks;
    const double total = kv_bytes();
    double done = 0;
    for (KvExtent* e : fresh())
      for (int h = 0; h < shape_.heads(e->layer); ++h) tasks.push_back({e, h});
    std::vector<Buffer> scratch(threads.size());
    for (Buffer& b : scratch) b.reserve(shape_.largest_block());
    const size_t batch = 2 * size_t(threads.size());
    for (size_t first = 0; first < tasks.size(); first += batch) {
      go_on_or_throw(path, progress, done, total);
      const size_t n = std::min(batch, tasks.size() - first);
      threads.parallel_for(static_cast<int64_t>(n), [&](int64_t i, int thread) {
        const Task& t = tasks[first + i];
        write_head(fd, path, *t.extent, t.head, scratch[thread].as<std::byte>());
      });
      for (size_t i = first; i < first + n; ++i)
        done +=
            static_cast<double>(tasks[i].extent->n * shape_.block_bytes(tasks[i].extent->layer));
    }
    if (progress) progress(total, total);  // too late to stop
  }

  void write_rest(int fd, const std::string& path) {
    for (const auto& [run, data] : blobs_) write(fd, path, run.offset, data, run.bytes);
    const std::string index = this->index();
    index_checksum_ = checksum(index.data(), index.size());
    write(fd, path, index_offset_, index.data(), index.size());
  }

  void write_header(int fd, const std::string& path) const {
    const SessionOrigin& o = s_.origin;
    disk::Header h{};
    std::memcpy(h.magic, disk::kMagic, sizeof h.magic);
    h.version = o.has_states() ? disk::kVersion : disk::kWithoutStates;
    h.page = disk::kPage;
    write_layers(h);
    h.block_size = o.block_size;
    h.vocab_size = o.vocab_size;
    h.kv_type = static_cast<int32_t>(o.type);
    h.weights = o.weights;
    h.tokenizer = o.tokenizer;
    h.rotation = o.rotation;
    h.created = std::time(nullptr);
    o.model.copy(h.model, sizeof h.model - 1);
    o.architecture.copy(h.architecture, sizeof h.architecture - 1);
    write_page(fd, path, 0, h);
  }

  // Makes the table of layers. The header's own numbers describe the first layer that has heads.
  void write_layers(disk::Header& h) const {
    const std::vector<LayerShape>& layers = s_.origin.layers;
    h.n_layers = static_cast<int32_t>(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerShape& l = layers[i];
      const disk::Shape shape{static_cast<int32_t>(l.keeps), l.n_kv_heads, l.head_dim,
                              static_cast<int32_t>(l.state_bytes)};
      const auto same = [&](const disk::Shape& s) {
        return std::memcmp(&s, &shape, sizeof shape) == 0;
      };
      const auto at = std::find_if(h.shapes, h.shapes + h.n_shapes, same) - h.shapes;
      if (at == disk::kMaxShapes)
        fail(RIFFLE_UNSUPPORTED, "the layers have more than %d different shapes of KV",
             disk::kMaxShapes);
      if (at == h.n_shapes) h.shapes[h.n_shapes++] = shape;
      h.shape_of[i] = static_cast<uint8_t>(at);
      h.source_of[i] = static_cast<int16_t>(l.source);
      if (h.n_kv_heads == 0) h.n_kv_heads = l.n_kv_heads, h.head_dim = l.head_dim;
    }
  }

  void write_save(int fd, const std::string& path, uint64_t generation) const {
    write_page(fd, path, 1 + generation % 2,
               disk::Save{generation, index_offset_, index_bytes(), index_checksum_, end_,
                          std::time(nullptr)});
  }

 private:
  uint64_t take(uint64_t bytes) {
    const uint64_t at = end_;
    end_ = in_pages(end_ + bytes);
    return at;
  }

  FileRun blob(const void* data, uint64_t bytes) {
    if (bytes == 0) return {};
    const FileRun run{take(bytes), bytes, checksum(data, bytes)};
    blobs_.emplace_back(run, data);
    return run;
  }

  FileRun again_or_blob(const FileRun* before, const void* data, uint64_t bytes) {
    if (before && bytes > 0 && before->bytes == bytes && before->checksum == checksum(data, bytes))
      return *before;
    return blob(data, bytes);
  }

  // Gives places to the runs of blocks that the sequence holds, for every layer.
  void place_extents(const SessionContent* before, int64_t first_block) {
    const int64_t blocks = shape_.in_blocks(static_cast<int64_t>(s_.tokens.size()));
    size_t old = 0;
    for (int layer = 0; layer < shape_.n_layers(); ++layer) {
      const int heads = shape_.heads(layer);
      if (heads == 0) continue;
      const auto& held = s_.kv->heads[shape_.first_head(layer)].blocks;  // as in all heads
      const auto holds_any = [&](const KvExtent& e) {
        return std::any_of(held.begin() + e.first, held.begin() + e.first + e.n,
                           [](const std::byte* block) { return block != nullptr; });
      };
      for (; before && old < before->extents.size() && before->extents[old].layer == layer; ++old) {
        KvExtent e = before->extents[old];
        e.n = std::min(e.n, first_block - e.first);
        if (e.n > 0 && holds_any(e)) extents_.push_back(std::move(e));
      }
      for (int64_t b = first_block, end; b < blocks; b = end) {
        for (end = b + 1; end < blocks && !held[end] == !held[b];) ++end;
        if (!held[b]) continue;
        KvExtent& e = extents_.emplace_back();
        e.layer = layer;
        e.first = b;
        e.n = e.stride = end - b;
        e.offset = take(uint64_t(e.n) * heads * shape_.block_bytes(layer));
        e.checksums.resize(heads);
        fresh_.push_back(extents_.size() - 1);
      }
    }
  }

  // A session has all of its states; a beginning of one has some of those up to its end, since
  // texts that are read later may have less in common with it.
  void place_states(const SessionContent* before) {
    const auto n_tokens = static_cast<int64_t>(s_.tokens.size());
    const bool whole = n_tokens == s_.kv->n_tokens;
    std::vector<Checkpoint> chosen;
    for (const StateAt& state : s_.kv->states)
      if (state.n_tokens <= n_tokens) chosen.push_back(state);
    if (!whole) Checkpoints::choose(chosen, n_tokens, Checkpoints::kOfRequest);
    for (size_t c = 0; c < chosen.size(); ++c) {
      const StateAt& state = s_.kv->states[c];
      if (!whole && !chosen[c].keep) continue;
      const StateRun* old = nullptr;
      for (size_t i = 0; before && i < before->states.size(); ++i)
        if (before->states[i].n_tokens == state.n_tokens) old = &before->states[i];
      StateRun run{
          state, again_or_blob(old ? &old->state : nullptr, state.block, shape_.state_bytes()), {}};
      if (state.logits && whole)
        run.logits = again_or_blob(old ? &old->logits : nullptr, state.logits->data(),
                                   state.logits->size() * sizeof(float));
      states_.push_back(run);
    }
  }

  std::vector<KvExtent*> fresh() {
    std::vector<KvExtent*> all;
    for (const size_t i : fresh_) all.push_back(&extents_[i]);
    return all;
  }

  uint64_t index_bytes() const {
    uint64_t heads = 0;
    for (const KvExtent& e : extents_) heads += shape_.heads(e.layer);
    return sizeof(disk::Index) + (s_.origin.has_states() ? sizeof(uint64_t) : 0) +
           token_extents_.size() * sizeof(disk::TokenExtent) +
           extents_.size() * sizeof(disk::Extent) + 8 * heads +
           states_.size() * sizeof(disk::StateRun);
  }

  std::string index() const {
    const auto run = [](const FileRun& r) { return disk::Run{r.offset, r.bytes, r.checksum}; };
    disk::Index head{};
    head.n_tokens = static_cast<int64_t>(s_.tokens.size());
    for (const int64_t mark : s_.marks) head.marks[head.n_marks++] = mark;
    head.keys =
        (s_.kv->unrotated ? disk::kUnrotated : 0) | (s_.kv->chose_tiles ? disk::kChoseTiles : 0);
    head.n_token_extents = token_extents_.size();
    head.n_extents = extents_.size();
    head.logits = run(logits_);
    head.state = run(state_);
    head.data = run(data_);
    s_.state_kind.copy(head.state_kind, sizeof head.state_kind - 1);
    std::string out(reinterpret_cast<const char*>(&head), sizeof head);
    const auto append = [&](const auto& value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    if (s_.origin.has_states()) append(uint64_t{states_.size()});
    for (const TokenExtent& e : token_extents_) append(disk::TokenExtent{e.first, e.n, run(e.run)});
    for (const KvExtent& e : extents_)
      append(disk::Extent{e.layer, e.first, e.n, e.stride, e.offset});
    for (const KvExtent& e : extents_)
      for (const uint64_t sum : e.checksums) append(sum);
    for (const StateRun& s : states_)
      append(disk::StateRun{s.n_tokens, s.kind, 0, run(s.state), run(s.logits)});
    return out;
  }

  static void write(int fd, const std::string& path, uint64_t offset, const void* data,
                    uint64_t bytes) {
    iovec part{const_cast<void*>(data), bytes};
    write(fd, path, offset, &part, 1);
  }

  static void write(int fd, const std::string& path, uint64_t offset, iovec* parts, int n) {
    while (n > 0) {
      const ssize_t done = ::pwritev(fd, parts, n, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) io_error(path, "cannot write", done < 0 ? errno : ENOSPC);
      offset += done;
      size_t left = done;
      for (; n > 0 && left >= parts->iov_len; ++parts, --n) left -= parts->iov_len;
      if (n > 0) {
        parts->iov_base = static_cast<char*>(parts->iov_base) + left;
        parts->iov_len -= left;
      }
    }
  }

  template <class T>
  static void write_page(int fd, const std::string& path, uint64_t number, const T& content) {
    std::string page(disk::kPage, '\0');
    std::memcpy(page.data(), &content, sizeof content);
    const uint64_t sum = checksum(page.data(), disk::kChecksumAt);
    std::memcpy(page.data() + disk::kChecksumAt, &sum, sizeof sum);
    write(fd, path, number * disk::kPage, page.data(), page.size());
  }

  // The newest block may have rows of tokens that were taken back, and of other sequences.
  void write_head(int fd, const std::string& path, KvExtent& e, int head, std::byte* scratch) {
    constexpr int kParts = 256;
    const auto& blocks = s_.kv->heads[shape_.first_head(e.layer) + head].blocks;
    const int64_t n_tokens = static_cast<int64_t>(s_.tokens.size());
    const BlockLayout layout = shape_.layout(e.layer);
    const size_t bytes = layout.bytes();
    const uint64_t at = e.offset + uint64_t(head) * e.stride * bytes;
    Checksum sum;
    iovec parts[kParts];
    for (int64_t b = e.first, last = e.first + e.n; b < last;) {
      const int64_t first = b;
      int n = 0;
      for (; b < last && n < kParts; ++b) {
        std::byte* from = blocks[b];
        if ((b + 1) * layout.block_size > n_tokens) {
          std::memcpy(scratch, from, bytes);
          clear_rows(layout, scratch, n_tokens - b * layout.block_size);
          from = scratch;
        }
        if (n > 0 && static_cast<std::byte*>(parts[n - 1].iov_base) + parts[n - 1].iov_len == from)
          parts[n - 1].iov_len += bytes;
        else parts[n++] = {from, bytes};
      }
      for (int i = 0; i < n; ++i) sum.add(parts[i].iov_base, parts[i].iov_len);
      write(fd, path, at + (first - e.first) * bytes, parts, n);
    }
    e.checksums[head] = sum.value();
  }

  static void clear_rows(const BlockLayout& layout, std::byte* block, int64_t n) {
    const size_t row = layout.row_bytes(), rest = (layout.block_size - n) * row;
    std::memset(block + n * row, 0, rest);
    std::memset(block + layout.value_offset() + n * row, 0,
                layout.bytes() - layout.value_offset() - n * row);
  }

  const SessionToSave& s_;
  KvShape shape_;
  uint64_t end_;
  std::vector<KvExtent> extents_;
  std::vector<size_t> fresh_;  // indices of the extents that this save writes
  std::vector<TokenExtent> token_extents_;
  std::vector<StateRun> states_;
  FileRun logits_, state_, data_;
  std::vector<std::pair<FileRun, const void*>> blobs_;
  uint64_t index_offset_ = 0, index_checksum_ = 0;
};

void sync(int fd, const std::string& path) {
  if (::fdatasync(fd) != 0) io_error(path, "cannot write", errno);
}

// Returns true if the new part can be appended. A file with much outdated data is rewritten.
bool worth_appending(const SessionContent& before) {
  constexpr uint64_t kSmall = uint64_t(64) << 20;
  constexpr size_t kManyExtents = 100000;  // an index of about 10 MB
  return before.end < 2 * (before.kv_bytes() + before.state_bytes()) + kSmall &&
         before.extents.size() < kManyExtents;
}

// Returns the identity of the save that was written to fd.
SavedAs saved_as(int fd, const std::string& path, const Saving& saving, uint64_t generation) {
  struct stat info;
  if (::fstat(fd, &info) != 0) io_error(path, "cannot read", errno);
  return {info.st_dev, info.st_ino, generation, saving.end(), saving.index_checksum()};
}

[[noreturn]] void changed(const std::string& path) {
  throw Error(RIFFLE_FILE_CHANGED,
              path +
                  ": found a session that another program has saved since, expected "
                  "the one that was loaded or saved here last");
}

void check_unchanged(const std::string& path, uint64_t expected) {
  uint64_t found = 0;
  try {
    found = save_id_at(path);
  } catch (const Error& e) {
    if (e.status() == RIFFLE_BAD_SESSION) changed(path);
    throw;
  }
  if (found != 0 && found != expected) changed(path);
}

// Locks the file; returns false if the file system has no locks. Other programs that save to the
// file wait until it is closed, and meanwhile report `done` bytes of `total`.
bool lock(int fd, const std::string& path, const SaveProgress& progress, double done,
          double total) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      go_on_or_throw(path, progress, done, total);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    // EBADF: NFS locks no file that is open only for reading.
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EBADF) return false;
    io_error(path, "cannot lock", errno);
  }
  return true;
}

// Appends to the file. Returns nothing if the file at path is not `before` unchanged, or has lost
// its name at the end.
std::optional<SavedAs> append(const std::string& path, const SessionToSave& session,
                              const SessionFile& before, int64_t unchanged, ThreadPool& threads,
                              const SaveProgress& progress, const uint64_t* save_id) {
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) {
    if (errno == ENOENT) return std::nullopt;
    io_error(path, "cannot open", errno);
  }
  Saving saving(session, &before.content(), unchanged, in_pages(before.content().end));
  // A new file needs no locks.
  if (!lock(fd, path, progress, 0, saving.kv_bytes())) return std::nullopt;
  if (save_id) check_unchanged(path, *save_id);
  if (!before.is_current(path)) return std::nullopt;
  // The user may have made the file readable to others. A file system without modes refuses fchmod.
  static_cast<void>(::fchmod(fd, 0600));
  const uint64_t end = before.content().end;
  try {
    // Cuts off bytes that an interrupted save has left.
    if (::ftruncate(fd, static_cast<off_t>(end)) != 0) io_error(path, "cannot write", errno);
    reserve_room(fd, path, end, saving.end());
    saving.write_kv(fd, path, threads, progress);
    saving.write_rest(fd, path);
    if (::ftruncate(fd, static_cast<off_t>(saving.end())) != 0)
      io_error(path, "cannot write", errno);
    sync(fd, path);
  } catch (...) {
    if (::ftruncate(fd, static_cast<off_t>(end)) != 0) errno = 0;  // the next save does it
    throw;
  }
  const uint64_t generation = before.content().generation + 1;
  saving.write_save(fd, path, generation);
  sync(fd, path);
  const SavedAs as = saved_as(fd, path, saving, generation);
  // Another process may have put a new file in its place.
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 || info.st_dev != as.device || info.st_ino != as.inode)
    return std::nullopt;
  return as;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// A file that disappears unless it is renamed, even if the process is killed: where the system can,
// it has no name until it is complete.
class Temporary {
 public:
  explicit Temporary(const std::string& path) : folder_(folder_of(path)) {
    if (::access("/proc/self/fd", X_OK) == 0)
      fd_ = FileDescriptor(::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd_ >= 0) return;
    name_ = path + ".part-XXXXXX";
    fd_ = FileDescriptor(::mkostemp(name_.data(), O_CLOEXEC));
    if (fd_ < 0) io_error(path, "cannot create a temporary file in its folder", errno);
  }
  ~Temporary() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  int fd() const { return fd_; }
  // Without `replace` it throws RIFFLE_FILE_CHANGED if a file of that name exists.
  void rename(const std::string& path, bool replace) {
    if (name_.empty()) give_name(path);
    // If two programs give a new file the same name, only one of them can make the link. Some file
    // systems have no links.
    const bool linked = !replace && ::link(name_.c_str(), path.c_str()) == 0;
    if (!replace && !linked && errno == EEXIST) changed(path);
    if (linked) ::unlink(name_.c_str());
    else if (::rename(name_.c_str(), path.c_str()) != 0) io_error(path, "cannot create", errno);
    name_.clear();
    // The name is on the disk once its folder is.
    const FileDescriptor dir(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir >= 0) ::fsync(dir);
  }

 private:
  void give_name(const std::string& path) {
    const std::string file = "/proc/self/fd/" + std::to_string(int(fd_));
    for (int i = 0;; ++i) {
      std::string name = path + format(".part-%d-%d", static_cast<int>(::getpid()), i);
      if (::linkat(AT_FDCWD, file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        name_ = std::move(name);  // a copy could run out of memory and leave the file
        return;
      }
      if (errno != EEXIST) io_error(path, "cannot create", errno);
    }
  }

  std::string folder_, name_;
  FileDescriptor fd_;  // mode 0600: it holds the text
};

SavedAs write_new(const std::string& path, const SessionToSave& session, ThreadPool& threads,
                  const SaveProgress& progress, const uint64_t* save_id) {
  Saving saving(session, nullptr, 0, 3 * disk::kPage);
  Temporary file(path);
  const int fd = file.fd();
  reserve_room(fd, path, 0, saving.end());
  saving.write_header(fd, path);
  saving.write_kv(fd, path, threads, progress);
  saving.write_rest(fd, path);
  saving.write_save(fd, path, 1);
  if (::ftruncate(fd, static_cast<off_t>(saving.end())) != 0) io_error(path, "cannot write", errno);
  sync(fd, path);
  const SavedAs as = saved_as(fd, path, saving, 1);
  if (!save_id) {
    file.rename(path, true);
    return as;
  }
  const FileDescriptor old(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (old >= 0) lock(old, path, progress, saving.kv_bytes(), saving.kv_bytes());
  check_unchanged(path, *save_id);
  file.rename(path, old >= 0);
  return as;
}

// Checks that a save may replace the file.
void check_target(const std::string& path) {
  struct stat info;
  const auto refuse = [&](const std::string& found) {
    throw Error(RIFFLE_BAD_ARGUMENT,
                path + ": found " + found + ", expected a session, or the name of a new file");
  };
  if (::stat(path.c_str(), &info) != 0) return;
  if (const char* found = not_regular(info)) refuse(std::string("a ") + found);
  if (info.st_size == 0) return;
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd < 0) io_error(path, "cannot open", errno);
  char magic[sizeof disk::kMagic] = {};
  if (::pread(fd, magic, sizeof magic, 0) != sizeof magic ||
      std::memcmp(magic, disk::kMagic, sizeof magic) != 0)
    refuse("another kind of file");
}

}  // namespace

void check_session_path(const std::string& path) {
  const std::string target = real_path(path), folder = folder_of(target);
  check_target(target);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    io_error(path, ("cannot write into the folder " + folder).c_str(), errno);
}

std::shared_ptr<const SessionFile> save_session(const std::string& path,
                                                const SessionToSave& session,
                                                const SessionFile* before, int64_t unchanged,
                                                ThreadPool& threads, const SaveProgress& progress,
                                                uint64_t* save_id) {
  const std::string target = real_path(path);
  check_target(target);
  if (save_id) check_unchanged(target, *save_id);  // before much is written in vain
  std::optional<SavedAs> as;
  if (before && before->is_current(target) && worth_appending(before->content()))
    as = append(target, session, *before, unchanged, threads, progress, save_id);
  if (!as) as = write_new(target, session, threads, progress, save_id);
  if (save_id) *save_id = as->save_id();
  try {
    auto file = SessionFile::open(path);
    return file->is_as_written(*as) ? file : nullptr;
  } catch (const Error&) {
    return nullptr;  // saved, but another program has removed it since
  }
}

}  // namespace riffle
