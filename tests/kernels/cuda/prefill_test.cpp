// Causal prefill attention against float64 brute force, and its exact properties.
#include "kernels/cuda/prefill/prefill.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/common/agreed.h"
#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/head_dims.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle::cuda;
using riffle::kKeyTile;
using riffle::kQueryTile;
using riffle::cpu::f16_to_f32;
using riffle::cpu::f32_to_f16;
using riffle::test::check_cuda;
using riffle::test::device_limits;
using riffle::test::DeviceArray;
using riffle::test::skip;

namespace {

struct Shape {
  int64_t n = 1, pos0 = 0;
  int d = 128, block_size = 32, n_kv_heads = 1, group = 1;
  KvType type = KvType::F16;
  WType out_type = WType::F32;
  int q_pad = 0, out_pad = 0;  // ldq and ldo beyond the row
  float k_scale = 1;
  int64_t spare_blocks = 0;  // blocks of each head after the last token's
  int64_t window = 0;
  bool sinks = false;

  int n_heads() const { return n_kv_heads * group; }
  int64_t width() const { return static_cast<int64_t>(n_heads()) * d; }
  int64_t ldq() const { return width() + q_pad; }
  int64_t ldo() const { return width() + out_pad; }
  size_t out_bytes() const { return out_type == WType::F32 ? 4 : 2; }
  // With latents a block has keys alone, and a token's value is the beginning of its key.
  int sides() const { return d == kLatentDim ? 1 : 2; }
};

// Queries, and blocks in which everything that is no token's key or value is NaN.
struct Case {
  Case(const Shape& s, uint32_t seed) : shape(s), total(s.pos0 + s.n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t element = s.type == KvType::F16 ? 2 : 4,
                 rows = static_cast<size_t>(s.block_size) * s.d * element,
                 block_bytes = static_cast<size_t>(s.sides()) * rows;
    layout = {s.type, s.block_size, s.d, static_cast<int64_t>(block_bytes),
              static_cast<int64_t>(block_bytes - rows)};
    n_blocks = (total + s.block_size - 1) / s.block_size + s.spare_blocks;
    std::vector<std::byte> bytes(static_cast<size_t>(n_blocks) * s.n_kv_heads * block_bytes,
                                 std::byte{0xff});
    kv.resize(static_cast<size_t>(s.n_kv_heads) * total * 2 * s.d);
    for (int h = 0; h < s.n_kv_heads; h++) {
      for (int64_t t = 0; t < total; t++) {
        for (int side = 0; side < s.sides(); side++) {
          std::byte* row = bytes.data() +
                           static_cast<size_t>(h * n_blocks + t / s.block_size) * block_bytes +
                           side * rows + static_cast<size_t>(t % s.block_size) * s.d * element;
          for (int j = 0; j < s.d; j++) {
            float x = normal(random) * (side == 0 ? s.k_scale : 1.0f);
            if (s.type == KvType::F16) {
              const uint16_t half = f32_to_f16(x);
              std::memcpy(row + 2 * j, &half, 2);
              x = f16_to_f32(half);
            } else {
              std::memcpy(row + 4 * j, &x, 4);
            }
            kv[((h * total + t) * 2 + side) * s.d + j] = x;
            if (s.sides() == 1 && j < kLatentValueDim) kv[((h * total + t) * 2 + 1) * s.d + j] = x;
          }
        }
      }
    }
    q.resize(static_cast<size_t>(s.n * s.ldq()));
    for (float& x : q) x = normal(random);
    // From far below all scores to far above them.
    const float some[] = {3, -200, 0, 8, 5, 20, -2};
    for (int h = 0; s.sinks && h < s.n_heads(); h++) sinks.push_back(some[h % 7]);
    if (s.sinks) device_sinks = DeviceArray<float>(sinks);
    device_q = DeviceArray<float>(q.size() + 8);
    device_q.upload(q);
    blocks = DeviceArray<std::byte>(bytes);
    host_blocks = std::move(bytes);
  }

