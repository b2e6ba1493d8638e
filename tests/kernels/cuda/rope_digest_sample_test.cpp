// RoPE, digests and the sampler on the device against their CPU twins.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "engine/sampler.h"
#include "kernels/common/hadamard.h"
#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/sample/sample.h"
#include "kernels/cuda/select/select.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

namespace cpu = riffle::cpu;
using namespace riffle::cuda;
using riffle::hadamard;
using riffle::test::check_cuda;
using riffle::test::DeviceArray;
using riffle::test::same_bits;
using riffle::test::skip;
using riffle::test::store_rows;

namespace {

using riffle::RopePairs;

using Rng = std::mt19937_64;
float uniform(Rng& g) { return static_cast<float>(static_cast<double>(g() >> 11) * 0x1p-52 - 1.0); }
float gaussian(Rng& g) { return std::normal_distribution<float>(0, 1)(g); }
std::vector<float> random_floats(Rng& g, size_t n, float scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = uniform(g) * scale;
  return v;
}
// Pairs that are not rotated share a factor.
std::vector<float> cos_sin_table(int64_t positions, int head_dim, RopePairs pairs) {
  std::vector<float> table(positions * head_dim);
  for (int64_t p = 0; p < positions; p++)
    for (int j = 0; j < head_dim / 2; j++) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * j / head_dim);
      const bool rotates = pairs.interleaved || j < pairs.rotated / 2;
      table[p * head_dim + 2 * j] = rotates ? static_cast<float>(std::cos(angle)) : 1.25f;
      table[p * head_dim + 2 * j + 1] = rotates ? static_cast<float>(std::sin(angle)) : 0;
    }
  return table;
}
// The device's table has the first values of each row.
std::vector<float> device_table(const std::vector<float>& table, int head_dim, RopePairs pairs) {
  std::vector<float> out;
  for (size_t row = 0; row < table.size(); row += head_dim)
    out.insert(out.end(), table.begin() + row, table.begin() + row + pairs.row_width(head_dim));
  return out;
}
KvLayout layout_of(KvType type, int block_size, int d) {
  const int64_t row = kv_row_bytes(type, d);
  return {type, block_size, d, (2 * row * block_size + 63) / 64 * 64, row * block_size};
}
cpu::KvType twin(KvType type) { return static_cast<cpu::KvType>(type); }

// Writes the rotated key and the value of one (row, head) into a block here, as the kernel should.
// A key in 8 bits is transformed, and its centre is subtracted.
void append_here(const cpu::Kernels* k, const float* key, const float* value, const float* table,
                 int32_t position, RopePairs pairs, const KvLayout& layout, const float* centre,
                 uint8_t* block) {
  std::vector<float> head(key, key + layout.head_dim);
  k->linear.rope(head.data(), 1, layout.head_dim, 1, layout.head_dim, table, &position, pairs);
  if (layout.type == KvType::Q8) {
    hadamard(head.data(), layout.head_dim);
    for (int j = 0; j < layout.head_dim; j++) head[j] -= centre[j];
  }
  const int64_t row = layout.value_offset / layout.block_size * (position % layout.block_size);
  k->attention.kv_store(head.data(), layout.head_dim, twin(layout.type), block + row);
  k->attention.kv_store(value, layout.head_dim, twin(layout.type),
                        block + layout.value_offset + row);
}

}  // namespace

