// The memory of prompts: what the plan adds up is what a prompt takes, to the byte. Needs no GPU.
#include "backend/cuda/prompt_buffers.h"

#include <catch2/catch.hpp>

#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/running_memory.h"
#include "import/load_model.h"
#include "tests/engine/test_model.h"
#include "util/error.h"

using namespace riffle;

TEST_CASE("a prompt's buffers fill the memory that was planned for them", "[memory]") {
  const auto model = load_model(test::shipped_model(), {});
  for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8})
    for (const bool rows_on_host : {false, true}) {
      BackendOptions o;
      o.layout = {16, model->config.head_dim, type};
      o.options.n_ctx = 3000;
      o.options.prefill_chunk = 512;
      o.rows_on_host = rows_on_host;
      cuda::PromptSizes sizes;
      sizes.n = sizes.n_total = 3000;
      sizes.chunk = 512;
      sizes.scored = kScoreRows;
      sizes.rows_on_host = rows_on_host;
      const uint64_t planned =
          sum_of(cuda::prompt_list(*model, o, rows_on_host), MemoryUse::PROMPT);
      cuda::PromptBuffers buffers;
      cuda::DeviceArena arena;  // hands out addresses, and touches none
      alignas(256) std::byte place[1];
      arena.open(place, planned);
      int own = 0;
      std::vector<Buffer> others;
      for (const cuda::PromptBuffer& b : cuda::prompt_buffers(*model, o, sizes)) {
        if (b.of) b.of(buffers) = arena.take(b.bytes, b.what), ++own;
        else others.push_back(arena.take(b.bytes, b.what));
        if (b.of) CHECK(b.of(buffers).size() >= b.bytes);
      }
      CHECK(own >= 4);
      CHECK(others.size() == (rows_on_host ? 7u : 6u));
      CHECK((buffers.kv_f16.size() > 0) == (type == KvType::Q8));
      CHECK_THROWS_AS(arena.take(1, "one byte more"), Error);
      // A shorter prompt takes no more.
      sizes.n = 700, sizes.n_total = 2000, sizes.chunk = 500;
      uint64_t less = 0;
      for (const cuda::PromptBuffer& b : cuda::prompt_buffers(*model, o, sizes))
        less += cuda::DeviceArena::rounded(b.bytes);
      CHECK(less <= planned);
    }
}

TEST_CASE("the heads that a prompt computes from latents fit their buffer", "[memory][latent]") {
  Config c;
  c.n_heads = 20;
  LatentConfig& l = c.latent;
  l.kv_rank = 512, l.nope_dim = 192, l.rope_dim = 64, l.value_dim = 256;
  uint64_t last = 0;
  int fewest = c.n_heads;
  for (int64_t n_total = 1; n_total <= 2'000'000; n_total += n_total / 3 + 1) {
    const cuda::ExpandedShape shape = cuda::expanded_shape(c, 16, n_total);
    INFO(n_total << " tokens: " << shape.heads << " heads");
    REQUIRE(shape.head_dim == 256);
    CHECK(shape.heads >= 1);
    CHECK(shape.n_blocks * 16 >= n_total);
    CHECK(shape.bytes >= static_cast<uint64_t>(shape.heads * shape.n_blocks) * 16 * 2 * 256 * 2);
    CHECK(shape.bytes >= last);  // the plan counts the longest prompt only
    last = shape.bytes, fewest = std::min(fewest, shape.heads);
  }
  CHECK(cuda::expanded_shape(c, 16, 32768).heads == 20);
  CHECK(fewest == 1);
  l.kv_rank = 256;
  CHECK(cuda::expanded_shape(c, 16, 1000).heads == 0);
}
