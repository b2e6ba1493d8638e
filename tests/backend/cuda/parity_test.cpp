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

// Sinks change the sum beside all that is read, so whoever reads everything is as dense is.
TEST_CASE("cuda: with attention sinks, selectors that read everything give transformers' logits",
          "[cuda][parity][sinks]") {
  if (skip()) return;
  const TempDir temp;
  bool found = false;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (c.config.at("model_type") != "gpt_oss" || c.head_dim() < 64) continue;
    found = true;
    const std::string folder = tiny_folder(c, temp);
    const auto check = [&](const char* name, auto&& change) {
      INFO(c.name << ": " << name);
      riffle_context_options o = tiny_options(c, options(), RIFFLE_KV_F32);
      o.device = RIFFLE_DEVICE_CUDA;
      change(o);
      const TinyDifference diff = compare(o, c, folder);
      INFO(diff.where);
      CHECK(diff.relative <= 1e-3);
    };
    const auto psa = [](riffle_context_options& o) {
      o.selection.selector = RIFFLE_SELECTOR_PSA;
      o.selection.epsilon = 1;
    };
    check("psa", psa);
    check("psa by codes", [&](auto& o) { psa(o), o.selection.rank = RIFFLE_RANK_CODES; });
    check("psa, driven by the host", [&](auto& o) { psa(o), o.residency = RIFFLE_RESIDENCY_HOST; });
    check("dense, driven by the host", [](auto& o) { o.residency = RIFFLE_RESIDENCY_HOST; });
    check("topk", [](auto& o) {
      o.selection.selector = RIFFLE_SELECTOR_TOPK;
      o.selection.budget = 1;
    });
    check("twilight", [](auto& o) {
      o.selection.selector = RIFFLE_SELECTOR_TWILIGHT;
      o.selection.base = RIFFLE_BASE_ALL;
      o.selection.top_p = 1;
    });
    check("share", [](auto& o) {
      o.selection.selector = RIFFLE_SELECTOR_SHARE;
      o.selection.share = 0;
    });
    check("tokenselect", [](auto& o) {
      o.selection.selector = RIFFLE_SELECTOR_TOKENSELECT;
      o.selection.select_tokens = 4096;
    });
  }
  CHECK(found);
}
