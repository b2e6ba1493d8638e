// Keys in 8 bits are stored without the mean rotated bias. Tests compare that mean with float64,
// and logits of a model with a large key bias with those of a model without one.
#include "model/key_centre.h"

#include <bit>
#include <cmath>

#include "kernels/common/rope_pairs.h"
#include "tests/engine/session_files.h"
#include "tests/engine/spoiled_session.h"
#include "tests/engine/steps.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/model/made_model.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

constexpr int kHeads = 2, kHeadDim = 32;

std::unique_ptr<Model> plain() { return biased_model(0.1f); }
std::unique_ptr<Model> biased() { return biased_model(60); }

using Logits = std::vector<std::vector<float>>;

Logits logits_of(std::unique_ptr<Model> (*make)(), KvKind kv, ContextOptions o) {
  o.kv_type = kv;
  Runtime r(o, make);
  riffle_session* s = r.session();
  auto text = some_tokens(400, 3);
  for (int32_t& token : text) token %= 1024;  // the made-up model's vocabulary
  Logits out;
  r.check(riffle_prefill(s, text.data(), 300, nullptr, nullptr));
  out.push_back(r.logits(s));
  for (size_t i = 300; i < 330; ++i) {
    r.check(riffle_step(r.context, &s, &text[i], 1));
    out.push_back(r.logits(s));
  }
  r.check(riffle_prefill(s, &text[330], 70, nullptr, nullptr));
  out.push_back(r.logits(s));
  return out;
}

}  // namespace

TEST_CASE("a key centre is the mean of the rotated bias", "[q8][model]") {
  for (const bool interleaved : {false, true})
    for (const int rotated : {0, 24}) {
      INFO("interleaved " << interleaved << ", rotated " << rotated);
      auto model = biased();
      Config& c = model->config;
      c.n_ctx = interleaved ? 1024 : 5000;
      c.rope_interleaved = interleaved;
      c.ropes[0].rotated = interleaved ? 0 : rotated;
      const RopeFrequencies rope = rope_frequencies(c.ropes[0], kHeadDim, c.n_ctx);
      const auto centres = key_centres(*model, {&rope, 1});
      REQUIRE(centres.size() == model->weights.layers.size());
      const RopePairs pairs = {interleaved, c.ropes[0].rotated > 0 ? rotated : kHeadDim};
      for (size_t layer = 0; layer < centres.size(); ++layer) {
        REQUIRE(centres[layer].size() == kHeads * kHeadDim);
        const auto* bias = static_cast<const float*>(model->weights.layers[layer].bk.data);
        for (int h = 0; h < kHeads; ++h) {
          std::vector<double> mean(kHeadDim);
          for (int p = 0; p < c.n_ctx; ++p)
            for (int j = 0; j < kHeadDim / 2; ++j) {
              const double angle = double(rope.frequency[j]) * p;
              const double x = bias[h * kHeadDim + pairs.first(j)],
                           y = bias[h * kHeadDim + pairs.second(j, kHeadDim / 2)];
              mean[j] += (x * std::cos(angle) - y * std::sin(angle)) / c.n_ctx;
              mean[j + kHeadDim / 2] += (x * std::sin(angle) + y * std::cos(angle)) / c.n_ctx;
            }
          // The transform, as a sum over all dimensions.
          for (int i = 0; i < kHeadDim; ++i) {
            double sum = 0;
            for (int j = 0; j < kHeadDim; ++j)
              sum += (std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1) * mean[j];
            sum /= std::sqrt(double(kHeadDim));
            CHECK(std::fabs(centres[layer][h * kHeadDim + i] - sum) <= 1e-3);
          }
        }
      }
    }
}

TEST_CASE("keys have no centre without a bias, with attention sinks or with key norms",
          "[q8][model]") {
  const auto none = [](const Model& model) {
    const RopeFrequencies rope =
        rope_frequencies(model.config.ropes[0], kHeadDim, model.config.n_ctx);
    for (const auto& centre : key_centres(model, {&rope, 1}))
      if (!centre.empty()) return false;
    return true;
  };
  CHECK(none(*wide_model()));
  auto model = biased();
  CHECK(!none(*model));
  model->config.sinks = true;
  CHECK(none(*model));
  model->config.sinks = false;
  model->config.qk_norm = QkNorm::HEAD;
  CHECK(none(*model));
}

TEST_CASE("a large key bias hardly adds to the error of 8-bit keys", "[q8][model][arithmetic]") {
  for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE})
    for (const int64_t slots : {0, 200}) {
      INFO("selector " << selector << ", " << slots << " slots");
      ContextOptions o = options();
      o.n_ctx = 1024;
      o.n_threads = usual_threads();
      o.block_size = 16;
      o.selection.selector = selector;
      o.selection.share = 1e-6f;  // every block: rounding must not change what is read
      if (slots) o.device = DeviceKind::EMU, o.slots = slots;
      const double without =
          rows_difference(logits_of(plain, KvKind::Q8, o), logits_of(plain, KvKind::F32, o))
              .relative;
      const double with =
          rows_difference(logits_of(biased, KvKind::Q8, o), logits_of(biased, KvKind::F32, o))
              .relative;
      INFO("with a small bias " << without << ", with a large one " << with);
      CHECK(without < 0.05);
      CHECK(with < 2 * without + 0.01);
    }
}

TEST_CASE("a session of 8-bit keys with their bias is refused by name",
          "[q8][session_file][model]") {
  const TempDir temp;
  ContextOptions o = options();
  o.n_ctx = 512;
  auto prompt = some_tokens(100, 1);
  for (int32_t& token : prompt) token %= 1024;
  // f16 sessions have the hash that q8 sessions had before.
  session_layout::Header whole;
  {
    Runtime r(o, biased);
    save(r, r.session(prompt), temp / "f16.kv");
    std::memcpy(&whole, read_file(temp / "f16.kv").data(), sizeof whole);
  }
  o.kv_type = KvKind::Q8;
  Runtime r(o, biased);
  save(r, r.session(prompt), temp / "q8.kv");
  CHECK(riffle_session_length(load(r, temp / "q8.kv")) == prompt.size());
  SpoilSession old;
  old.header = [&](session_layout::Header& h) { h.rotation = whole.rotation; };
  write_file(temp / "old.kv", spoiled(read_file(temp / "q8.kv"), old));
  const test::SessionFile file(temp / "old.kv");
  REQUIRE(file.status == RIFFLE_OK);
  riffle_session* s = nullptr;
  CHECK(riffle_session_load(r.context, file.handle, &s, nullptr, nullptr) == RIFFLE_UNSUPPORTED);
  CHECK(s == nullptr);
  const std::string text = riffle_context_error(r.context);
  INFO(text);
  CHECK(text.find("8-bit keys: found keys with the bias") != std::string::npos);
  CHECK(text.find("read the text again") != std::string::npos);
}