TEST_CASE("rope and both appends give the bits of the scalar kernels", "[cuda]") {
  if (skip()) return;
  Rng g(11);
  const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
  for (int d : {2, 16, 64, 80, 96, 128, 256}) {
    // Pairs half a head apart, neighbours, and half of three quarters of a head apart.
    for (const RopePairs pairs : {RopePairs{false, d}, {true, d}, {false, d * 3 / 8 * 2}}) {
      for (KvType type : {KvType::F16, KvType::F32, KvType::Q8}) {
        const int n = 5, n_heads = 6, n_kv = 3, block_size = 16, layer = 1, n_layers = 3;
        const int64_t ldq = n_heads * d + 2, ldk = n_kv * d + 1, pos0 = 13;
        const KvLayout layout = layout_of(type, block_size, d);
        const auto table = cos_sin_table(100, d, pairs), q = random_floats(g, n * ldq),
                   key = random_floats(g, n * ldk, 4), value = random_floats(g, n * ldk),
                   centre = random_floats(g, n_kv * d, 9);
        const DeviceArray<float> table_d(device_table(table, d, pairs)), key_d(key), value_d(value),
            centre_d(centre);
        INFO("head_dim " << d << " interleaved " << pairs.interleaved << " rotated "
                         << pairs.rotated << " type " << static_cast<int>(type));

        DeviceArray<float> q_d(q);
        auto want = q;
        std::vector<int32_t> positions;
        for (int i = 0; i < n; i++) positions.push_back(static_cast<int32_t>(pos0 + i));
        const bool transforms = type == KvType::Q8;
        const auto transform_row = [&](float* heads) {
          for (int h = 0; transforms && h < n_heads; h++) hadamard(heads + h * d, d);
        };
        k->linear.rope(want.data(), n, ldq, n_heads, d, table.data(), positions.data(), pairs);
        for (int i = 0; i < n; i++) transform_row(&want[i * ldq]);
        check_cuda(
            rope(q_d.get(), n, ldq, n_heads, d, table_d.get(), pos0, pairs, transforms, nullptr));
        CHECK(same_bits(q_d.download(), want));

        // Prefill: positions 13 to 17, so blocks 0 and 1.
        const int64_t n_blocks = 3;
        DeviceArray<uint8_t> blocks_d(n_kv * n_blocks * layout.block_bytes);
        blocks_d.poison(0xa5);
        std::vector<uint8_t> blocks(blocks_d.size(), 0xa5);
        for (int i = 0; i < n; i++)
          for (int h = 0; h < n_kv; h++)
            append_here(k, &key[i * ldk + h * d], &value[i * ldk + h * d], table.data(),
                        positions[i], pairs, layout, &centre[h * d],
                        &blocks[(h * n_blocks + positions[i] / block_size) * layout.block_bytes]);
        check_cuda(rope_append_prefill(key_d.get(), value_d.get(), n, ldk, n_kv, table_d.get(),
                                       pos0, pairs, reinterpret_cast<std::byte*>(blocks_d.get()),
                                       n_blocks, layout, centre_d.get(), nullptr));
        CHECK(same_bits(blocks_d.download(), blocks));

        // A step of n sequences at different positions.
        const int64_t tail_bytes = n_layers * n_kv * layout.block_bytes;
        DeviceArray<uint8_t> tails_d(n * tail_bytes);
        tails_d.poison(0xa5);
        std::vector<uint8_t> tails(tails_d.size(), 0xa5);
        std::vector<StepSequence> sequences(n);
        want = q;
        for (int i = 0; i < n; i++) {
          const int32_t position = (i * 31 + 15) % 97;
          sequences[i].n_tokens = position + 1;
          sequences[i].tail = reinterpret_cast<std::byte*>(tails_d.get() + i * tail_bytes);
          k->linear.rope(&want[i * ldq], 1, ldq, n_heads, d, table.data(), &position, pairs);
          transform_row(&want[i * ldq]);
          for (int h = 0; h < n_kv; h++)
            append_here(k, &key[i * ldk + h * d], &value[i * ldk + h * d], table.data(), position,
                        pairs, layout, &centre[h * d],
                        &tails[i * tail_bytes + (layer * n_kv + h) * layout.block_bytes]);
        }
        const DeviceArray<StepSequence> sequences_d(sequences);
        q_d.upload(q);
        RopeAppendStep a;
        a.q = q_d.get(), a.k = key_d.get(), a.v = value_d.get(), a.ldq = ldq, a.ldk = ldk, a.n = n;
        a.n_heads = n_heads, a.n_kv_heads = n_kv, a.tail_offset = layer * n_kv * layout.block_bytes,
        a.cos_sin = table_d.get();
        a.query_cos_sin = a.cos_sin, a.pairs = pairs, a.sequences = sequences_d.get(),
        a.layout = layout, a.key_centre = centre_d.get();
        check_cuda(rope_append_step(a, nullptr));
        CHECK(same_bits(q_d.download(), want));
        CHECK(same_bits(tails_d.download(), tails));
      }
    }
  }
}

