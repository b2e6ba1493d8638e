// GGUF files in parts: any part brings the whole model, and whatever does not fit is refused by the
// file's name.
#include "formats/gguf_split.h"

#include <catch2/catch.hpp>
#include <random>

#include "import/load_model.h"
#include "tests/model/expect_error.h"
#include "tests/model/test_files.h"
#include "text/tokenizer.h"

using namespace riffle;
using namespace riffle::test;

namespace {

struct Split {
  uint32_t no = 0, count = 3, tensors = 0;  // tensors 0: the right number
  bool keys = true;
};

// Part i of n of the tiny model; the first has the metadata.
std::string part_of(const TinyModel& tiny, uint32_t i, uint32_t n, Split said, size_t skip = 0,
                    bool twice = false) {
  GgufWriter w;
  if (i == 0) add_tiny_keys(w, tiny);
  if (said.keys) {
    w.scalar<uint16_t>("split.no", 2, static_cast<uint16_t>(said.no));
    w.scalar<uint16_t>("split.count", 2, static_cast<uint16_t>(said.count));
    w.scalar<int32_t>("split.tensors.count", 5,
                      static_cast<int32_t>(said.tensors ? said.tensors : tiny.tensors.size()));
  }
  size_t at = 0;
  for (const auto& [hf, matrix] : tiny.tensors) {
    const size_t part = at * n / tiny.tensors.size();
    ++at;
    if ((part != i && !(twice && at == 1)) || (skip && at == skip)) continue;
    const std::string name = gguf_name(hf);
    const bool rotated = name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
    const TinyModel::Matrix m =
        rotated ? permuted(matrix, static_cast<uint64_t>(tiny.config.head_dim)) : matrix;
    w.tensor(name, {m.shape.rbegin(), m.shape.rend()}, 0, encode(DType::F32, m.values));
  }
  return w.bytes();
}

std::string name_of(const TempDir& temp, int no, int count = 3) {
  char name[64];
  std::snprintf(name, sizeof name, "tiny-%05d-of-%05d.gguf", no, count);
  return temp / name;
}

void write_parts(const TempDir& temp, const TinyModel& tiny) {
  for (uint32_t i = 0; i < 3; ++i)
    write_file(name_of(temp, static_cast<int>(i) + 1), part_of(tiny, i, 3, {.no = i}));
}

}  // namespace

TEST_CASE("split GGUF: any part brings all of them", "[split]") {
  const TempDir temp;
  const TinyModel tiny = tiny_model(1);
  write_parts(temp, tiny);
  write_file(temp / "whole.gguf", tiny_gguf(tiny, DType::F32));
  const auto whole = load_model(temp / "whole.gguf", {});
  for (int no = 1; no <= 3; ++no) {
    const auto model = load_model(name_of(temp, no), {});
    CHECK(model->files.size() == 3);
    CHECK(model->n_params == whole->n_params);
    CHECK(model->weight_bytes == whole->weight_bytes);
    CHECK(model->tokenizer->vocab_size() == whole->tokenizer->vocab_size());
    for (size_t l = 0; l < whole->weights.layers.size(); ++l) {
      const Tensor &a = model->weights.layers[l].wk, &b = whole->weights.layers[l].wk;
      REQUIRE(a.bytes() == b.bytes());
      CHECK(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0);
    }
  }
  // One part that says it is one of one.
  write_file(temp / "any name.gguf", part_of(tiny, 0, 1, {.no = 0, .count = 1}));
  CHECK_NOTHROW(load_model(temp / "any name.gguf", {}));
}

