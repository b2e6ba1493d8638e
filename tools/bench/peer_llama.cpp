// Prefill and decode speed by depth of llama.cpp on the same file, for the comparison in
// shipped-model.md. Not part of the build: link it against a libllama of your own, e.g.
//   g++ -O2 -std=c++17 -I$LLAMA/include -I$LLAMA/ggml/include tools/bench/peer_llama.cpp
//   -L$LLAMA/build/bin -lllama -lggml -lggml-base
// usage: peer_llama MODEL THREADS FLASH(0|1) PREFILL,... DEPTH,... STEPS
// Seen with the interface of February 2025 (c392e50). The same random tokens as `riffle bench`.
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

static std::vector<int> list(const char* text) {
  std::vector<int> out;
  std::stringstream in(text);
  for (std::string word; std::getline(in, word, ',');) out.push_back(std::atoi(word.c_str()));
  return out;
}

static void read_to(llama_context* ctx, std::vector<llama_token>& tokens, int from, int to) {
  for (int at = from; at < to; at += 2048) {
    if (llama_decode(ctx, llama_batch_get_one(tokens.data() + at, std::min(2048, to - at))) != 0)
      std::exit(1);
  }
}

int main(int argc, char** argv) {
  if (argc != 7)
    return std::fprintf(stderr,
                        "usage: peer_llama MODEL THREADS FLASH PREFILL,... DEPTH,... STEPS\n"),
           2;
  const std::vector<int> lengths = list(argv[4]), depths = list(argv[5]);
  const int steps = std::atoi(argv[6]);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  llama_context_params p = llama_context_default_params();
  p.n_ctx = 32768;
  p.n_batch = 2048;
  p.n_ubatch = 512;
  p.n_threads = p.n_threads_batch = std::atoi(argv[2]);
  p.flash_attn = std::atoi(argv[3]) != 0;
  llama_context* ctx = model ? llama_init_from_model(model, p) : nullptr;
  if (!ctx) return std::fprintf(stderr, "could not load %s\n", argv[1]), 1;

  std::vector<llama_token> tokens{1};
  uint64_t state = 1;
  while (tokens.size() < 32768) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(300 + static_cast<llama_token>((state >> 33) % 7892));
  }
  read_to(ctx, tokens, 0, 64);  // pages the weights in
  int held = 0;
  for (int n : lengths) {
    std::vector<double> seconds;
    for (int rep = 0; rep < (n > 10000 ? 1 : 3); ++rep) {
      llama_kv_cache_clear(ctx);
      const auto start = Clock::now();
      read_to(ctx, tokens, 0, n);
      seconds.push_back(since(start));
    }
    held = n;
    std::sort(seconds.begin(), seconds.end());
    std::printf("flash %s prefill %d: %.1f tokens/s (%.2f s)\n", argv[3], n,
                n / seconds[seconds.size() / 2], seconds[seconds.size() / 2]);
    std::fflush(stdout);
  }
  for (int depth : depths) {  // deepest first
    if (held < depth) read_to(ctx, tokens, held, depth);
    std::vector<double> seconds;
    for (int rep = 0; rep < 3; ++rep) {
      llama_kv_cache_seq_rm(ctx, 0, std::max(depth, 1), -1);
      const auto start = Clock::now();
      for (int i = 0; i < steps; ++i)
        if (llama_decode(ctx, llama_batch_get_one(&tokens[std::max(depth, 1) + i], 1)) != 0)
          return 1;
      seconds.push_back(since(start) / steps);
    }
    held = depth + steps;
    std::sort(seconds.begin(), seconds.end());
    std::printf("flash %s decode at %d: %.1f tokens/s (%.2f ms)\n", argv[3], depth, 1 / seconds[1],
                seconds[1] * 1e3);
    std::fflush(stdout);
  }
  llama_free(ctx);
  llama_model_free(model);
}
