// Weights of 2 to 6 bits on the device: their parts, their values to the bit, mixes of types in one
// product.
#include <algorithm>
#include <cstdio>
#include <string>

#include "backend/cuda/weights.h"
#include "tests/kernels/cuda/linear.h"

namespace cpu = riffle::cpu;
using namespace riffle::test;

namespace {

constexpr WType kQuantised[] = {WType::Q8_0, WType::Q4_0, WType::Q4_1, WType::Q5_0,   WType::Q5_1,
                                WType::Q4_K, WType::Q5_K, WType::Q6_K, WType::IQ4_NL, WType::IQ4_XS,
                                WType::Q3_K, WType::Q2_K, WType::MXFP4};

// Value (0, col) of a row that was split, by what kernels/cuda/matrix.h says of the parts.
float value_of(WType type, int64_t col, const std::vector<uint8_t> (&parts)[4]) {
  const auto &data = parts[0], &scales = parts[1], &high = parts[2], &blocks = parts[3];
  const auto f16 = [](const std::vector<uint8_t>& v, int64_t i) {
    return cpu::f16_to_f32(static_cast<uint16_t>(v[2 * i] | v[2 * i + 1] << 8));
  };
  const int64_t group = col / 32, j = col % 32;
  if (type == WType::Q8_0)
    return f16(scales, group) * static_cast<float>(static_cast<int8_t>(data[col]));
  if (type == WType::Q3_K || type == WType::Q2_K) {
    const int64_t block = col / 256, of_16 = col % 256 / 16;
    int code = data[group * 8 + j / 16 * 4 + j % 4] >> j % 16 / 4 * 2 & 3;
    if (type == WType::Q2_K) {
      const int both = scales[col / 16];
      return f16(blocks, 2 * block) * static_cast<float>(both & 15) * static_cast<float>(code) -
             f16(blocks, 2 * block + 1) * static_cast<float>(both >> 4);
    }
    code |= (high[group * 4 + j % 4] >> j / 4 & 1) << 2;
    const uint8_t* s = &scales[block * 16];
    const int low = s[4 + of_16 % 8] >> (of_16 < 8 ? 0 : 4) & 15,
              scale = low + 16 * (s[12 + of_16 % 4] >> 2 * (of_16 / 4) & 3) - 32;
    return f16(scales, block * 8) * static_cast<float>(scale) * static_cast<float>(code - 4);
  }
  int q = j < 16 ? data[group * 16 + j] & 15 : data[group * 16 + j - 16] >> 4;
  if (type == WType::Q6_K) q |= (high[group * 8 + j / 16 * 4 + j % 4] >> j % 16 / 4 * 2 & 3) << 4;
  else if (!high.empty()) q |= (high[group * 4 + j % 4] >> j / 4 & 1) << 4;
  const float v = static_cast<float>(q);
  switch (type) {
    case WType::Q4_0: return f16(scales, group) * (v - 8);
    case WType::Q5_0: return f16(scales, group) * (v - 16);
    case WType::Q4_1:
    case WType::Q5_1: return f16(scales, 2 * group) * v + f16(scales, 2 * group + 1);
    case WType::Q6_K:
      return f16(blocks, col / 256) * static_cast<float>(static_cast<int8_t>(scales[col / 16])) *
             (v - 32);
    case WType::IQ4_NL: return f16(scales, group) * riffle::table_value(type, q);
    case WType::MXFP4:
      return std::ldexp(static_cast<float>(riffle::table_value(type, q)), scales[group] - 128);
    case WType::IQ4_XS: {
      const int64_t at = col / 256 * 8, g = group % 8;
      const int low = scales[at + 4 + g / 2] >> g % 2 * 4 & 15,
                up = scales[at + 2 + g / 4] >> g % 4 * 2 & 3;
      return f16(scales, at / 2) * static_cast<float>(low + 16 * up - 32) *
             riffle::table_value(type, q);
    }
    default: break;
  }
  const int64_t at = col / 256 * 16, g = group % 8;
  const int rest = scales[at + 12 + g % 4] >> (g < 4 ? 0 : 4) & 15;
  const int scale = (scales[at + 4 + g] & 15) + 16 * (rest & 3),
            min = (scales[at + 4 + g] >> 4) + 16 * (rest >> 2);
  return f16(scales, at / 2) * static_cast<float>(scale) * v -
         f16(scales, at / 2 + 1) * static_cast<float>(min);
}

bool same_float_bits(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

std::vector<uint8_t> read_file(const std::string& path) {
  std::vector<uint8_t> bytes;
  FILE* f = std::fopen(path.c_str(), "rb");
  REQUIRE(f);
  uint8_t part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0;)
    bytes.insert(bytes.end(), part, part + n);
  std::fclose(f);
  return bytes;
}

struct Golden {
  WType type;
  int64_t n_blocks;
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};
// tests/golden/quant_blocks.bin: tools/fixtures/README.md. Types that riffle does not have are left
// out.
std::vector<Golden> golden_blocks() {
  const auto bytes = read_file("tests/golden/quant_blocks.bin");
  size_t at = 8;
  REQUIRE((bytes.size() > 12 && std::memcmp(bytes.data(), "QBLOCKS1", 8) == 0));
  const auto take = [&](void* to, size_t n) {
    REQUIRE(at + n <= bytes.size());
    std::memcpy(to, &bytes[at], n), at += n;
  };
  const std::pair<uint32_t, WType> ids[] = {
      {8, WType::Q8_0},  {2, WType::Q4_0},  {3, WType::Q4_1},    {6, WType::Q5_0},
      {7, WType::Q5_1},  {12, WType::Q4_K}, {13, WType::Q5_K},   {14, WType::Q6_K},
      {10, WType::Q2_K}, {11, WType::Q3_K}, {20, WType::IQ4_NL}, {23, WType::IQ4_XS},
      {39, WType::MXFP4}};
  uint32_t n_types = 0;
  take(&n_types, 4);
  std::vector<Golden> all;
  for (uint32_t t = 0; t < n_types; t++) {
    uint32_t head[4];
    take(head, sizeof head);
    Golden one;
    one.n_blocks = head[3];
    one.blocks.resize(size_t{head[2]} * head[3]), one.values.resize(size_t{head[1]} * head[3]);
    take(one.blocks.data(), one.blocks.size()), take(one.values.data(), one.values.size() * 4);
    for (const auto& [id, type] : ids)
      if (id == head[0]) one.type = type, all.push_back(one);
  }
  CHECK(at == bytes.size());
  return all;
}

bool bits_of_dequantize(const Weights& w) {
  DeviceArray<float> out(w.values.size());
  out.poison();
  check_cuda(dequantize(w.matrix(), 0, w.rows, out.get(), WType::F32, nullptr));
  return same_bits(out.download(), w.values);
}

}  // namespace

