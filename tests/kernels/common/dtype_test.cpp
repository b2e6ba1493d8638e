// The table of weight types: what is written into a block is read back, and documents name all
// types.
#include "kernels/common/dtype.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/linear/quants.h"

using namespace riffle;

namespace {

// Calls f<type>() for every quantised type.
template <class F>
void for_quantised(F f) {
  for (const DTypeInfo& info : kDTypes)
    with_type(info.type, [&]<DType T>() {
      if constexpr (is_quantised(T)) f.template operator()<T>();
    });
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("codes that are written into a block are read back", "[quants]") {
  std::mt19937 g(1);
  for_quantised([&]<DType T>() {
    constexpr DTypeInfo info = dtype_info(T);
    INFO(info.name);
    std::vector<uint8_t> block(info.block_bytes);
    std::vector<unsigned> codes(info.block_values);
    for (int i = 0; i < info.block_values; ++i) {
      codes[i] = g() % (1u << info.bits());
      cpu::put_code<T>(block.data(), i, codes[i]);
    }
    int unequal = 0;
    for (int i = 0; i < info.block_values; ++i) {
      const int code = cpu::code_at<T>(block.data(), i / 32, i % 32);
      unequal += static_cast<unsigned>(code) % (1u << info.bits()) != codes[i];
    }
    CHECK(unequal == 0);
  });
}

TEST_CASE("integer scales that are written into a block are read back", "[quants]") {
  std::mt19937 g(2);
  int types = 0;
  for_quantised([&]<DType T>() {
    constexpr DTypeInfo info = dtype_info(T);
    if constexpr (info.written && info.groups() > 1) {
      INFO(info.name);
      ++types;
      std::vector<uint8_t> block(info.block_bytes);
      block[info.d_at + 1] = 0x3c;  // 1 as f16
      if (info.has_min()) block[info.dmin_at + 1] = 0x3c;
      std::vector<int> scale(info.groups()), min(info.groups());
      for (int i = 0; i < info.groups(); ++i) {
        scale[i] = static_cast<int>(g() % 64) - (info.has_min() ? 0 : 32);
        min[i] = info.has_min() ? static_cast<int>(g() % 64) : 0;
        cpu::put_scale_min<T>(block.data(), i, scale[i], min[i]);
      }
      for (int i = 0; i < info.groups(); ++i) {
        const cpu::ScaleMin of = cpu::scale_min_at<T>(block.data(), i);
        CHECK(of.scale == scale[i]);
        CHECK(of.min == min[i]);
      }
    }
  });
  CHECK(types == 3);
}

TEST_CASE("models/README.md names every weight type, and those that riffle writes", "[quants]") {
  const std::string models = text_of("models/README.md");
  for (const DTypeInfo& info : kDTypes) {
    INFO(info.name);
    CHECK(models.find(info.name) != std::string::npos);
    if (!info.written) continue;
    std::string lower = info.name;
    for (char& c : lower)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    CHECK(models.find('`' + lower + '`') != std::string::npos);
  }
}
