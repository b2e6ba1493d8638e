// Layers that keep different things: other heads, other head sizes, windows, the KV of an earlier
// layer, a state. Their KV is kept, forked, cut, saved and adopted layer by layer.
#include <catch2/catch.hpp>
#include <cstring>

#include "engine/plan/devices.h"
#include "kv/file/session_writer.h"
#include "kv/kv_store.h"
#include "tests/model/test_files.h"
#include "util/error.h"

using namespace riffle;

namespace {

constexpr int kB = 16;

KvShape uneven_shape() {
  return {kB,
          KvType::F16,
          {{LayerKeeps::KV, 2, 16},
           {LayerKeeps::WINDOW_KV, 1, 32, 40},
           {LayerKeeps::EARLIER_KV, 2, 16, 0, 0},
           {LayerKeeps::STATE},
           {LayerKeeps::KV, 4, 8}}};
}

struct UnevenStore {
  KvShape shape = uneven_shape();
  ThreadPool threads{2};
  HostKv host{shape, cpu::kernels(cpu::Isa::Scalar), &threads};

  void fill(SequenceKv& s) const {
    for (int layer = 0; layer < shape.n_layers(); ++layer)
      for (int h = 0; h < shape.heads(layer); ++h)
        for (size_t b = 0; b < host.head(s, layer, h).blocks.size(); ++b)
          if (std::byte* block = host.head(s, layer, h).blocks[b])
            std::memset(block, value(layer, h, b), shape.block_bytes(layer));
  }
  static int value(int layer, int h, size_t b) {
    return 1 + static_cast<int>((layer * 31 + h * 7 + b) % 60);  // no infinity in f16
  }
  // The first n tokens are as `fill` has written them.
  bool holds(const SequenceKv& s, int64_t n) const {
    for (int layer = 0; layer < shape.n_layers(); ++layer)
      for (int h = 0; h < shape.heads(layer); ++h)
        for (int64_t b = 0; b < n / kB; ++b) {
          const std::byte* block = host.head(s, layer, h).blocks[b];
          if (!shape.keeps(layer, b, s.n_tokens, s.marks)) continue;
          if (!block) return false;
          for (size_t i = 0; i < 2 * shape.layout(layer).value_offset(); ++i)
            if (block[i] != std::byte(value(layer, h, static_cast<size_t>(b)))) return false;
        }
    return true;
  }
};

}  // namespace

TEST_CASE("layers that are alike have one numbering", "[kv]") {
  const BlockLayout layout{kB, 64, KvType::Q8};
  const KvShape shape(layout, 4, 3, {0, 100, 100, 0});
  for (int layer = 0; layer < 4; ++layer) {
    CHECK(shape.first_head(layer) == layer * 3);
    CHECK(shape.first_row(layer) == layer * 3);
    CHECK(shape.tail_at(shape.first_head(layer)) == size_t(layer) * 3 * layout.bytes());
  }
  CHECK(shape.heads() == 12);
  CHECK(shape.rows() == 12);
  CHECK(shape.index_row(3) == 3);
  CHECK(shape.index_rows() == 6);
  CHECK(shape.choices() == 2);
  CHECK(shape.tails_bytes() == 12 * layout.bytes());
  using Runs = std::vector<KvShape::HeadRun>;
  CHECK(shape.runs(false) == Runs{{0, 0, 12}});
  CHECK(shape.runs(true) == Runs{{0, 0, 3}, {3, 9, 3}});
  CHECK(shape.uneven_choice().empty());
  CHECK(KvShape(layout, 2, 3, {9, 9}).chosen() == -1);
}