// Norms follow the rotation of queries and keys: each head becomes what a norm of the rotated head
// gives, up to rounding.
TEST_CASE("rope and both appends apply norms after the rotation", "[cuda]") {
  if (skip()) return;
  Rng g(12);
  const float eps = 1e-5f;
  for (const int d : {2, 64, 80, 256})
    for (const KvType type : {KvType::F32, KvType::Q8}) {
      INFO("head_dim " << d << " type " << static_cast<int>(type));
      const RopePairs pairs{false, d};
      const int n = 5, n_heads = 4, n_kv = 2, block_size = 16;
      const int64_t ldq = n_heads * d, ldk = n_kv * d, pos0 = 3;
      const bool transforms = type == KvType::Q8;
      const KvLayout layout = layout_of(type, block_size, d);
      const auto table = cos_sin_table(100, d, pairs), q = random_floats(g, n * ldq, 2),
                 key = random_floats(g, n * ldk, 4), value = random_floats(g, n * ldk),
                 q_weight = random_floats(g, d), k_weight = random_floats(g, d);
      const DeviceArray<float> table_d(device_table(table, d, pairs)), key_d(key), value_d(value),
          q_weight_d(q_weight), k_weight_d(k_weight);
      // Normalises heads of rows that were rotated.
      const auto normalise = [&](std::vector<float>& rows, const std::vector<float>& weight) {
        for (size_t head = 0; head < rows.size(); head += d) {
          double squares = 0;
          for (int j = 0; j < d; j++) squares += double(rows[head + j]) * rows[head + j];
          const double scale = 1 / std::sqrt(squares / d + eps);
          for (int j = 0; j < d; j++)
            rows[head + j] = static_cast<float>(rows[head + j] * scale * weight[j]);
        }
      };
      DeviceArray<float> rotated_q(q), rotated_k(key), q_d(q), step_q(q);
      check_cuda(rope(rotated_q.get(), n, ldq, n_heads, d, table_d.get(), pos0, pairs, false, {}));
      check_cuda(rope(rotated_k.get(), n, ldk, n_kv, d, table_d.get(), pos0, pairs, false, {}));
      auto want_q = rotated_q.download(), want_k = rotated_k.download();
      normalise(want_q, q_weight);
      normalise(want_k, k_weight);
      if (transforms)
        for (size_t head = 0; head < want_q.size(); head += d) hadamard(&want_q[head], d);
      const HeadNorm q_norm{q_weight_d.get(), eps}, k_norm{k_weight_d.get(), eps};
      check_cuda(rope(q_d.get(), n, ldq, n_heads, d, table_d.get(), pos0, pairs, transforms,
                      nullptr, q_norm));
      const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
        double worst = 0;
        for (size_t i = 0; i < b.size(); i++)
          worst = std::max(worst, double(std::fabs(a[i] - b[i])) / (1 + std::fabs(b[i])));
        return worst <= 3e-6;
      };
      const auto got_q = q_d.download();
      CHECK(near(got_q, want_q));

      // A prompt of the tokens, and steps at the same positions: the same keys.
      const int64_t n_blocks = 1, tail_bytes = n_kv * layout.block_bytes;
      DeviceArray<uint8_t> blocks(n_kv * n_blocks * layout.block_bytes), tails(n * tail_bytes);
      blocks.poison(0);
      tails.poison(0);
      check_cuda(rope_append_prefill(key_d.get(), value_d.get(), n, ldk, n_kv, table_d.get(), pos0,
                                     pairs, reinterpret_cast<std::byte*>(blocks.get()), n_blocks,
                                     layout, nullptr, nullptr, k_norm));
      std::vector<StepSequence> sequences(n);
      for (int i = 0; i < n; i++) {
        sequences[i].n_tokens = static_cast<int32_t>(pos0 + i + 1);
        sequences[i].tail = reinterpret_cast<std::byte*>(tails.get() + i * tail_bytes);
      }
      const DeviceArray<StepSequence> sequences_d(sequences);
      RopeAppendStep a;
      a.q = step_q.get(), a.k = key_d.get(), a.v = value_d.get(), a.ldq = ldq, a.ldk = ldk, a.n = n;
      a.n_heads = n_heads, a.n_kv_heads = n_kv, a.cos_sin = a.query_cos_sin = table_d.get();
      a.pairs = pairs, a.q_norm = q_norm, a.k_norm = k_norm, a.sequences = sequences_d.get();
      a.layout = layout;
      check_cuda(rope_append_step(a, nullptr));
      CHECK(same_bits(step_q.download(), got_q));
      const auto in_blocks = blocks.download(), in_tails = tails.download();
      const int64_t row = layout.value_offset / block_size;
      bool same = true;
      for (int i = 0; i < n; i++)
        for (int h = 0; h < n_kv; h++) {
          const uint8_t *const
              block = &in_blocks[h * layout.block_bytes + (pos0 + i) * row],
              *const tail = &in_tails[i * tail_bytes + h * layout.block_bytes + (pos0 + i) * row];
          same &= std::memcmp(block, tail, row) == 0;
          same &= std::memcmp(block + layout.value_offset, tail + layout.value_offset, row) == 0;
          if (type != KvType::F32) continue;
          std::vector<float> got(d);
          std::memcpy(got.data(), block, d * sizeof(float));
          CHECK(near(got, {&want_k[i * ldk + h * d], &want_k[i * ldk + (h + 1) * d]}));
        }
      CHECK(same);
    }
}

