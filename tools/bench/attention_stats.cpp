// Records what a model's decode attention looks like (attention_stats.h), one line a KV head: for
// selector_bench.cpp.
//
//   make attention_stats && build/attention_stats MODEL TEXT [tokens [steps]]
//
// Prefills the text's first tokens and goes on through the text. The program brings its own dense
// selector, which reads all blocks as that of the library does (whose object the linker then leaves
// in its archive) and looks at the weights as well; what it sees it keeps as its state of the
// sequence.
#include "tools/bench/attention_stats.h"

#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/plan/memory_plan.h"
#include "import/load_model.h"
#include "kernels/cpu/attention/gather.h"
#include "select/selector.h"
#include "text/tokenizer.h"

namespace {

using namespace riffle;

struct Recorded : SelectorState {
  std::vector<bench::StatsOf> heads;  // [layer][KV head]
  int n_kv_heads = 0;
  bench::StatsOf& at(int layer, int head) { return heads[size_t(layer) * n_kv_heads + head]; }
  uint64_t bytes() const override { return heads.size() * sizeof heads[0]; }
};

class Recorder : public Selector {
 public:
  const char* name() const override { return "dense"; }
  const SelectionRule* rule() const override { return &rule_; }
  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    auto state = std::make_unique<Recorded>();
    state->heads.resize(size_t(shape.n_layers) * shape.n_kv_heads);
    state->n_kv_heads = shape.n_kv_heads;
    return state;
  }
  bool fits(const SelectorState* state) const override {
    return dynamic_cast<const Recorded*>(state) != nullptr;
  }
  void begin(const Row& row, RowPlan& plan) const override {
    plan.everything(row);
    std::vector<const void*> keys(row.n_tokens);
    for (int64_t i = 0; i < row.n_tokens; ++i) keys[i] = row.key(i);
    std::vector<float> scores(size_t(row.g) * row.n_tokens);
    const cpu::GatherKernels& gather = *row.kernels->gather;
    gather.dot(row.q, row.g, row.d, keys.data(), row.n_tokens, row.type, 0, scores.data(),
               row.n_tokens);
    std::vector<std::vector<float>> weights;
    for (int h = 0; h < row.g; ++h) {
      float sum, *s = scores.data() + h * row.n_tokens;
      gather.softmax(s, row.n_tokens, &sum);
      weights.emplace_back(s, s + row.n_tokens);
      for (float& w : weights.back()) w /= sum;
    }
    static_cast<Recorded*>(row.state)->at(row.layer, row.head).step(weights);
  }

 private:
  ReadsEverything rule_;
};

}  // namespace

namespace riffle {
std::unique_ptr<Selector> make_dense() { return std::make_unique<Recorder>(); }
}  // namespace riffle

static int run(const char* model_path, const char* text_path, int n_tokens, int steps) {
  const std::unique_ptr<Model> model = load_model(model_path, nullptr);
  ContextOptions options;
  options.device = DeviceKind::CPU;
  options.selection.selector = SelectorKind::DENSE;
  ResolvedOptions resolved = resolve_options(model->config, options);
  MemoryPlan plan{};
  plan_memory(*model, resolved, plan);
  Engine engine(*model, std::move(resolved));
  std::ifstream file(text_path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<int32_t> tokens = model->tokenizer->encode(text, true, false);
  if (static_cast<int>(tokens.size()) < n_tokens + steps)
    return std::fprintf(stderr, "the text has only %zu tokens\n", tokens.size()), 1;
  const std::unique_ptr<Sequence> sequence = engine.create();
  Sequence* const one = sequence.get();
  engine.prefill(*one, {tokens.data(), size_t(n_tokens)}, nullptr, {});
  for (int i = 0; i < steps; ++i) engine.step({&one, 1}, {&tokens[n_tokens + i], 1});
  auto& recorded = static_cast<Recorded&>(*one->kv.selection);
  bench::print_header();
  std::vector<bench::AttentionStats> all;
  for (int layer = 0; layer < model->config.n_layers; ++layer)
    for (int h = 0; h < model->config.n_kv_heads; ++h) {
      all.push_back(recorded.at(layer, h).mean());
      bench::print(("layer " + std::to_string(layer) + " head " + std::to_string(h)).c_str(),
                   all.back());
    }
  bench::print("mean", bench::mean_of(all));
  engine.destroy(*one);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3)
    return std::fprintf(stderr, "usage: attention_stats MODEL TEXT [tokens [steps]]\n"), 2;
  try {
    return run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 30000,
               argc > 4 ? std::atoi(argv[4]) : 64);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
