// Every architecture option against transformers on a GPU, with f32 KV and with f16.
#include "tests/engine/tiny_checkpoint.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle::test;

TEST_CASE("cuda: transformers' logits for every architecture option", "[cuda][parity]") {
  if (skip()) return;
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    const int d = c.head_dim();
    const bool supported = d == 64 || d == 80 || d == 96 || d == 128 || d == 256;
    DYNAMIC_SECTION(c.name) {
      if (!supported) {
        WARN("SKIPPED: " << c.name << " has head_dim " << d << ", which the CUDA kernels lack");
        continue;
      }
      std::vector<std::string> paths{tiny_folder(c, temp)};
      if (c.gguf) {
        paths.push_back(temp / (c.name + ".gguf"));
        write_file(paths.back(), tiny_gguf(c));
      }
      for (const std::string& path : paths)
        for (const riffle_kv_type kv : {RIFFLE_KV_F32, RIFFLE_KV_F16}) {
          riffle_context_options o = tiny_options(c, options(), kv);
          o.device = RIFFLE_DEVICE_CUDA;
          for (const int chunk : {0, 48}) {
            INFO("chunk " << chunk << ", kv " << (kv == RIFFLE_KV_F32 ? "f32" : "f16"));
            o.prefill_chunk = chunk;
            const TinyDifference diff = compare(o, c, path);
            INFO(diff.where);
            // With f16 KV prefill rounds all operands to 16 bits.
            CHECK(diff.relative <= (kv == RIFFLE_KV_F32 ? 1e-3 : 2e-2));
            if (kv == RIFFLE_KV_F32) CHECK(diff.same_best);
          }
        }
    }
  }
}