TEST_CASE("digests are those of the CPU, bit for bit", "[cuda]") {
  if (skip()) return;
  Rng g(12);
  const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
  for (int d : {8, 64, 80, 96, 128, 256, 512}) {
    for (int block_size : {1, 16, 32, 64}) {
      for (KvType type : {KvType::F16, KvType::F32, KvType::Q8}) {
        for (DigestKind kind : {DigestKind::Mean, DigestKind::Quest, DigestKind::CuboidMean}) {
          for (bool with_mean : {false, true}) {
            const KvLayout layout = layout_of(type, block_size, d);
            // Heads of 7 blocks each, the last block of a head not yet full; digests have room
            // for 12.
            const int n_heads = 2, n_blocks = 7, first = 1, last = 6, max_blocks = 12;
            const int64_t stride = d * (with_mean ? 3 : 2), n_held = n_heads * max_blocks;
            std::vector<uint8_t> blocks(n_heads * n_blocks * layout.block_bytes, 0xff);
            std::vector<uint16_t> want(n_held * stride, 0xffff);
            std::vector<float> factors(n_held, -1);
            for (int h = 0; h < n_heads; h++)
              for (int b = 0; b < n_blocks; b++) {
                // Ordinary, tiny (f16 subnormals), huge (radii overflow), constant, outliers; an
                // infinity; a NaN.
                const int sort = h == 0 ? b : 6 - b;
                auto keys = random_floats(g, block_size * d,
                                          sort == 1   ? 1e-6f
                                          : sort == 2 ? 65000.0f
                                                      : 3.0f);
                if (sort == 3) keys.assign(keys.size(), 0.37f);
                if (sort == 4)
                  for (float& x : keys) x = gaussian(g) * (g() % 16 == 0 ? 100.0f : 1.0f);
                if (h == 0 && sort == 5) keys[0] = INFINITY;
                if (h == 1 && sort == 5) keys[keys.size() / 2] = NAN;
                uint8_t* block = &blocks[(h * n_blocks + b) * layout.block_bytes];
                store_rows(k, keys, d, twin(type), block);
                if (b < first || b >= last) continue;
                const int64_t at = h * max_blocks + b;
                factors[at] = k->attention.digest_build(block, twin(type), block_size, d,
                                                        static_cast<cpu::DigestKind>(kind),
                                                        with_mean, &want[at * stride]);
              }
            const DeviceArray<uint8_t> blocks_d(blocks);
            DeviceArray<uint16_t> digests(want.size());
            DeviceArray<float> factors_d(std::vector<float>(n_held, -1));
            digests.poison();
            check_cuda(build_digests(reinterpret_cast<const std::byte*>(blocks_d.get()), n_blocks,
                                     first, last, n_heads, layout, kind, with_mean, digests.get(),
                                     stride, factors_d.get(), max_blocks, nullptr));
            const auto got = digests.download();
            const auto got_factors = factors_d.download();
            INFO("d " << d << " B " << block_size << " type " << static_cast<int>(type) << " kind "
                      << static_cast<int>(kind) << " mean " << with_mean);
            for (int b = 0; b < n_held; b++) {
              bool equal = true;
              for (int64_t j = 0; j < stride; j++) {
                const uint16_t a = got[b * stride + j], c = want[b * stride + j];
                // A NaN's payload and sign are the hardware's choice.
                equal &= a == c || ((a & 0x7fff) > 0x7c00 && (c & 0x7fff) > 0x7c00);
              }
              INFO("digest " << b);
              CHECK(equal);
              CHECK((std::memcmp(&got_factors[b], &factors[b], 4) == 0 ||
                     (std::isnan(got_factors[b]) && std::isnan(factors[b]))));
            }
          }
        }
      }
    }
  }
}