TEST_CASE("split GGUF: what does not fit is refused by name", "[split]") {
  const TinyModel tiny = tiny_model(1);
  const auto refused = [&](const std::vector<std::string>& words,
                           const std::function<void(const TempDir&)>& spoil, int first = 1,
                           riffle_status status = RIFFLE_BAD_MODEL) {
    const TempDir temp;
    write_parts(temp, tiny);
    spoil(temp);
    expect_error(status, words, [&] { load_model(name_of(temp, first), {}); });
  };
  const auto put = [&](int no, const std::string& bytes) {
    return [=](const TempDir& temp) { write_file(name_of(temp, no), bytes); };
  };
  for (int gone = 1; gone <= 3; ++gone) {
    const std::string name = "tiny-0000" + std::to_string(gone) + "-of-00003.gguf";
    refused(
        {name, "part " + std::to_string(gone) + " of 3"},
        [&](const TempDir& temp) { std::filesystem::remove(name_of(temp, gone)); }, gone % 3 + 1,
        RIFFLE_IO);
  }
  refused(
      {"tiny-00002-of-00003.gguf: found a file that begins with \"no part\", expected part 2 of "
       "3 of a split model; download the file again"},
      put(2, "no part"));
  refused({"tiny-00002-of-00003.gguf", "split.no", "found 2", "expected 1"},
          put(2, part_of(tiny, 1, 3, {.no = 2})));
  refused({"tiny-00002-of-00003.gguf", "split.count", "found 4"},
          put(2, part_of(tiny, 1, 3, {.no = 1, .count = 4})));
  refused({"tiny-00002-of-00003.gguf", "split.count", "none"},
          put(2, part_of(tiny, 1, 3, {.keys = false})));
  refused({"tiny-00003-of-00003.gguf", "split.tensors.count", "found 5"},
          put(3, part_of(tiny, 2, 3, {.no = 2, .tensors = 5})));
  refused({"tiny-00001-of-00003.gguf", "split.tensors.count", "as many as the 3 parts hold"},
          put(2, part_of(tiny, 1, 3, {.no = 1}, 8)));
  refused({"tiny-00002-of-00003.gguf", "it here and in", "tiny-00001-of-00003.gguf"},
          put(2, part_of(tiny, 1, 3, {.no = 1}, 0, true)));
  refused({"tiny-00002-of-00003.gguf", "a file that begins with \"no model at all"},
          put(2, "no model at all, by any means"));
  refused({"tiny-00001-of-00003.gguf", "split.no", "found 7"},
          put(1, part_of(tiny, 0, 3, {.no = 7})));
  refused({"tiny-00001-of-00003.gguf", "file name", "-00001-of-00002.gguf"},
          put(1, part_of(tiny, 0, 3, {.no = 0, .count = 2})));
  refused({"tiny-00001-of-00003.gguf", "split.count", "60000"},
          put(1, part_of(tiny, 0, 3, {.no = 0, .count = 60000})));
  // Cut short.
  std::string cut = part_of(tiny, 2, 3, {.no = 2});
  cut.resize(cut.size() - 100);
  refused({"tiny-00003-of-00003.gguf"}, put(3, cut));
  // A part of another model: its metadata says so, or its tensors have other shapes.
  GgufWriter other;
  other.text("general.name", "another");
  other.scalar<uint16_t>("split.no", 2, 1);
  other.scalar<uint16_t>("split.count", 2, 3);
  other.scalar<int32_t>("split.tensors.count", 5, static_cast<int32_t>(tiny.tensors.size()));
  refused({"tiny-00002-of-00003.gguf", "general.name", "tiny-00001-of-00003.gguf"},
          put(2, other.bytes()));
  TinyModel wide = tiny_model(1);
  for (auto& [name, m] : wide.tensors) {
    if (name.find("mlp.up") == name.npos) continue;
    m.shape[0] *= 2;
    m.values.resize(m.values.size() * 2);
  }
  refused({"-of-00003.gguf", "ffn_up.weight shape"}, [&](const TempDir& temp) {
    for (uint32_t i = 1; i < 3; ++i)
      write_file(name_of(temp, static_cast<int>(i) + 1), part_of(wide, i, 3, {.no = i}));
  });
  // Renamed: the name says nothing of the others, and never leads out of the folder.
  const TempDir temp;
  write_parts(temp, tiny);
  std::filesystem::rename(name_of(temp, 1), temp / "renamed.gguf");
  expect_error(RIFFLE_BAD_MODEL, {"renamed.gguf", "-00001-of-00003.gguf"},
               [&] { load_model(temp / "renamed.gguf", {}); });
}

// Neither may it crash nor take a part for what it is not; the sanitizers and fuzz_gguf_split look
// closer.
TEST_CASE("split GGUF: damaged parts are errors or models", "[split]") {
  const TinyModel tiny = tiny_model(1, true, 1);
  const std::string good[2] = {part_of(tiny, 0, 2, {.no = 0, .count = 2}),
                               part_of(tiny, 1, 2, {.no = 1, .count = 2})};
  std::mt19937 random(7);
  int models = 0, errors = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes[2] = {good[0], good[1]};
    std::string& one = bytes[i % 2];
    // The header mostly: metadata of the first part is long, tensors need no testing.
    for (int k = 0; k < 1 + i % 3; ++k)
      one[random() % std::min<size_t>(one.size(), 4000)] ^= static_cast<char>(1 << random() % 8);
    if (i % 10 == 0) one.resize(random() % one.size());
    try {
      std::vector<GgufFile> parts;
      for (const std::string& b : bytes)
        parts.push_back(parse_gguf({reinterpret_cast<const uint8_t*>(b.data()), b.size(), "part"}));
      const auto model = model_from_gguf(join_parts(std::move(parts)), {});
      volatile uint8_t last = 0;
      for (const LayerWeights& l : model->weights.layers)
        last = static_cast<const uint8_t*>(l.w2.data)[l.w2.bytes() - 1];
      (void)last;
      ++models;
    } catch (const Error&) {
      ++errors;
    }
  }
  CHECK(models + errors == 3000);
  CHECK(errors > 500);
}

TEST_CASE("a folder stands for the one GGUF model in it", "[gguf][split]") {
  const TempDir temp;
  const TinyModel tiny = tiny_model(3);
  const auto of = [&] { return gguf_of_folder(temp.path()); };
  CHECK(of() == temp.path());  // nothing in it: a Hugging Face folder's error
  write_parts(temp, tiny);
  write_file(temp / "README.md", "text");
  write_file(temp / "config.json", "{}");  // allowed next to GGUF files
  std::filesystem::create_directory(temp / "folder.gguf");
  CHECK(of() == name_of(temp, 1));
  CHECK(gguf_of_folder(temp.path() + "/").ends_with("/tiny-00001-of-00003.gguf"));
  CHECK(gguf_of_folder(name_of(temp, 2)) == name_of(temp, 2));
  CHECK(load_model(temp.path(), {})->config.n_layers == tiny.config.n_layers);
  write_file(temp / "model.safetensors", "");
  CHECK(of() == temp.path());
  std::filesystem::remove(temp / "model.safetensors");
  write_file(temp / "other.gguf", "");
  expect_error(RIFFLE_IO, {"2 models", "other.gguf, tiny-00001-of-00003.gguf"},
               [&] { load_model(temp.path(), {}); });
}