TEST_CASE("split rows have the values of a file's blocks, and their padding is zero") {
  Rng g(11);
  for (WType type : kQuantised) {
    const riffle::DTypeInfo& info = dtype_info(type);
    for (int64_t n : {1, 2, 5, 8, 43}) {
      const int64_t cols = n * info.block_values;
      const auto bytes =
          random_blocks(g, type, n + 1);  // one more, so that the row begins anywhere
      const uint8_t* row = bytes.data() + info.block_bytes;
      std::vector<float> want(cols);
      cpu::dequant_blocks(type, row, cols, want.data());
      const RowParts sizes = row_parts(type, cols);
      std::vector<uint8_t> parts[4];
      std::byte* to[4];
      int64_t total = 0;
      for (int p = 0; p < 4; p++) {
        const int64_t size = p == 0   ? sizes.data
                             : p == 1 ? sizes.scales
                             : p == 2 ? sizes.high
                                      : sizes.blocks;
        total += size;
        if (type != WType::Q8_0) CHECK(size % 16 == 0);
        parts[p].assign(size + 1, 0xa5);
        to[p] = reinterpret_cast<std::byte*>(parts[p].data());
      }
      split_row(type, cols, reinterpret_cast<const std::byte*>(row), {to[0], to[1], to[2], to[3]});
      INFO(name_of(type) << " " << cols << " columns");
      for (auto& part : parts) {
        CHECK(part.back() == 0xa5);
        part.pop_back();
      }
      // No more than alignment costs.
      CHECK(total >= n * info.block_bytes);
      const int64_t extra = type == WType::Q3_K ? 2 * n : 0;  // kernels/cuda/matrix.h says why
      CHECK(total < n * info.block_bytes + extra + 48);
      int wrong = 0;
      for (int64_t c = 0; c < cols; c++)
        wrong += !same_float_bits(value_of(type, c, parts), want[c]);
      CHECK(wrong == 0);
      // Padding: what lies beyond the last value's scale.
      bool zero = true;
      if (type != WType::Q8_0 && info.block_values == 32) {
        const int64_t scale = type == WType::MXFP4                         ? 1
                              : type == WType::Q4_1 || type == WType::Q5_1 ? 4
                                                                           : 2;
        for (int64_t i = n * scale; i < sizes.scales; i++) zero &= parts[1][i] == 0;
        for (int64_t i = n * 4; i < sizes.high; i++) zero &= parts[2][i] == 0;
      }
      if (type == WType::IQ4_XS)
        for (int64_t i = n * 8; i < sizes.scales; i++) zero &= parts[1][i] == 0;
      const int64_t of_block = type == WType::Q2_K ? 4 : 2;
      for (int64_t i = n * of_block; i < sizes.blocks; i++) zero &= parts[3][i] == 0;
      CHECK(zero);
    }
  }
}