  // Rows [begin, end), computed as one chunk. Rows are whole: what lies beyond the heads must still
  // be poison.
  std::vector<std::byte> run(int64_t begin, int64_t end) const {
    const size_t row_bytes = static_cast<size_t>(shape.ldo()) * shape.out_bytes(),
                 rows = static_cast<size_t>(end - begin);
    // A chunk's queries begin on a 16-byte boundary, as the contract has it, so they are copied to
    // a place of their own.
    DeviceArray<float> chunk(rows * shape.ldq());
    chunk.upload(
        std::span<const float>(q).subspan(static_cast<size_t>(begin * shape.ldq()), chunk.size()));
    DeviceArray<std::byte> out((rows + 1) * row_bytes);  // one more row: must stay untouched
    out.poison();
    FlashPrefill args;
    args.q = chunk.get(), args.n = end - begin, args.ldq = shape.ldq(),
    args.pos0 = shape.pos0 + begin;
    args.window = shape.window, args.n_heads = shape.n_heads(), args.n_kv_heads = shape.n_kv_heads;
    args.blocks = blocks.get(), args.n_blocks = n_blocks, args.layout = layout;
    args.sinks = shape.sinks ? device_sinks.get() : nullptr;
    args.out = out.get(), args.ldo = shape.ldo(), args.out_type = shape.out_type;
    // The words of the query tiles that this chunk has rows of.
    const int64_t first = args.pos0 / kQueryTile - shape.pos0 / kQueryTile,
                  last = (args.pos0 + args.n - 1) / kQueryTile - shape.pos0 / kQueryTile;
    std::vector<uint64_t> some;
    for (int h = 0; h < shape.n_heads() && !tiles.empty(); h++)
      for (int64_t i = first; i <= last; i++)
        for (int64_t w = 0; w < words(); w++)
          some.push_back(tiles[static_cast<size_t>((h * query_tiles() + i) * words() + w)]);
    const DeviceArray<uint64_t> chosen(some);
    if (!tiles.empty()) args.tiles = chosen.get(), args.tile_words = words();
    check_cuda(flash_prefill(args, device_limits(), nullptr), "flash_prefill");
    std::vector<std::byte> bytes = out.download();
    const size_t used = static_cast<size_t>(shape.width()) * shape.out_bytes();
    size_t touched = 0;
    for (size_t i = 0; i < bytes.size(); i++) {
      if (i >= rows * row_bytes || i % row_bytes >= used) touched += bytes[i] != std::byte{0xff};
    }
    CHECK(touched == 0);
    bytes.resize(rows * row_bytes);
    return bytes;
  }

  double value(const std::vector<std::byte>& out, int64_t row, int64_t column) const {
    const std::byte* p =
        out.data() + static_cast<size_t>(row * shape.ldo() + column) * shape.out_bytes();
    uint32_t bits = 0;
    std::memcpy(&bits, p, shape.out_bytes());
    if (shape.out_type == WType::F16) return f16_to_f32(static_cast<uint16_t>(bits));
    if (shape.out_type == WType::BF16) bits <<= 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }

  int64_t words() const { return total / (64 * kKeyTile) + 1; }
  int64_t query_tiles() const { return (total - 1) / kQueryTile - shape.pos0 / kQueryTile + 1; }
  bool reads(int head, int64_t query, int64_t key) const {
    if (tiles.empty()) return true;
    const int64_t i = (shape.pos0 + query) / kQueryTile - shape.pos0 / kQueryTile,
                  tile = key / kKeyTile;
    return tiles[static_cast<size_t>((head * query_tiles() + i) * words() + tile / 64)] >>
               tile % 64 &
           1;
  }
  // Sets each bit with the given probability, and those of the queries' own tiles.
  void choose_at_random(double share, uint32_t seed) {
    std::mt19937 random(seed);
    std::bernoulli_distribution bit(share);
    tiles.assign(static_cast<size_t>(shape.n_heads() * query_tiles() * words()), 0);
    for (int h = 0; h < shape.n_heads(); h++)
      for (int64_t i = 0; i < query_tiles(); i++)
        for (int64_t tile = 0; tile * kKeyTile < total; tile++) {
          const bool own = tile * kKeyTile / kQueryTile == shape.pos0 / kQueryTile + i;
          if (bit(random) || own)
            tiles[static_cast<size_t>((h * query_tiles() + i) * words() + tile / 64)] |=
                uint64_t{1} << tile % 64;
        }
  }

