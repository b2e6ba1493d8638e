// Every architecture option against transformers: tiny checkpoints (tests/golden/tiny), as Hugging
// Face folders and as GGUF, at short and long positions.
#include <cstdlib>

#include "formats/gguf.h"
#include "tests/engine/isa_choices.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/rounds.h"
#include "util/mapped_file.h"

using namespace riffle;
using namespace riffle::test;

namespace {

constexpr double kBound = 1e-3;

void check_exact(const ContextOptions& o, const TinyCheckpoint& c, const std::string& path) {
  const TinyDifference d = compare(o, c, path);
  INFO(d.where);
  CHECK(d.relative <= kBound);
  CHECK(d.same_best);
}

// Every value of the file at `path` that concerns the arithmetic, and every tensor, are in `ours`,
// the same bits.
void check_same_gguf(const std::string& ours, const std::string& path) {
  const auto file = riffle::MappedFile::open(path);
  const riffle::GgufFile theirs = riffle::parse_gguf(file->view());
  const riffle::GgufFile mine = riffle::parse_gguf(
      {reinterpret_cast<const uint8_t*>(ours.data()), ours.size(), "the test's GGUF"});
  const auto matters = [](const std::string& key) {
    return !key.starts_with("tokenizer.") && key != "general.file_type" &&
           key != "general.quantization_version";
  };
  size_t n = 0;
  for (const auto& [key, value] : theirs.metadata) {
    if (!matters(key)) continue;
    ++n;
    INFO(key);
    const auto it = mine.metadata.find(key);
    REQUIRE(it != mine.metadata.end());
    CHECK(it->second.type == value.type);
    REQUIRE(it->second.bytes == value.bytes);
    CHECK(std::memcmp(it->second.data, value.data, value.bytes) == 0);
  }
  size_t n_mine = 0;
  for (const auto& entry : mine.metadata) n_mine += matters(entry.first);
  CHECK(n == n_mine);
  REQUIRE(theirs.tensors.size() == mine.tensors.size());
  for (const auto& [name, tensor] : theirs.tensors) {
    INFO(name);
    const auto it = mine.tensors.find(name);
    REQUIRE(it != mine.tensors.end());
    CHECK(it->second.type_name == tensor.type_name);
    CHECK(it->second.shape == tensor.shape);
    REQUIRE(it->second.bytes == tensor.bytes);
    if (name.ends_with(".ssm_a")) CHECK(nearly_same_floats(it->second, tensor));
    else CHECK(std::memcmp(it->second.data, tensor.data, tensor.bytes) == 0);
  }
}

// Returns the instruction sets to check with this checkpoint. With few rounds it is one of them, in
// turn. Scalar code is about twenty times slower, so the best set gets three of four of its turns.
std::vector<IsaChoice> some_of(const std::vector<IsaChoice>& isas, ptrdiff_t checkpoint) {
  if (!few_rounds() || isas.empty()) return isas;
  const auto n = static_cast<ptrdiff_t>(isas.size());
  const IsaChoice turn = isas[checkpoint % n];
  return {turn == IsaChoice::SCALAR && checkpoint / n % 4 != 0 ? isas.back() : turn};
}

}  // namespace

TEST_CASE("parity: every instruction set gives transformers' logits with f32 KV", "[parity]") {
  const TempDir temp;
  const std::vector<IsaChoice> usable = isa_choices();
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    DYNAMIC_SECTION(c.name) {
      const std::string folder = tiny_folder(c, temp);
      for (const IsaChoice isa : some_of(usable, &c - tiny_checkpoints().data())) {
        INFO("isa " << isa);
        ContextOptions o = tiny_options(c, options(), KvKind::F32);
        o.isa = isa;
        check_exact(o, c, folder);
      }
    }
  }
}

// Chunks shorter than the prompt and than a window, other blocks, a pool that cannot hold the
// sequence.
TEST_CASE("parity: chunks, blocks and a pool change nothing", "[parity][long]") {
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    DYNAMIC_SECTION(c.name) {
      const std::string folder = tiny_folder(c, temp);
      ContextOptions o = tiny_options(c, options(), KvKind::F32);
      o.prefill_chunk = 48;
      o.block_size = 16;
      check_exact(o, c, folder);
      o.prefill_chunk = 500;
      o.block_size = 64;
      o.device = DeviceKind::EMU;
      o.slots = 16;
      check_exact(o, c, folder);
    }
  }
}

TEST_CASE("parity: f16 KV is as near as f16 is", "[parity]") {
  const TempDir temp;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    DYNAMIC_SECTION(c.name) {
      const TinyDifference d =
          compare(tiny_options(c, options(), KvKind::F16), c, tiny_folder(c, temp));
      INFO(d.where);
      // Prompts' products with quantised weights round activations to 8 bits. Keys that several
      // layers read carry their rounding into each of them.
      const bool shared = c.config.value("num_kv_shared_layers", 0) > 0;
      CHECK(d.relative <= (c.name.ends_with("_mxfp4") ? 5e-2 : shared ? 1e-2 : 5e-3));
    }
  }
}

// RIFFLE_TEST_CONVERTED: a folder with some of them, by tools/fixtures/converted_gguf.py.
TEST_CASE("parity: GGUF files of llama.cpp's converter", "[parity]") {
  const char* folder = std::getenv("RIFFLE_TEST_CONVERTED");
  if (!folder || !*folder) {
    WARN("SKIPPED: RIFFLE_TEST_CONVERTED is not set");
    return;
  }
  int n = 0;
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    const std::string path = std::string(folder) + "/" + c.name + ".gguf";
    if (!std::filesystem::exists(path)) continue;
    ++n;
    DYNAMIC_SECTION(c.name) { check_exact(tiny_options(c, options(), KvKind::F32), c, path); }
  }
  CHECK(n > 0);
}

// RIFFLE_TEST_TINY_GGUF: a folder with all of them, by tools/fixtures/tiny_checkpoints.py --gguf.
TEST_CASE("parity: the same logits as GGUF", "[parity]") {
  const TempDir temp;
  const std::vector<IsaChoice> usable = isa_choices();
  const char* more = std::getenv("RIFFLE_TEST_TINY_GGUF");
  for (const TinyCheckpoint& c : tiny_checkpoints()) {
    if (!c.gguf) continue;
    DYNAMIC_SECTION(c.name) {
      const std::string bytes = tiny_gguf(c), path = temp / (c.name + ".gguf");
      write_file(path, bytes);
      std::vector<std::string> paths{path};
      const std::string kept = kTinyRoot + "/" + c.name + "/" + c.name + ".gguf";
      if (std::filesystem::exists(kept)) paths.push_back(kept);
      if (more && *more) paths.push_back(std::string(more) + "/" + c.name + ".gguf");
      for (size_t i = 1; i < paths.size(); ++i) check_same_gguf(bytes, paths[i]);
      for (const std::string& p : paths) check_exact(tiny_options(c, options(), KvKind::F32), c, p);
      for (const IsaChoice isa : usable) {
        if (few_rounds()) continue;  // the case of folders runs them in turn
        INFO("isa " << isa);
        ContextOptions o = tiny_options(c, options(), KvKind::F32);
        o.isa = isa;
        check_exact(o, c, path);
      }
      INFO("device emu");
      ContextOptions o = tiny_options(c, options(), KvKind::F32);
      o.device = DeviceKind::EMU;
      o.block_size = 64;
      o.slots = 16;
      check_exact(o, c, path);
    }
  }
}
