// Records what a model's decode attention looks like (attention_stats.h), one line a KV head: for selector_bench.cpp.
//
//   make attention_stats && build/attention_stats MODEL TEXT [tokens [steps]]
//
// Prefills the text's first tokens and goes on through the text. The program brings its own dense selector, which reads
// all blocks as that of the library does (whose object the linker then leaves in its archive) and looks at the weights
// as well.
#include "attention_stats.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "kernels/cpu/gather.h"
#include "riffle.h"
#include "select/selector.h"

namespace {

using namespace riffle;

std::vector<bench::StatsOf> g_stats(1024);  // [layer * 16 + KV head]

class Recorder : public Selector {
 public:
  const char* name() const override { return "dense"; }
  SelectionRule rule() const override {
    SelectionRule r;
    r.everything = true;
    return r;
  }
  void begin(const Row& row, RowPlan& plan) const override {
    plan.everything(row);
    std::vector<const void*> keys(row.n_tokens);
    for (int64_t i = 0; i < row.n_tokens; ++i) keys[i] = row.key(i);
    std::vector<float> scores(size_t(row.g) * row.n_tokens);
    const cpu::GatherKernels& gather = *cpu::gather_kernels(row.kernels->isa);
    gather.dot(row.q, row.g, row.d, keys.data(), row.n_tokens, row.type, 0, scores.data(), row.n_tokens);
    std::vector<std::vector<float>> weights;
    for (int h = 0; h < row.g; ++h) {
      float sum, *s = scores.data() + h * row.n_tokens;
      gather.softmax(s, row.n_tokens, &sum);
      weights.emplace_back(s, s + row.n_tokens);
      for (float& w : weights.back()) w /= sum;
    }
    g_stats[row.layer * 16 + row.head].step(weights);
  }
};

}  // namespace

namespace riffle {
std::unique_ptr<Selector> make_dense() { return std::make_unique<Recorder>(); }
}  // namespace riffle

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: attention_stats MODEL TEXT [tokens [steps]]\n"), 2;
  const int n_tokens = argc > 3 ? std::atoi(argv[3]) : 30000, steps = argc > 4 ? std::atoi(argv[4]) : 64;
  char err[512];
  const auto must = [&](riffle_status status) {
    if (status == RIFFLE_OK) return;
    std::fprintf(stderr, "%s\n", err);
    std::exit(1);
  };
  riffle_model* model = nullptr;
  must(riffle_model_load(argv[1], nullptr, &model, err, sizeof err));
  riffle_context_options options;
  riffle_context_defaults(&options);
  options.device = RIFFLE_DEVICE_CPU;
  options.selection.selector = RIFFLE_SELECTOR_DENSE;
  riffle_context* context = nullptr;
  must(riffle_context_create(model, &options, &context, err, sizeof err));
  riffle_session* session = nullptr;
  must(riffle_session_create(context, &session));
  std::ifstream file(argv[2]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<int32_t> tokens(text.size() + 16);
  size_t n = 0;
  must(riffle_tokenize(model, text.data(), text.size(), RIFFLE_TOKENIZE_BOS, tokens.data(), tokens.size(), &n));
  if (static_cast<int>(n) < n_tokens + steps) return std::fprintf(stderr, "the text has only %zu tokens\n", n), 1;
  must(riffle_prefill(session, tokens.data(), n_tokens, nullptr, nullptr));
  for (int i = 0; i < steps; ++i) must(riffle_step(context, &session, &tokens[n_tokens + i], 1));
  riffle_model_info info{};
  info.struct_size = sizeof info;
  riffle_model_get_info(model, &info);
  bench::print_header();
  std::vector<bench::AttentionStats> all;
  for (int layer = 0; layer < info.n_layers; ++layer)
    for (int h = 0; h < info.n_kv_heads; ++h) {
      all.push_back(g_stats[layer * 16 + h].mean());
      bench::print(("layer " + std::to_string(layer) + " head " + std::to_string(h)).c_str(), all.back());
    }
  bench::print("mean", bench::mean_of(all));
  return 0;
}