  // Largest |out - exact| / |exact| of a (query, head), over at most max_rows queries, the first
  // and the last among them.
  double worst_error(const std::vector<std::byte>& out, int64_t max_rows) const {
    double worst = 0;
    std::vector<double> p(total), exact(shape.d);
    const int64_t step = std::max<int64_t>(1, (shape.n + max_rows - 1) / max_rows);
    for (int64_t i = shape.n - 1;; i = std::max<int64_t>(0, i - step)) {
      for (int head = 0; head < shape.n_heads(); head++) {
        const int64_t visible = shape.pos0 + i + 1,
                      begin = shape.window > 0 ? std::max<int64_t>(0, visible - shape.window) : 0;
        const double* keys =
            kv.data() + static_cast<int64_t>(head / shape.group) * total * 2 * shape.d;
        double top = -HUGE_VAL, sum = 0;
        for (int64_t t = begin; t < visible; t++) {
          if (!reads(head, i, t)) continue;
          double dot = 0;
          for (int j = 0; j < shape.d; j++)
            dot += q[i * shape.ldq() + head * shape.d + j] * keys[t * 2 * shape.d + j];
          p[t] = dot / std::sqrt(static_cast<double>(shape.d));
          top = std::max(top, p[t]);
        }
        std::fill(exact.begin(), exact.end(), 0.0);
        for (int64_t t = begin; t < visible; t++) {
          if (!reads(head, i, t)) continue;
          const double e = std::exp(p[t] - top);
          sum += e;
          for (int j = 0; j < shape.d; j++) exact[j] += e * keys[(t * 2 + 1) * shape.d + j];
        }
        double error = 0, norm = 0;
        if (shape.sinks) sum += std::exp(sinks[head] - top);
        for (int j = 0; j < shape.d; j++) {
          const double want = exact[j] / sum, got = value(out, i, head * shape.d + j);
          error += (got - want) * (got - want), norm += want * want;
        }
        const double relative = std::sqrt(error / norm);
        if (!(relative <= worst)) worst = relative;  // NaN is worst
        if (std::isnan(worst)) return worst;
      }
      if (i == 0) return worst;
    }
  }

  Shape shape;
  int64_t total, n_blocks = 0;
  KvLayout layout;
  std::vector<double> kv;  // [n_kv_heads][total][2][d]: the values that the bytes mean
  std::vector<float> q, sinks;
  std::vector<uint64_t> tiles;  // [n_heads][query tiles][words()]; empty: all keys are read
  std::vector<std::byte> host_blocks;
  DeviceArray<float> device_q, device_sinks;
  DeviceArray<std::byte> blocks;
};

// f16: queries and probabilities are rounded to 11 bits, errors of a row average out; bf16 results
// have 8 bits.
double tolerance(const Shape& s) {
  const double arithmetic = s.type == KvType::F16 ? 2e-3 : 1e-5;
  return arithmetic + (s.out_type == WType::F32 ? 0 : s.out_type == WType::F16 ? 0x1p-11 : 0x1p-8);
}

void check_shape(const Shape& s, uint32_t seed, int64_t max_rows = 24) {
  CAPTURE(s.n, s.pos0, s.d, s.block_size, s.n_kv_heads, s.group, static_cast<int>(s.type),
          static_cast<int>(s.out_type), s.q_pad, s.out_pad, s.k_scale, s.spare_blocks, s.window);
  const Case c(s, seed);
  CHECK(c.worst_error(c.run(0, s.n), max_rows) <= tolerance(s));
}

// With these, the whole prompt in one chunk and in several gives the same bits.
void check_sinks(const Shape& s, uint32_t seed) {
  CAPTURE(s.n, s.pos0, s.d, s.block_size, static_cast<int>(s.type), s.window);
  const Case c(s, seed);
  const std::vector<std::byte> whole = c.run(0, s.n);
  CHECK(c.worst_error(whole, 24) <= tolerance(s));
  std::vector<std::byte> parts = c.run(0, s.n / 3);
  const std::vector<std::byte> rest = c.run(s.n / 3, s.n);
  parts.insert(parts.end(), rest.begin(), rest.end());
  CHECK(parts == whole);
  Shape plain = s;  // the same keys, values and queries
  plain.sinks = false;
  CHECK(Case(plain, seed).run(0, s.n) != whole);
}

constexpr int kHeadDims[] = {64, 80, 96, 128, 256}, kWideDims[] = {512, kLatentDim},
              kBlockSizes[] = {16, 32, 64};

}  // namespace