namespace {

// Draws `rows` tokens with the device's and the CPU's sampler from the same random numbers; how
// many differ. masked: every other row may draw some tokens only, the middle one among them.
int differences(Rng& g, const std::vector<float>& logits, int64_t ld, int vocab, int rows,
                float temperature, int top_k, float top_p, float min_p, riffle::Xtc xtc,
                bool masked) {
  const int words = (vocab + 31) / 32;
  std::vector<uint32_t> masks(rows * words);
  for (uint32_t& word : masks) word = static_cast<uint32_t>(g());
  for (int i = 0; i < rows; i++) masks[i * words + vocab / 2 / 32] |= 1u << (vocab / 2 % 32);
  const DeviceArray<uint32_t> masks_d(masks);
  std::vector<SampleParams> params;
  std::vector<int> want;
  for (int i = 0; i < rows; i++) {
    const uint64_t seed = g();
    const bool has_mask = masked && i % 2 == 0;
    riffle::Sampler sampler(seed, temperature, top_k, top_p, min_p, xtc);
    riffle::SampleRequest request = sampler.request();
    if (has_mask) request.allowed = &masks[i * words];
    want.push_back(sampler.sample(&logits[i * ld], vocab, request));
    params.push_back({temperature, top_p, min_p, top_k, request.random,
                      has_mask ? masks_d.get() + i * words : nullptr, nullptr, 0,
                      request.xtc_threshold});
  }
  DeviceArray<float> logits_d(logits);
  const DeviceArray<SampleParams> params_d(params);
  DeviceArray<int32_t> out(rows);
  DeviceArray<uint8_t> scratch(sample_scratch_bytes(rows, vocab));
  out.poison(), scratch.poison();
  check_cuda(sample(logits_d.get(), rows, ld, vocab, params_d.get(), false, out.get(),
                    scratch.get(), nullptr),
             "sample");
  const auto got = out.download();
  int differ = 0;
  for (int i = 0; i < rows; i++) differ += got[i] != want[i];
  return differ;
}

}  // namespace