TEST_CASE("dequantize gives the bits of the gguf package and of the CPU's reference", "[cuda]") {
  if (skip()) return;
  const auto golden = golden_blocks();
  CHECK(golden.size() == std::size(kQuantised));
  for (const Golden& one : golden) {
    INFO(name_of(one.type));
    const int64_t values = dtype_info(one.type).block_values;
    // The blocks as one row, and as rows of one block each.
    const Weights wide(one.type, 1, one.n_blocks * values, one.blocks),
        tall(one.type, one.n_blocks, values, one.blocks);
    CHECK(same_bits(wide.values, one.values));
    CHECK(bits_of_dequantize(wide));
    CHECK(bits_of_dequantize(tall));
  }
  Rng g(12);
  for (WType type : kQuantised)
    for (int64_t n : {1, 3, 16, 43}) {
      INFO(name_of(type) << " " << n << " blocks");
      CHECK(bits_of_dequantize(Weights(g, type, 37, n * dtype_info(type).block_values)));
    }
}

TEST_CASE("a gemv of the golden blocks' extreme scales is that of their values", "[cuda]") {
  if (skip()) return;
  Rng g(13);
  for (const Golden& one : golden_blocks()) {
    const int64_t values = dtype_info(one.type).block_values;
    // Products of the largest MXFP4 values are infinite: those blocks are left out.
    const int64_t bytes = dtype_info(one.type).block_bytes;
    std::vector<uint8_t> blocks;
    int64_t n_blocks = 0;
    for (int64_t b = 0; b < one.n_blocks; b++) {
      const auto begin = one.values.begin() + b * values;
      if (std::any_of(begin, begin + values, [](float v) { return std::fabs(v) > 1e34f; }))
        continue;
      blocks.insert(blocks.end(), &one.blocks[b * bytes], &one.blocks[b * bytes] + bytes);
      n_blocks++;
    }
    CHECK(n_blocks >= (one.type == WType::MXFP4 ? 14 : one.n_blocks));
    std::vector<Weights> w;
    w.emplace_back(one.type, n_blocks, values, blocks);
    const auto x = random_floats(g, values * 16), before = random_floats(g, n_blocks + 3);
    const std::vector<float> norm(values, 1.0f);
    for (int n : {1, 2, 8, 16})
      for (Cores cores : {Cores::Tensor, Cores::Ordinary})
        check_gemv(w, {n, false, Then::Store, false, 0, cores}, x, norm, before);
  }
}