TEST_CASE("prefill attention: every head dimension, block size and type", "[cuda][prefill]") {
  if (skip()) return;
  uint32_t seed = 1;
  for (const KvType type : {KvType::F16, KvType::F32}) {
    for (const int d : kHeadDims) {
      for (const int block_size : kBlockSizes) {
        for (const auto& [n, pos0] :
             {std::pair<int, int>{1, 0}, {3, 61}, {64, 0}, {77, 129}, {130, 127}, {128, 64}}) {
          Shape s;
          s.n = n, s.pos0 = pos0, s.d = d, s.block_size = block_size, s.type = type;
          s.n_kv_heads = 2, s.group = n == 77 ? 16 : 2, s.out_type = static_cast<WType>(seed % 3);
          check_shape(s, seed++);
        }
      }
    }
  }
}

TEST_CASE("prefill attention: wide heads and latents", "[cuda][prefill]") {
  if (skip()) return;
  uint32_t seed = 500;
  for (const KvType type : {KvType::F16, KvType::F32}) {
    for (const int d : kWideDims) {
      for (const int block_size : kBlockSizes) {
        for (const auto& [n, pos0] : {std::pair<int, int>{1, 0}, {3, 61}, {77, 129}, {130, 127}}) {
          for (const int64_t window : {0, 100}) {
            if (d == kLatentDim && window > 0) continue;  // no model with latents has windows
            Shape s;
            s.n = n, s.pos0 = pos0, s.d = d, s.block_size = block_size, s.type = type;
            s.n_kv_heads = d == kLatentDim ? 1 : 2, s.group = n == 77 ? 16 : 2, s.window = window;
            s.out_type = static_cast<WType>(seed % 3);
            check_shape(s, seed++);
          }
        }
      }
    }
  }
}

TEST_CASE("prefill attention: random shapes", "[cuda][prefill]") {
  if (skip()) return;
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (int i = 0; i < 120; i++) {
    Shape s;
    s.n = 1 + below(i % 3 == 0 ? 32 : 700), s.pos0 = i % 4 == 0 ? 0 : below(1001);
    s.d = kHeadDims[below(5)], s.block_size = kBlockSizes[below(3)];
    s.n_kv_heads = 1 + below(3), s.group = 1 + below(16);
    s.type = i % 3 == 2 ? KvType::F32 : KvType::F16, s.out_type = static_cast<WType>(below(3));
    s.q_pad = below(6), s.out_pad = below(6), s.spare_blocks = below(3);
    check_shape(s, static_cast<uint32_t>(1000 + i), 6);
  }
}

TEST_CASE("prefill attention: far into a document, and sharp scores", "[cuda][prefill]") {
  if (skip()) return;
  for (const KvType type : {KvType::F16, KvType::F32}) {
    Shape s;
    s.type = type, s.n = 200, s.pos0 = 40001, s.group = 2;
    check_shape(s, 5, 4);
    // Scores of about +-30: one key has most of the weight, and the running maximum moves by large
    // steps. Rounding a query to 11 bits moves a score by up to about 30 * 2^-12, so errors of f16
    // grow with the scores.
    s.pos0 = 300, s.k_scale = 10;
    CAPTURE(static_cast<int>(type));
    const Case c(s, 6);
    CHECK(c.worst_error(c.run(0, s.n), 50) <= (type == KvType::F16 ? 2e-2 : 5e-5));
  }
}

