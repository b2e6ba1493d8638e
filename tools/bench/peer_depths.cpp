// Prefill and decode speed of llama.cpp by depth, in one pass over a long text, for recurrent.md.
// llama-bench reads the text again for each depth, since a recurrent state cannot be cut back. Not
// part of the build: link it against a libllama of your own, e.g.
//   g++ -O2 -std=c++17 -I$LLAMA/include -I$LLAMA/ggml/include tools/bench/peer_depths.cpp
//   -L$LLAMA/build/bin -lllama -lggml -lggml-base -o peer_depths
// usage: peer_depths MODEL THREADS DEPTH,... STEPS [CPU_EXPERTS [UBATCH]]
// Depths rise. A line for each has the tokens a second of all prefill until there, and the median
// of three runs of STEPS decode steps there. CPU_EXPERTS: number of layers whose experts stay in
// host memory. The other parameters are llama-bench's, with flash attention. Seen with build 11434.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;
static double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

static int failed(const char* what) {
  std::fprintf(stderr, "peer_depths: %s\n", what);
  return 1;
}

static std::vector<int> list(const char* text) {
  std::vector<int> out;
  std::stringstream in(text);
  for (std::string word; std::getline(in, word, ',');) out.push_back(std::atoi(word.c_str()));
  return out;
}

static constexpr int kBatch = 2048;

class Reader {
 public:
  Reader(llama_context* ctx, int vocab) : ctx_(ctx), vocab_(static_cast<unsigned>(vocab)) {}

  // Returns the seconds.
  double read(int n) {
    const auto start = Clock::now();
    for (int at = 0; at < n; at += kBatch) decode(std::min(kBatch, n - at));
    llama_synchronize(ctx_);
    return since(start);
  }
  double steps(int n) {
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) {
      decode(1);
      llama_synchronize(ctx_);
    }
    return since(start);
  }
  void clear() { llama_memory_clear(llama_get_memory(ctx_), true); }

 private:
  void decode(int n) {
    std::vector<llama_token> tokens(static_cast<size_t>(n));
    for (llama_token& t : tokens) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      t = static_cast<llama_token>((state_ >> 33) % vocab_);
    }
    if (llama_decode(ctx_, llama_batch_get_one(tokens.data(), n)) != 0)
      std::exit(failed("llama_decode"));
  }

  llama_context* ctx_;
  unsigned vocab_;
  unsigned long long state_ = 1;
};

int main(int argc, char** argv) {
  if (argc < 5 || argc > 7)
    return failed("usage: peer_depths MODEL THREADS DEPTH,... STEPS [CPU_EXPERTS [UBATCH]]");
  const std::vector<int> depths = list(argv[3]);
  const int steps = std::atoi(argv[4]), cpu_experts = argc > 5 ? std::atoi(argv[5]) : 0;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  ggml_backend_load_all();
  const auto start = Clock::now();
  llama_model_params m = llama_model_default_params();
  m.n_gpu_layers = 999;
  std::vector<std::string> patterns;
  for (int i = 0; i < cpu_experts; ++i)
    patterns.push_back("blk\\." + std::to_string(i) + "\\.ffn_(up|down|gate)_exps");
  std::vector<llama_model_tensor_buft_override> overrides;
  for (const std::string& p : patterns)
    overrides.push_back({p.c_str(), ggml_backend_cpu_buffer_type()});
  overrides.push_back({nullptr, nullptr});
  if (cpu_experts > 0) m.tensor_buft_overrides = overrides.data();
  llama_model* model = llama_model_load_from_file(argv[1], m);
  if (!model) return failed("the model was not loaded");

  constexpr int kReps = 3;
  const int longest = *std::max_element(depths.begin(), depths.end());
  llama_context_params p = llama_context_default_params();
  p.n_ctx = static_cast<uint32_t>(longest + (static_cast<int>(depths.size()) * kReps + 1) * steps);
  p.n_ctx = (p.n_ctx + kBatch - 1) / kBatch * kBatch;
  p.n_batch = kBatch;
  p.n_ubatch = argc > 6 ? static_cast<uint32_t>(std::atoi(argv[6])) : 512;
  p.n_threads = p.n_threads_batch = std::atoi(argv[2]);
  p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  llama_context* ctx = llama_init_from_model(model, p);
  if (!ctx) return failed("no context was made");

  Reader reader(ctx, llama_vocab_n_tokens(llama_model_get_vocab(model)));
  reader.read(std::min(kBatch, std::max(longest, 1)));
  reader.steps(4);
  reader.clear();
  std::printf("loaded in %.1f s\n", since(start));
  int at = 0;
  double spent = 0;
  for (const int depth : depths) {  // shortest first
    spent += reader.read(depth - at);
    at = depth;
    std::vector<double> seconds;
    for (int rep = 0; rep < kReps; ++rep) seconds.push_back(reader.steps(steps) / steps);
    std::sort(seconds.begin(), seconds.end());
    std::printf("depth %d prefill %.1f decode %.2f tokens/s, steps of %.3f to %.3f ms\n", depth,
                depth > 0 ? depth / spent : 0.0, 1 / seconds[kReps / 2], seconds[0] * 1e3,
                seconds[kReps - 1] * 1e3);
    std::fflush(stdout);
  }
  llama_free(ctx);
  llama_model_free(model);
  return 0;
}