TEST_CASE("the device's sampler draws what the CPU's draws", "[cuda]") {
  if (skip()) return;
  Rng g(13);
  struct Setting {
    float temperature;
    int top_k;
    float top_p, min_p;
    riffle::Xtc xtc = {};
  };
  const Setting settings[] = {{0, 0, 1, 0},
                              {1, 1, 1, 0},
                              {1, 0, 1, 0},
                              {0.7f, 40, 1, 0},
                              {0.8f, 40, 0.9f, 0},
                              {1, 0, 0.95f, 0},
                              {1.5f, 0, 0.999f, 0},
                              {1, 0, 1, 0.05f},
                              {0.6f, 0, 1, 0.001f},
                              {1, 5000, 1, 0},
                              {1, 5000, 0.99f, 0},
                              {1, 5000, 0.5f, 0.001f},
                              {100, 0, 0.5f, 0},
                              {0.01f, 40, 0.9f, 0.1f},
                              {1, 0, 0, 0},
                              {1, 1000000, 1, 0},
                              {1, 40, 1, 0, {1, 0.03f}},
                              {0.8f, 40, 0.95f, 0.05f, {0.5f, 0.1f}},
                              {1, 0, 1, 0, {1, 0.0003f}},
                              {0.05f, 0, 0.999f, 0, {1, 0.002f}},
                              {1, 5000, 1, 0.001f, {0.7f, 0.001f}},
                              {1, 5000, 0.5f, 0, {1, 0}},
                              {1, 0, 1, 0, {1, 0}},
                              {2, 0, 1, 0.001f, {1, 0.00001f}}};
  int draws = 0, differ = 0;
  for (int vocab : {1, 2, 31, 1000, 4097, 32000, 128256, 262144}) {
    const int rows = vocab < 5000 ? 40 : 6;
    const int64_t ld = vocab == 128256 ? vocab : vocab + 3;
    for (int kind = 0; kind < 4;
         kind++) {  // gaussian; coarse, so with many ties; all equal; with infinities
      std::vector<float> logits(rows * ld, NAN);  // beyond the vocabulary: not to be read
      for (int i = 0; i < rows; i++)
        for (int v = 0; v < vocab; v++) {
          float x = gaussian(g) * 3;
          if (kind == 1) x = std::round(x);
          if (kind == 2) x = v % 2 ? 0.0f : -0.0f;
          if (kind == 3 && v != vocab / 2 && g() % 4 == 0) x = -INFINITY;
          if (kind == 3 && i % 3 == 2 && g() % 64 == 0) x = INFINITY;
          logits[i * ld + v] = x;
        }
      for (const Setting& s : settings) {
        for (const bool masked : {false, true}) {
          const int d = differences(g, logits, ld, vocab, rows, s.temperature, s.top_k, s.top_p,
                                    s.min_p, s.xtc, masked);
          INFO("vocab " << vocab << " logits " << kind << " temperature " << s.temperature
                        << " top_k " << s.top_k << " top_p " << s.top_p << " min_p " << s.min_p
                        << " XTC " << s.xtc.probability << " " << s.xtc.threshold << " masked "
                        << masked);
          CHECK(d <= (s.temperature == 0 || s.top_k == 1 ? 0 : 1));
          draws += rows, differ += d;
        }
      }
    }
  }
  INFO(differ << " of " << draws << " draws differ");
  CHECK(differ * 1000 <= draws);
}

