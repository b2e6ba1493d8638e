// Stamps that decode attention leaves on the blocks that it attends to.
#pragma once
#include <catch2/catch.hpp>
#include <tuple>

#include "tests/kernels/cuda/decode_scene.h"

namespace riffle::test {

// Returns the number of rows that did not read everything. some_stop: in each step there are such.
template <class Rule>
int check_stamps(const char* name, const Rule& rule, bool some_stop) {
  int total = 0;
  for (const auto& [d, block_size, type] : {std::tuple{64, 16, cuda::KvType::F16},
                                            {128, 32, cuda::KvType::F16},
                                            {256, 64, cuda::KvType::F16},
                                            {128, 16, cuda::KvType::F32}}) {
    SceneShape shape;
    shape.d = d, shape.block_size = block_size, shape.g = 2, shape.type = type;
    shape.tokens = {block_size * 90 + 2, block_size * 40, 3, block_size * 150 + 9};
    const SceneOf scene(shape, rule);
    for (int64_t n_slots : {0, 5, 200}) {
      INFO(name << ", d " << d << ", blocks of " << block_size << ", slots " << n_slots);
      SceneDeviceOf device(scene, n_slots);
      std::vector<cuda::StepSequence> host = device.sequences.download();
      std::vector<DeviceArray<uint32_t>> stamps;
      for (size_t i = 0; i < host.size(); ++i) {
        stamps.emplace_back(std::vector<uint32_t>(scene.sequences[i].page_table.size(), 0));
        host[i].last_use = stamps[i].get();
      }
      device.sequences.upload(host);
      device.set_expected(20);  // blocks are fetched that may not be attended to
      device.run();
      bool untouched = true;
      for (auto& s : stamps)
        for (uint32_t x : s.download()) untouched &= x == 0;
      CHECK(untouched);

      device.step.stamp = true;
      device.run();
      const auto results = device.results.download();
      const auto order = device.order.download();
      int stopped = 0, wrong = 0;
      for (size_t i = 0; i < host.size(); ++i) {
        const SceneSequence& s = scene.sequences[i];
        std::vector<uint32_t> want(s.page_table.size(), 0);
        for (int h = 0; h < shape.n_kv_heads; ++h) {
          const int row = static_cast<int>(i) * shape.n_kv_heads + h;
          stopped += results[row].n_read < s.n_blocks;
          REQUIRE(results[row].n_read > 0);
          for (int p = 0; p < results[row].n_read; ++p)
            want[scene.entry(s, h, order[row * scene.max_blocks + p])] =
                static_cast<uint32_t>(s.n_tokens);
        }
        wrong += stamps[i].download() != want;
      }
      CHECK(wrong == 0);
      if (some_stop) CHECK(stopped > 0);
      total += stopped;
    }
  }
  return total;
}

}  // namespace riffle::test
