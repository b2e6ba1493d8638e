// INT4 keys on the device: bit for bit the CPU's.
#include "kernels/cuda/select/int4.cuh"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "tests/kernels/cuda/coded_layout.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kv_rows.h"

using namespace riffle;
using namespace riffle::cuda;
using test::check_cuda;
using test::DeviceArray;
using test::layout_of;
using test::skip;
using test::store_rows;
using test::twin;

TEST_CASE("INT4 keys are those of the CPU, bit for bit", "[cuda][int4]") {
  if (skip()) return;
  std::mt19937 g(5);
  std::normal_distribution<float> normal;
  const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
  for (int d : {16, 32, 64, 80, 96, 128, 256})
    for (int block_size : {16, 32, 64})
      for (cuda::KvType type : {cuda::KvType::F16, cuda::KvType::F32, cuda::KvType::Q8}) {
        const KvLayout layout = layout_of(type, block_size, d);
        const int n_heads = 2, n_blocks = 7, first = 1, last = 6, max_blocks = 9;
        const int64_t bytes = int4_block_bytes(block_size, d);
        REQUIRE(bytes == block_size / cpu::kInt4Group * cpu::int4_group_bytes(d));
        std::vector<uint8_t> blocks(n_heads * n_blocks * layout.block_bytes),
            want(n_heads * max_blocks * bytes, 0xcd);
        for (int h = 0; h < n_heads; ++h)
          for (int b = 0; b < n_blocks; ++b) {
            std::vector<float> keys(block_size * d);
            for (float& x : keys) x = normal(g) * (b == 1 ? 1e-6f : b == 2 ? 30000.0f : 3.0f);
            if (b == 3) keys.assign(keys.size(), -0.37f);
            if (b == 4) keys.assign(keys.size(), 0.0f);
            if (b == 5 && h == 0) keys[3] = NAN, keys[d] = INFINITY, keys[2 * d] = -INFINITY;
            uint8_t* block = &blocks[(h * n_blocks + b) * layout.block_bytes];
            store_rows(k, keys, d, twin(type), block);
            for (float& x : keys) x = normal(g);
            store_rows(k, keys, d, twin(type), block + layout.value_offset);
            if (b < first || b >= last) continue;
            // A group lies on cache lines where the CPU writes it.
            std::vector<uint8_t> room(bytes + 64);
            uint8_t* to = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
            k->select.int4_encode(block, twin(type), block_size, d, to);
            std::copy_n(to, bytes, &want[(h * max_blocks + b) * bytes]);
          }
        const DeviceArray<uint8_t> on_device(blocks);
        DeviceArray<uint8_t> codes(std::vector<uint8_t>(want.size(), 0xcd));
        check_cuda(encode_int4(reinterpret_cast<const std::byte*>(on_device.get()), n_blocks, first,
                               last, n_heads, layout, reinterpret_cast<std::byte*>(codes.get()),
                               max_blocks, nullptr));
        const auto got = codes.download();
        INFO("d " << d << " B " << block_size << " type " << int(type));
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != want[i];
        CHECK(wrong == 0);
      }
}