TEST_CASE("the device's sampler changes and forbids logits as the CPU's does", "[cuda]") {
  if (skip()) return;
  Rng g(29);
  const int vocab = 32003, rows = 8;
  int differ = 0, draws = 0;
  const auto between = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(g);
  };
  for (const auto& [temperature, top_k] :
       {std::pair{0.0f, 0}, {0.8f, 40}, {1.0f, 0}, {1.2f, 5000}}) {
    std::vector<float> logits(rows * vocab);
    for (float& x : logits) x = between(-6, 6);
    std::vector<std::vector<riffle::LogitChange>> changes(rows);
    std::vector<std::vector<uint32_t>> masks(rows);
    std::vector<DeviceArray<riffle::LogitChange>> changes_d;
    std::vector<DeviceArray<uint32_t>> masks_d;
    std::vector<DeviceArray<float>> replaced_d;
    std::vector<SampleParams> params;
    std::vector<int> want;
    for (int i = 0; i < rows; i++) {
      for (int t = i; t < vocab; t += 7 + i)
        changes[i].push_back({t,
                              t % 3 == 0    ? between(-4, 4)
                              : t % 11 == 0 ? -INFINITY
                                            : 0,
                              between(0.5f, 2), between(-2, 2)});
      masks[i].resize((vocab + 31) / 32);
      for (uint32_t& word : masks[i]) word = static_cast<uint32_t>(g());
      changes_d.emplace_back(changes[i]);
      replaced_d.emplace_back(changes[i].size());
      masks_d.emplace_back(masks[i]);
      const uint64_t seed = g();
      riffle::Sampler sampler(seed, temperature, top_k, 0.98f, 0);
      riffle::SampleRequest request = sampler.request();
      request.changes = changes[i].data();
      request.n_changes = static_cast<int32_t>(changes[i].size());
      if (i % 2) request.allowed = masks[i].data();
      want.push_back(sampler.sample(&logits[i * vocab], vocab, request));
      params.push_back({temperature, 0.98f, 0, top_k, riffle::Random(seed).uniform(),
                        i % 2 ? masks_d[i].get() : nullptr, changes_d[i].get(), request.n_changes});
      params.back().replaced = replaced_d[i].get();
    }
    DeviceArray<float> logits_d(logits);
    const DeviceArray<SampleParams> params_d(params);
    DeviceArray<int32_t> out(rows);
    DeviceArray<uint8_t> scratch(sample_scratch_bytes(rows, vocab));
    check_cuda(sample(logits_d.get(), rows, vocab, vocab, params_d.get(), true, out.get(),
                      scratch.get(), nullptr),
               "sample");
    CHECK(same_bits(logits_d.download(), logits));  // as they were
    const auto got = out.download();
    for (int i = 0; i < rows; i++) differ += got[i] != want[i];
    draws += rows;
  }
  CHECK(differ * 16 <= draws);  // sums over many candidates may round another way
}

// Counts how often the device draws each token of a row's logits. Each round draws from `rows`
// copies of the row, since the kernel changes logits in place. next(): the parameters of one draw,
// with at most as many changes as the row has logits.
template <class Next>
static std::vector<double> drawn(const std::vector<float>& row, int rows, int rounds,
                                 const Next& next) {
  const int vocab = static_cast<int>(row.size());
  std::vector<float> logits;
  for (int i = 0; i < rows; i++) logits.insert(logits.end(), row.begin(), row.end());
  DeviceArray<int32_t> out(rows);
  DeviceArray<float> replaced(logits.size());
  DeviceArray<uint8_t> scratch(sample_scratch_bytes(rows, vocab));
  std::vector<double> count(vocab, 0);
  for (int round = 0; round < rounds; round++) {
    std::vector<SampleParams> params;
    for (int i = 0; i < rows; i++) {
      params.push_back(next());
      params.back().replaced = replaced.get() + i * vocab;
    }
    DeviceArray<float> logits_d(logits);
    const DeviceArray<SampleParams> params_d(params);
    check_cuda(sample(logits_d.get(), rows, vocab, vocab, params_d.get(), true, out.get(),
                      scratch.get(), nullptr),
               "sample");
    for (const int32_t id : out.download()) {
      REQUIRE((id >= 0 && id < vocab));
      count[id]++;
    }
  }
  return count;
}

