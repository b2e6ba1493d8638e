// The reader of sessions, and what takes a session from it: the store of blocks, digests, a
// selector's state, the text that the command line keeps. Checksums are made right before it reads,
// so that it sees what lies behind them.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "cli/saved_text.h"
#include "kernels/cpu/kernels.h"
#include "kv/file/session_file.h"
#include "kv/file/session_layout.h"
#include "kv/host_kv.h"
#include "select/papers/papers.h"
#include "util/checksum.h"
#include "util/error.h"
#include "util/settings.h"

using namespace riffle;
namespace disk = riffle::session_layout;

static void seal(std::string& file, uint64_t page) {
  char* at = file.data() + page * disk::kPage;
  const uint64_t sum = checksum(at, disk::kChecksumAt);
  std::memcpy(at + disk::kChecksumAt, &sum, sizeof sum);
}

// Writes a run's checksum, if the run lies in the file.
static void seal_run(std::string& file, disk::Run& run) {
  if (run.offset <= file.size() && run.bytes <= file.size() - run.offset)
    run.checksum = checksum(file.data() + run.offset, run.bytes);
}

// Tells whether a shape in the file's header has a state; then the index has their number.
static bool has_states(const std::string& file) {
  disk::Header header;
  std::memcpy(&header, file.data(), sizeof header);
  for (int i = 0; i < std::min<int>(header.n_layers, 1024) && header.n_shapes > 0; ++i)
    if (const uint8_t shape = header.shape_of[i];
        shape < disk::kMaxShapes && header.shapes[shape].state_bytes > 0)
      return true;
  return false;
}

static const cpu::Kernels& scalar() {
  static const cpu::Kernels kernels = [] {
    cpu::Kernels k{};
    k.isa = cpu::Isa::Scalar;
    cpu::attention_scalar(&k.attention);
    cpu::select_scalar(&k.select);
    return k;
  }();
  return kernels;
}

// Bytes of a run, which is nowhere if it has none.
static std::string_view bytes_of(const FileRun& run, const std::string& file) {
  if (run.bytes == 0) return {};
  return {file.data() + run.offset, run.bytes};
}

// Does what the engine does with a file that fits its context. Checksums of blocks are not
// compared: any bytes may come with correct ones.
static void take_blocks(const SessionContent& c, const std::string& file) {
  const SessionOrigin& o = c.origin;
  const KvShape shape = o.shape();
  const LayerShape& layer = shape.layer(shape.first_with_blocks());
  const int head_dim = layer.head_dim;
  if (c.n_tokens() > 4096 || shape.state_bytes() > 1 << 20 || shape.heads() > 64 ||
      !shape.uneven().empty() || head_dim % (o.type == KvType::Q8 ? 32 : 16) != 0 ||
      head_dim > 256 || (o.block_size != 16 && o.block_size != 32 && o.block_size != 64))
    return;
  const std::shared_ptr<std::byte> map(
      static_cast<std::byte*>(
          std::aligned_alloc(disk::kPage, (file.size() / disk::kPage + 1) * disk::kPage)),
      std::free);
  std::memcpy(map.get(), file.data(), file.size());
  static ThreadPool threads(1);
  HostKv store(shape, &scalar(), &threads);
  std::vector<MappedBlocks> blocks;
  for (const KvExtent& e : c.extents)
    blocks.push_back({e.layer, e.first, e.n, e.stride, map.get() + e.offset});
  SequenceKv first = store.create(8192, {}), second = store.create(8192, {});
  try {
    store.adopt(first, c.n_tokens(), c.marks, blocks, map);
    store.adopt(second, c.n_tokens(), c.marks, blocks, map);
  } catch (const Error&) {  // the reader has refused what the store would refuse
    __builtin_trap();
  }
  // Digests need all full blocks, which the engine asks for.
  const int64_t n_blocks = shape.in_blocks(c.n_tokens());
  bool whole = true;
  for (const HeadKv& head : first.heads)
    for (int64_t b = 0; b < n_blocks; ++b) whole &= head.blocks[b] != nullptr;
  if (whole) {
    Selection settings;
    settings.selector = SelectorKind::LFPS;
    const auto lfps = make_lfps(settings);
    first.selection =
        lfps->make_state({shape.n_layers(), layer.n_kv_heads, 2, store.layout(), 8192, &scalar()});
    for (SequenceKv* s : {&first, &second}) {
      store.reserve_states(*s, std::vector<Checkpoint>(c.states.begin(), c.states.end()));
      for (size_t i = 0; i < c.states.size(); ++i)
        std::memcpy(s->next_states[i].block, bytes_of(c.states[i].state, file).data(),
                    shape.state_bytes());
      store.enter(*s, c.n_tokens(), c.marks);
    }
    if (first.selection->load(bytes_of(c.state, file), c.n_tokens())) {
      first.selection->settle();
      first.selection->truncate(c.n_tokens() / 2);
    }
    store.reserve(first, c.n_tokens() + 1);
    store.reserve_rows(first, 2);
    store.truncate(first, store.reach(first, c.n_tokens() / 2));
    SequenceKv fork = store.fork(second, store.reach(second, c.n_tokens() / 3), 8192);
    store.destroy(fork);
  }
  store.destroy(first);
  store.destroy(second);
}

static void take_text(const SessionContent& c, const std::string& file) {
  try {
    cli::unpacked("fuzz", bytes_of(c.data, file));
  } catch (const cli::Exit&) {
  }
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
          for (disk::Run* run : {&head.logits, &head.state, &head.data}) seal_run(file, *run);
          std::memcpy(index, &head, sizeof head);
          const uint64_t tokens = sizeof head + (has_states(file) ? sizeof(uint64_t) : 0);
          for (uint64_t i = 0; i < head.n_token_extents &&
                               tokens + (i + 1) * sizeof(disk::TokenExtent) <= save.index_bytes;
               ++i) {
            char* place = index + tokens + i * sizeof(disk::TokenExtent);
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
    take_blocks(content, file);
    take_text(content, file);
  } catch (const Error&) {
  }
  return 0;
}