TEST_CASE("prefill attention: a row's bits do not depend on the chunks", "[cuda][prefill]") {
  if (skip()) return;
  for (const KvType type : {KvType::F16, KvType::F32}) {
    for (const int d : kHeadDims) {
      Shape s;
      s.type = type, s.d = d, s.n = 389, s.pos0 = 150, s.group = 3,
      s.block_size = kBlockSizes[d / 16 % 3];
      CAPTURE(static_cast<int>(type), d);
      const Case c(s, static_cast<uint32_t>(d));
      const std::vector<std::byte> whole = c.run(0, s.n);
      CHECK(c.run(0, s.n) == whole);
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 1, 389},
                                               {0, 31, 32, 33, 200, 389},
                                               {0, 128, 256, 384, 389},
                                               {0, 300, 388, 389}}) {
        std::vector<std::byte> pieces;
        for (size_t i = 0; i + 1 < cuts.size(); i++) {
          const std::vector<std::byte> piece = c.run(cuts[i], cuts[i + 1]);
          pieces.insert(pieces.end(), piece.begin(), piece.end());
        }
        CHECK(pieces == whole);
      }
    }
  }
}

// Tiles before the window are skipped, the first one that is read is masked; bits do not depend on
// what a chunk skips.
TEST_CASE("prefill attention: a sliding window", "[cuda][prefill][window]") {
  if (skip()) return;
  uint32_t seed = 9000;
  for (const KvType type : {KvType::F16, KvType::F32}) {
    for (const int d : kHeadDims) {
      for (const int64_t window : {1, 2, 31, 63, 64, 65, 127, 128, 200, 333, 1000, 1 << 28}) {
        Shape s;
        s.type = type, s.d = d, s.window = window, s.block_size = kBlockSizes[seed % 3];
        s.n_kv_heads = 2, s.group = 1 + static_cast<int>(seed % 3);
        s.n = 1 + seed * 37 % 330, s.pos0 = seed % 5 == 0 ? 0 : seed * 101 % 700;
        CAPTURE(static_cast<int>(type), d, window, s.block_size, s.n, s.pos0);
        const Case c(s, seed++);
        const std::vector<std::byte> whole = c.run(0, s.n);
        CHECK(c.worst_error(whole, 40) <= tolerance(s));
        std::vector<std::byte> pieces;
        for (int64_t from = 0, to; from < s.n; from = to) {
          to = std::min(s.n, from + 1 + (from * 7 + seed) % 90);
          const std::vector<std::byte> piece = c.run(from, to);
          pieces.insert(pieces.end(), piece.begin(), piece.end());
        }
        CHECK(pieces == whole);
      }
    }
  }
  // Far into a document: nothing before the window is read, or its NaN would show.
  Shape s;
  s.n = 300, s.pos0 = 20000, s.window = 512, s.group = 2;
  for (const KvType type : {KvType::F16, KvType::F32}) {
    s.type = type;
    Case c(s, 77);
    const int64_t unread =
        (s.pos0 - s.window + 1) / 64 * 64 / s.block_size;  // the largest tile has 64 keys
    for (int h = 0; h < s.n_kv_heads; h++)
      check_cuda(cudaMemset(c.blocks.get() + h * c.n_blocks * c.layout.block_bytes, 0xff,
                            unread * c.layout.block_bytes));
    CHECK(c.worst_error(c.run(0, s.n), 20) <= tolerance(s));
  }
}

TEST_CASE("prefill attention refuses what it has no kernel for", "[cuda][prefill]") {
  if (skip()) return;
  Shape s;
  const Case c(s, 1);
  DeviceArray<float> out(static_cast<size_t>(s.width()));
  FlashPrefill args;
  args.q = c.device_q.get(), args.n = 1, args.ldq = s.ldq(), args.n_heads = args.n_kv_heads = 1;
  args.blocks = c.blocks.get(), args.n_blocks = c.n_blocks, args.layout = c.layout;
  args.out = out.get(), args.ldo = s.ldo();
  const DeviceLimits limits = device_limits();
  CHECK(flash_prefill(args, limits, nullptr) == cudaSuccess);
  FlashPrefill wrong = args;
  wrong.layout.head_dim = 72;
  CHECK(flash_prefill(wrong, limits, nullptr) == cudaErrorNotSupported);
  wrong = args, wrong.layout.block_size = 48;
  CHECK(flash_prefill(wrong, limits, nullptr) == cudaErrorNotSupported);
  wrong = args, wrong.pos0 = 32;  // its keys are not there
  CHECK(flash_prefill(wrong, limits, nullptr) == cudaErrorInvalidValue);
  wrong = args, wrong.out_type = WType::Q8_0;
  CHECK(flash_prefill(wrong, limits, nullptr) == cudaErrorInvalidValue);
  wrong = args, wrong.layout.value_offset += 64;
  CHECK(flash_prefill(wrong, limits, nullptr) == cudaErrorInvalidValue);
  check_cuda(cudaDeviceSynchronize());
}

