// An answer ends with any of a model's end tokens.
#include "import/load_model.h"
#include "tests/engine/padding.h"
#include "tests/engine/test_model.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Returns the greedy answer to a fixed prompt.
riffle_result answer(const std::string& folder, bool ignore_eos, std::vector<int32_t>* tokens) {
  ContextOptions options;
  Runtime run(options, folder);
  riffle_session* session = run.session();
  const std::vector<int32_t> prompt = {1, 270, 290, 266};
  run.check(riffle_prefill(session, prompt.data(), prompt.size(), nullptr, nullptr));
  GenerateOptions g;
  g.max_tokens = 12;
  g.sampling.temperature = 0;
  g.ignore_eos = ignore_eos;
  tokens->clear();
  const auto take = [](void* user, size_t, const riffle_token* token) {
    if (token->id >= 0) static_cast<std::vector<int32_t>*>(user)->push_back(token->id);
    return true;
  };
  riffle_result result{};
  run.check(generate(session, &g, take, tokens, &result));
  return result;
}

}  // namespace

TEST_CASE("an answer ends with any of the model's end tokens", "[engine]") {
  const TempDir dir;
  const std::string folder = dir / "hf";
  write_tiny_folder(folder, tiny_model(3), riffle::DType::F16);
  std::vector<int32_t> free, ended;
  answer(folder, true, &free);
  REQUIRE(free.size() == 12);
  // The last token that appears for the first time.
  size_t at = 0;
  for (size_t i = 0; i < free.size(); i++) {
    if (std::find(free.begin(), free.begin() + i, free[i]) == free.begin() + i) at = i;
  }
  write_file(folder + "/generation_config.json",
             "{\"eos_token_id\": [0, " + std::to_string(free[at]) + "]}");
  {
    riffle_model* model = nullptr;
    REQUIRE(riffle_model_load(folder.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
    CHECK(model_number(model, "eos_id") != free[at]);
    // End tokens of config.json, and those that generation_config.json adds.
    for (int32_t id = -2; id < model_number(model, "vocab_size") + 2; ++id) {
      const bool is_end = id == model_number(model, "eos_id") || id == 0 || id == free[at];
      if (riffle_is_end_token(model, id) != is_end) FAIL("token " << id);
    }
    riffle_model_free(model);
    CHECK(!riffle_is_end_token(nullptr, 0));
  }
  const riffle_result result = answer(folder, false, &ended);
  CHECK(result.finish == RIFFLE_FINISH_STOP);
  CHECK(result.n_tokens == static_cast<int>(at) + 1);
  CHECK(ended == std::vector<int32_t>(free.begin(), free.begin() + at));
  CHECK(answer(folder, true, &ended).finish == RIFFLE_FINISH_LENGTH);
  CHECK(ended == free);
}

TEST_CASE("pieces that are padding are never drawn", "[engine]") {
  check_padding_is_not_drawn(options());
  // A token that ends answers is no padding, whatever its type.
  const TempDir dir;
  TinyModel tiny = tiny_model(3);
  const int n = static_cast<int>(tiny.pieces.size());
  const auto drawable = [&] {
    write_file(dir / "m.gguf", tiny_gguf(tiny, riffle::DType::F32));
    return riffle::drawable_ids(*riffle::load_model(dir / "m.gguf", {}));
  };
  for (int i = n - 40; i < n; i++) tiny.pieces[i].type = riffle::VocabPiece::UNUSED;
  tiny.pieces[n - 41].type = riffle::VocabPiece::NORMAL;
  CHECK(drawable() == n - 40);
  tiny.config.eos_id = n - 10;
  CHECK(drawable() == n - 9);
  for (int i = n - 40; i < n; i++) tiny.pieces[i].type = riffle::VocabPiece::NORMAL;
  CHECK(drawable() == n);
}