TEST_CASE("layers of different shapes: numbers, bytes and names", "[kv]") {
  const KvShape shape = uneven_shape();
  CHECK(shape.n_layers() == 5);
  CHECK(shape.heads() == 2 + 1 + 4);
  CHECK(shape.first_head(4) == 3);
  CHECK(shape.layer_of(2) == 1);
  CHECK(shape.layer_of(6) == 4);
  CHECK(shape.heads(2) == 0);
  CHECK(shape.heads(3) == 0);
  CHECK(shape.first_head(2) == 0);  // the first head of its source, layer 0
  const int rows[] = {2, 1, 2, 0, 4}, first_rows[] = {0, 2, 3, 5, 5}, choices[] = {0, 1, 1, 2, 2};
  const bool selects[] = {true, false, true, false, true};
  for (int layer = 0; layer < 5; ++layer) {
    INFO("layer " << layer);
    CHECK(shape.rows(layer) == rows[layer]);
    CHECK(shape.first_row(layer) == first_rows[layer]);
    CHECK(shape.choice(layer) == choices[layer]);
    CHECK(shape.selects(layer) == selects[layer]);
    CHECK(shape.indexed(layer) == (layer == 0 || layer == 4));
  }
  CHECK(shape.rows() == 9);
  CHECK(shape.choices() == 3);
  CHECK(shape.chosen() == 0);
  CHECK(shape.index_row(0) == 0);
  CHECK(shape.index_row(2) == 0);
  CHECK(shape.index_row(4) == 2);
  CHECK(shape.index_rows() == 6);
  CHECK(shape.tail_at(2) == 2 * shape.block_bytes(0));
  CHECK(shape.tail_at(3) == 2 * shape.block_bytes(0) + shape.block_bytes(1));
  CHECK(shape.tails_bytes() == shape.tail_at(3) + 4 * shape.block_bytes(4));
  using Runs = std::vector<KvShape::HeadRun>;
  CHECK(shape.runs(false) == Runs{{0, 0, 2}, {1, 2, 1}, {4, 3, 4}});
  CHECK(shape.runs(true) == Runs{{0, 0, 2}, {4, 3, 4}});
  CHECK(shape.uneven_choice() == "layer 4 has 4 KV heads of size 8, layer 0 has 2 of size 16");
  CHECK(shape.windowed_layers() == 1);
  CHECK(shape.largest_block() == shape.block_bytes(1));
  const auto bytes = [&](int layer, int64_t blocks) {
    return uint64_t(shape.heads(layer)) * blocks * shape.block_bytes(layer);
  };
  CHECK(shape.bytes(160, {}) ==
        bytes(0, 10) + bytes(1, 10 - shape.first_kept(1, 160)) + bytes(4, 10));
  CHECK(shape.longest(shape.most_bytes(4000)) >= 4000);
  CHECK(shape.uneven() == "layer 1 has 1 KV heads of size 32, layer 0 has 2 of size 16");
  const auto refusal = [](std::vector<LayerShape> layers, bool per_layer = false) -> std::string {
    ContextOptions options;
    options.pool_per_layer = per_layer;
    try {
      require_supported({kB, KvType::F16, std::move(layers)}, options);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal({{LayerKeeps::KV, 2, 16}, {LayerKeeps::WINDOW_KV, 2, 16, 40}}).empty());
  const std::vector<LayerShape> uneven = {{LayerKeeps::WINDOW_KV, 4, 16, 40},
                                          {LayerKeeps::KV, 2, 32}};
  CHECK(refusal(uneven).empty());
  CHECK(refusal(uneven, true) ==
        "pool is per-layer, expected unified, since layers differ (layer 1 has 2 KV heads of size "
        "32, layer 0 has 4 of size 16)");
  CHECK(refusal({{LayerKeeps::KV, 2, 16}, {LayerKeeps::KV, 2, 32}}) ==
        "layer 1 has 2 KV heads of size 32, layer 0 has 2 of size 16, expected the same number and "
        "size of KV heads in all layers without a sliding window");
  const std::vector<LayerShape> borrowing = {{LayerKeeps::KV, 2, 16},
                                             {LayerKeeps::EARLIER_KV, 2, 16, 0, 0}};
  CHECK(refusal(borrowing).empty());
  CHECK(refusal(borrowing, true) ==
        "pool is per-layer, expected unified, since layers differ (layer 1 attends to the KV of "
        "layer 0)");
  CHECK(refusal({{LayerKeeps::STATE}, {LayerKeeps::KV, 2, 16}}) == "");
}

// Two models with 262,144 tokens of f16 KV. Blocks have 16 tokens, so each head has 16,384 blocks.
TEST_CASE("layers of different shapes: the numbers of large models", "[kv]") {
  constexpr int64_t kTokens = 262144, kGiB = 1 << 30;
  // Gemma 4 31B: five of every six layers have a window.
  std::vector<LayerShape> layers;
  for (int i = 0; i < 60; ++i)
    layers.push_back(i % 6 == 5 ? LayerShape{LayerKeeps::KV, 4, 512}
                                : LayerShape{LayerKeeps::WINDOW_KV, 16, 256, 1024});
  const KvShape gemma(kB, KvType::F16, layers);
  CHECK(gemma.heads() == 50 * 16 + 10 * 4);
  CHECK(gemma.largest_block() == 32768);
  CHECK(gemma.block_bytes(0) == 16384);
  CHECK(gemma.readable_blocks(kTokens) == 10 * 4 * 16384 + 800 * 65);
  const uint64_t whole = gemma.most_bytes(kTokens) - uint64_t(20) * kGiB;
  CHECK(whole % (800 * 16384) == 0);  // the bytes of the windowed layers
  CHECK(whole < uint64_t(5) * kGiB);
  CHECK(gemma.largest_layer(kTokens) == uint64_t(4) * kGiB);  // a layer with a window
  CHECK(gemma.index_rows() == 40);
  CHECK(gemma.uneven_choice().empty());
  // Qwen3.5 27B: three of every four layers keep a state.
  layers.clear();
  for (int i = 0; i < 64; ++i)
    layers.push_back(i % 4 == 3 ? LayerShape{LayerKeeps::KV, 4, 256}
                                : LayerShape{LayerKeeps::STATE});
  const KvShape qwen(kB, KvType::F16, layers);
  CHECK(qwen.heads() == 64);
  CHECK(qwen.readable_blocks(kTokens) == 64 * 16384);
  CHECK(qwen.most_bytes(kTokens) == uint64_t(16) * kGiB);
  CHECK(qwen.chosen() == 3);
}

TEST_CASE("layers of different shapes are kept, forked, cut, saved and adopted",
          "[kv][session_file]") {
  const test::TempDir temp;
  const std::string path = temp / "uneven.kv";
  UnevenStore a;
  SequenceKv s = a.host.create(400, {});
  constexpr int64_t kTokens = 200;
  Marks marks;
  marks.add(kTokens);
  a.host.reserve_prompt(s, kTokens, marks);
  a.fill(s);
  a.host.commit_prompt(s, kTokens, marks, [](const std::byte*) {});
  CHECK(a.host.host_bytes() == a.shape.bytes(kTokens, marks));
  CHECK(a.holds(s, kTokens));

  SequenceKv fork = a.host.fork(s, kTokens, 400);
  CHECK(a.holds(fork, kTokens));
  // The partial blocks alone are copies.
  uint64_t partial = 0;
  for (int layer = 0; layer < 5; ++layer)
    partial += a.shape.heads(layer) * a.shape.block_bytes(layer);
  CHECK(a.host.host_bytes() == a.shape.bytes(kTokens, marks) + partial);
  a.host.truncate(fork, kTokens - 30);
  CHECK(a.holds(fork, kTokens - 30));
  a.host.destroy(fork);

  SessionToSave save;
  std::vector<int32_t> tokens(kTokens, 3);
  save.origin.block_size = kB;
  save.origin.vocab_size = 8;
  for (int i = 0; i < a.shape.n_layers(); ++i) {
    LayerShape layer = a.shape.layer(i);
    if (layer.keeps == LayerKeeps::WINDOW_KV) layer.keeps = LayerKeeps::KV;
    layer.window = 0;
    save.origin.layers.push_back(layer);
  }
  save.kv = &s;
  save.marks = s.marks;
  save.tokens = tokens;
  uint64_t id = 0;
  save_session(path, save, nullptr, 0, a.threads, {}, &id);
  const auto file = SessionFile::open(path);
  const SessionContent& c = file->content();
  CHECK(c.origin.layers == save.origin.layers);
  CHECK(c.kv_bytes() == a.shape.bytes(kTokens, marks));

  UnevenStore b;
  SequenceKv loaded = b.host.create(400, {});
  std::vector<MappedBlocks> blocks;
  for (const KvExtent& e : c.extents)
    blocks.push_back({e.layer, e.first, e.n, e.stride, file->mapped() + e.offset});
  b.host.adopt(loaded, c.n_tokens(), c.marks, blocks, file);
  b.host.enter(loaded, c.n_tokens(), c.marks);
  CHECK(b.holds(loaded, kTokens));
  CHECK(b.host.host_bytes() == 0);
  b.host.reserve(loaded, kTokens + 20);
  CHECK(b.holds(loaded, kTokens / kB * kB));
  b.host.destroy(loaded);
  a.host.destroy(s);
  CHECK(a.host.host_bytes() == 0);
  CHECK(b.host.host_bytes() == 0);
}
