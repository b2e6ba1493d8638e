// Every family against transformers' greedy text, and with every selector.
#include "tests/engine/families.h"

#include <set>

#include "import/load_model.h"
#include "tests/engine/isa_choices.h"
#include "tests/fuzz/touch.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

// tests/backend/cuda/parity_test.cpp runs these shapes.
TEST_CASE("every family has shapes that run on a GPU", "[parity][families]") {
  // These families have one such shape. All others have two or more.
  const std::set<std::string> one_shape = {"cohere", "lfm2", "lfm2_moe", "qwen3_5_moe_text"};
  std::map<std::string, std::set<std::string>> weights;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    std::set<std::string>& of_family = weights[c.config.at("model_type")];
    if (c.runs_on_gpu()) of_family.insert(c.weights);
  }
  for (const auto& [family, shapes] : weights) {
    INFO(family);
    CHECK(shapes.size() >= (one_shape.contains(family) ? 1u : 2u));
  }
}

// The fuzz targets of model files are no part of the tests; this compiles what they do with a
// model.
TEST_CASE("fuzz targets read every tensor of every architecture option", "[families]") {
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    INFO(c.name);
    CHECK_NOTHROW(touch(*load_model(tiny_folder(c, temp), {})));
  }
}

TEST_CASE("greedy text of every architecture option is transformers'", "[parity][greedy][long]") {
  OneIn one(5);
  const TempDir temp;
  const std::vector<IsaChoice> isas = isa_choices();
  for (const TinyCheckpoint& c : tiny_checkpoints())
    for (const std::string& path : tiny_files(c, temp)) {
      if (one.skips()) continue;
      INFO(path);
      ContextOptions o = tiny_options(c, options(), KvKind::F32);
      for (const IsaChoice isa : isas) {
        INFO("isa " << isa);
        o.isa = isa;
        CHECK(greedy(o, c, path) == c.greedy.tokens);
      }
      o.device = DeviceKind::EMU;
      CHECK(greedy(o, c, path) == c.greedy.tokens);
    }
}

TEST_CASE("every selector that reads everything gives the logits of dense, in every family",
          "[parity][families][long]") {
  OneIn one(5);
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints())
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      if (one.skips()) continue;
      INFO(c.name << (device == DeviceKind::CPU ? " cpu" : " emu"));
      ContextOptions o = options();
      o.device = device;
      check_generous(o, c, temp);
    }
}