// A million draws of one changed row, against probabilities computed in double.
TEST_CASE("the device's sampler draws changed logits by their probability", "[cuda]") {
  if (skip()) return;
  const int vocab = 12, rows = 4000, rounds = 250;
  const double temperature = 1.3;
  const std::vector<float> row = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f, 3, 3, -2, 0.25f};
  const std::vector<riffle::LogitChange> changes = {
      {0, 0.5f, 1, 0}, {2, 0, 1.5f, 0}, {5, 0, 1.5f, 0.7f}, {8, 0, 1, 2.5f}, {9, -INFINITY, 1, 0}};
  std::vector<double> weight(row.begin(), row.end());
  for (const auto& [token, bias, divide, minus] : changes) {
    const double x = weight[token] + bias;
    weight[token] = (x > 0 ? x / divide : x * divide) - minus;
  }
  double total = 0;
  for (double& w : weight) total += w = std::exp(w / temperature);
  const DeviceArray<riffle::LogitChange> changes_d(changes);
  riffle::Random random(5);
  const std::vector<double> count = drawn(row, rows, rounds, [&]() -> SampleParams {
    return {
        static_cast<float>(temperature),     1, 0, 0, random.uniform(), nullptr, changes_d.get(),
        static_cast<int32_t>(changes.size())};
  });
  double chi_square = 0;
  for (int id = 0; id < vocab; id++) {
    const double expected = weight[id] / total * rows * rounds;
    if (expected == 0) CHECK(count[id] == 0);
    else chi_square += (count[id] - expected) * (count[id] - expected) / expected;
  }
  CHECK(chi_square < 10 + 6 * std::sqrt(20.0));  // 10 degrees of freedom
}

// A million draws, on some of which XTC acts, against probabilities computed in double.
TEST_CASE("the device's sampler draws by XTC's rule", "[cuda]") {
  if (skip()) return;
  const int vocab = 12, rows = 4000, rounds = 250;
  const double temperature = 0.7;
  const riffle::Xtc xtc = {0.4f, 0.1f};
  const std::vector<float> row = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f, 3, 3, -2, 0.25f};
  // The best are 8, 9 (0.33 each), 0 (0.12) and 1 (0.07): XTC leaves 0 and what is below.
  std::vector<double> p(vocab);
  double total = 0, left = 0;
  for (int id = 0; id < vocab; id++) {
    p[id] = std::exp((row[id] - 3) / temperature);
    total += p[id];
    if (row[id] <= 2) left += p[id];
  }
  for (int id = 0; id < vocab; id++)
    p[id] *= (1 - xtc.probability) / total + (row[id] <= 2 ? xtc.probability / left : 0);
  riffle::Sampler sampler(6, static_cast<float>(temperature), 0, 1, 0, xtc);
  const std::vector<double> count = drawn(row, rows, rounds, [&]() -> SampleParams {
    const riffle::SampleRequest r = sampler.request();
    return {r.temperature, r.top_p, r.min_p, r.top_k,        r.random,
            nullptr,       nullptr, 0,       r.xtc_threshold};
  });
  double chi_square = 0;
  for (int id = 0; id < vocab; id++) {
    const double expected = p[id] * rows * rounds;
    chi_square += (count[id] - expected) * (count[id] - expected) / expected;
  }
  CHECK(chi_square < 11 + 6 * std::sqrt(22.0));  // 11 degrees of freedom
}

TEST_CASE("the device's sampler reports rows without an answer", "[cuda]") {
  if (skip()) return;
  const int vocab = 5000;
  for (float temperature : {0.0f, 1.0f}) {
    std::vector<float> logits(4 * vocab, 0.5f);
    logits[777] = NAN;
    logits[vocab + 4999] = -NAN;
    for (int v = 0; v < vocab; v++) logits[2 * vocab + v] = -INFINITY;
    logits[3 * vocab + 4321] = 9e9f;
    DeviceArray<float> logits_d(logits);
    const DeviceArray<SampleParams> params(
        std::vector<SampleParams>(4, {temperature, 0.9f, 0, 40, 0.5}));
    DeviceArray<int32_t> out(4);
    DeviceArray<uint8_t> scratch(sample_scratch_bytes(4, vocab));
    out.poison(0x55);
    check_cuda(sample(logits_d.get(), 4, vocab, vocab, params.get(), false, out.get(),
                      scratch.get(), nullptr),
               "sample");
    CHECK(out.download() == std::vector<int32_t>{-1, -1, -1, 4321});
  }
}