TEST_CASE("prefill_supported names the head dimensions and block sizes that are tested", "[cuda]") {
  const auto among = [](const auto& list, int x) {
    return std::find(std::begin(list), std::end(list), x) != std::end(list);
  };
  for (int d = 0; d <= 1024; ++d)
    for (int size = 0; size <= 128; ++size) {
      KvLayout layout;
      layout.head_dim = d, layout.block_size = size;
      const bool tested = (among(kHeadDims, d) || among(kWideDims, d)) && among(kBlockSizes, size);
      CHECK((prefill_supported(layout) == cudaSuccess) == tested);
    }
}

TEST_CASE("prefill attention with sinks against float64", "[cuda][sinks]") {
  if (skip()) return;
  uint32_t seed = 900;
  for (const KvType type : {KvType::F16, KvType::F32})
    for (const int d : kHeadDims)
      for (const int64_t window : {0, 100}) {
        Shape s;
        s.n = 200, s.pos0 = 130, s.d = d, s.n_kv_heads = 2, s.group = 3, s.type = type;
        s.window = window, s.sinks = true;
        check_sinks(s, ++seed);
      }
}

TEST_CASE("prefill attention reads the tiles that it is given", "[cuda][prefill][tiles]") {
  if (skip()) return;
  uint32_t seed = 700;
  for (const KvType type : {KvType::F16, KvType::F32})
    for (const int d : kHeadDims)
      for (const int block_size : kBlockSizes)
        for (const auto& [n, pos0] : {std::pair{300, 200}, {128, 1024}, {1, 77}, {513, 4000}})
          for (const bool sinks : {false, true}) {
            Shape s;
            s.n = n, s.pos0 = pos0, s.d = d, s.block_size = block_size, s.n_kv_heads = 2;
            s.group = 3, s.type = type, s.sinks = sinks, s.out_pad = n % 2;
            CAPTURE(s.n, s.pos0, d, block_size, static_cast<int>(type), sinks);
            Case c(s, ++seed);
            c.choose_at_random(0.3, seed);
            const std::vector<std::byte> out = c.run(0, s.n);
            CHECK(c.worst_error(out, 12) <= tolerance(s));
            if (n < 300) continue;
            // Chunks at any place give the same bits.
            std::vector<std::byte> parts = c.run(0, 137);
            const std::vector<std::byte> rest = c.run(137, s.n);
            parts.insert(parts.end(), rest.begin(), rest.end());
            CHECK(parts == out);
          }
}

