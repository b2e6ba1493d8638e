// Positions in the attended list do not go with multi-head latent attention.
#include "tests/engine/tiny_checkpoint.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("latent attention: positions in the attended list are refused", "[model][latent]") {
  const TempDir temp;
  const std::string path = temp / "a.gguf";
  write_file(path, tiny_gguf(tiny_checkpoint("deepseek2")));
  ContextOptions o = options();
  o.n_ctx = 1024;
  o.selection.selector = SelectorKind::TOKENSELECT;
  o.selection.positions = PositionRule::LIST;
  riffle_model* model = nullptr;
  char err[512];
  REQUIRE(riffle_model_load(path.c_str(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  riffle_context* context = nullptr;
  CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(err).find("multi-head latent attention") != std::string::npos);
  riffle_model_free(model);
}