TEST_CASE("gemv of rows that end inside a step, of any number of rows, alone and in pairs",
          "[cuda]") {
  if (skip()) return;
  Rng g(14);
  for (WType type : kQuantised) {
    const int64_t values = dtype_info(type).block_values;
    for (int64_t cols : {values, 3 * values, int64_t{768}, int64_t{1024}, int64_t{1280},
                         int64_t{2816}, int64_t{11008}}) {
      for (int64_t rows : {1, 2, 3, 4, 6, 7, 130}) {
        std::vector<Weights> one, pair;
        one.emplace_back(g, type, rows, cols);
        pair.emplace_back(g, type, rows, cols), pair.emplace_back(g, type, rows, cols);
        const auto x = random_floats(g, cols * 16), norm = random_floats(g, cols),
                   before = random_floats(g, rows + 3);
        std::vector<float> all, all_pairs;
        // From one row on by either way, and 16 by both.
        const std::pair<int, Cores> cases[] = {
            {16, Cores::Ordinary}, {16, Cores::Tensor}, {1, Cores::Ordinary},
            {1, Cores::Tensor},    {2, Cores::Tensor},  {3, Cores::Best},
            {4, Cores::Ordinary},  {5, Cores::Best},    {9, Cores::Best}};
        for (const auto& [n, cores] : cases) {
          const auto y = check_gemv(one, {n, rows % 2 == 0, Then::Add, n % 2 == 1, 0, cores}, x,
                                    norm, before)[0];
          const auto z = check_gemv(pair, {n, rows % 2 == 1, Then::SwiGlu, n == 5, 0, cores}, x,
                                    norm, before)[0];
          if (all.empty()) all = y, all_pairs = z;
          INFO(name_of(type) << " " << rows << "x" << cols << " n " << n << " cores "
                             << static_cast<int>(cores));
          CHECK(std::memcmp(y.data(), all.data(), y.size() * 4) == 0);
          CHECK(std::memcmp(z.data(), all_pairs.data(), z.size() * 4) == 0);
        }
      }
    }
  }
}

TEST_CASE(
    "gemv of quantised weights with x that is not finite: not a number, and other rows do not see "
    "it",
    "[cuda]") {
  if (skip()) return;
  Rng g(15);
  const int64_t rows = 40, cols = 2048;
  for (WType type : kQuantised) {
    const Weights w(g, type, rows, cols);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      auto x = random_floats(g, cols * 3);
      DeviceArray<float> clean(x), y(rows * 3), z(rows * 3);
      x[cols + 777] = bad;
      const DeviceArray<float> dirty(x);
      Gemv a;
      a.x = clean.get(), a.ldx = cols, a.n = 3, a.w[0] = w.matrix(), a.y[0] = y.get(),
      a.ldy[0] = rows;
      check_cuda(gemv(a, nullptr));
      const auto good = y.download();
      a.x = dirty.get(), a.y[0] = z.get();
      for (Cores cores : {Cores::Tensor, Cores::Ordinary}) {
        z.poison();
        a.cores = cores;
        check_cuda(gemv(a, nullptr));
        const auto got = z.download();
        int finite = 0;
        for (int64_t r = 0; r < rows; r++) finite += std::isfinite(got[rows + r]);
        INFO(name_of(type) << " " << bad << " cores " << static_cast<int>(cores));
        CHECK(finite == 0);
        CHECK(std::memcmp(&good[0], &got[0], rows * 4) == 0);
        CHECK(std::memcmp(&good[2 * rows], &got[2 * rows], rows * 4) == 0);
      }
    }
  }
}