TEST_CASE("the GPU and the CPU choose the same tiles, up to rounding", "[cuda][prefill][tiles]") {
  if (skip()) return;
  const riffle::cpu::AttentionKernels& cpu =
      riffle::cpu::kernels(riffle::cpu::Isa::Scalar)->attention;
  for (const KvType type : {KvType::F16, KvType::F32})
    for (const int d : {64, 128, 256, 80})
      for (const bool sinks : {false, true}) {
        Shape s;  // a chunk in the middle of a prompt that began in its first query tile
        s.n = 600, s.pos0 = 4200, s.d = d, s.n_kv_heads = 2, s.group = 2, s.type = type;
        s.sinks = sinks, s.k_scale = 2;
        CAPTURE(d, static_cast<int>(type), sinks);
        Case c(s, 900 + d);
        const float share = 0.03f;  // a few tiles have it: 65 tiles have nearly equal weights
        FlashPrefill of;
        of.q = c.device_q.get(), of.n = s.n, of.ldq = s.ldq(), of.pos0 = s.pos0;
        of.n_heads = s.n_heads(), of.n_kv_heads = s.n_kv_heads, of.blocks = c.blocks.get();
        of.n_blocks = c.n_blocks, of.layout = c.layout, of.tile_words = c.words();
        of.sinks = sinks ? c.device_sinks.get() : nullptr;
        TileMeans means;
        means.blocks = of.blocks, means.n_blocks = of.n_blocks, means.layout = of.layout;
        means.last = c.total / kKeyTile, means.stride = means.last + 1, means.n_kv_heads = 2;
        DeviceArray<uint16_t> mean_values(static_cast<size_t>(2 * means.stride * d));
        means.out = mean_values.get();
        check_cuda(tile_means(means, nullptr));
        DeviceArray<uint64_t> tiles(static_cast<size_t>(s.n_heads() * c.query_tiles() * c.words()));
        tiles.poison();
        DeviceArray<unsigned long long> counts(std::vector<unsigned long long>{0, 0});
        ChooseTiles choose;
        choose.means = means.out, choose.stride = means.stride, choose.share = share;
        choose.whole_begin = s.pos0 - 70, choose.whole_end = c.total;
        choose.tiles = tiles.get(), choose.counts = counts.get();
        check_cuda(choose_tiles(of, choose, device_limits(), nullptr));
        const std::vector<uint64_t> found = tiles.download();
        const std::vector<uint16_t> mean_halves = mean_values.download();

        unsigned long long seen = 0, read = 0;
        int wrong = 0, left_out = 0, few = 0;
        for (int h = 0; h < s.n_heads(); h++) {
          const int kv_head = h / s.group;
          std::vector<float> mean(static_cast<size_t>(means.stride) * d);
          for (int64_t tile = 0; tile < means.last; tile++)
            for (int j = 0; j < d; j++) {
              double sum = 0;
              for (int64_t t = tile * kKeyTile; t < (tile + 1) * kKeyTile; t++)
                sum += c.kv[((kv_head * c.total + t) * 2) * d + j];
              mean[tile * d + j] = static_cast<float>(sum / kKeyTile);
              const float half = f16_to_f32(
                  mean_halves[static_cast<size_t>((kv_head * means.stride + tile) * d + j)]);
              wrong += std::fabs(half - sum / kKeyTile) > 1e-3 * (1 + std::fabs(half));
            }
          for (int64_t i = 0; i < c.query_tiles(); i++) {
            const int64_t first = (s.pos0 / kQueryTile + i) * kQueryTile,
                          n_tiles = (std::min(first + kQueryTile, c.total) - 1) / kKeyTile + 1;
            const uint64_t* bits =
                &found[static_cast<size_t>((h * c.query_tiles() + i) * c.words())];
            const bool whole = first >= s.pos0 && first + kQueryTile <= c.total;
            const auto bracket = [&](float at) {
              std::vector<uint64_t> tiles(static_cast<size_t>(c.words()));
              std::vector<float> scratch(cpu.choice_scratch_bytes(first + kQueryTile, d) / 4);
              cpu.choose_tiles(&c.q[static_cast<size_t>((first - s.pos0) * s.ldq() + h * d)],
                               s.ldq(), kQueryTile, d, first, mean.data(), at, tiles.data(),
                               scratch.data());
              return tiles;
            };
            const auto least = whole ? bracket(share * 1.05f) : std::vector<uint64_t>{},
                       most = whole ? bracket(share / 1.05f) : std::vector<uint64_t>{};
            if (whole) seen += n_tiles;
            for (int64_t tile = 0; tile < 64 * c.words(); tile++) {
              const auto is = [&](const auto& words) { return words[tile / 64] >> tile % 64 & 1; };
              if (!whole) {
                wrong += is(bits) != (tile < n_tiles);
                continue;
              }
              read += is(bits);
              wrong += is(bits) < is(least) || is(bits) > is(most);
              left_out += tile < n_tiles && !is(bits);
              few += is(bits) && tile > 0 && tile < n_tiles - 6;
            }
          }
        }
        CHECK(wrong == 0);
        CHECK(left_out > 0);
        CHECK(few > 0);
        const std::vector<unsigned long long> counted = counts.download();
        CHECK(counted[0] == seen);
        CHECK(counted[1] == read);
      }
}
