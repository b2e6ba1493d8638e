// Logits of llama.cpp for logits_beside_llama.py. Not part of the build: link it against a libllama
// of your own, e.g.
//   g++ -O2 -std=c++17 -I$LLAMA/include -I$LLAMA/ggml/include tools/bench/peer_logits.cpp
//   -L$LLAMA/build/bin -lllama -lggml -lggml-base -o peer_logits
// usage: peer_logits MODEL THREADS f16|f32 CONTEXT <texts >logits
// A text is the number of its tokens, the tokens, the number of its pieces, and where each piece
// ends. It is read piece by piece. The logits after each piece are written as floats.
// Seen with build 11434 (November 2026).
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

static std::vector<int> numbers() {
  int n = 0;
  if (!(std::cin >> n)) return {};
  std::vector<int> all(n);
  for (int& x : all) std::cin >> x;
  return all;
}

static int failed(const char* what) {
  std::fprintf(stderr, "peer_logits: %s\n", what);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 5) return failed("usage: peer_logits MODEL THREADS f16|f32 CONTEXT <texts >logits");
  const bool f32 = argv[3] == std::string("f32");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  llama_context_params p = llama_context_default_params();
  p.n_ctx = p.n_batch = std::atoi(argv[4]);
  p.n_threads = p.n_threads_batch = std::atoi(argv[2]);
  p.type_k = p.type_v = f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
  if (f32) p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* ctx = model ? llama_init_from_model(model, p) : nullptr;
  if (!ctx) return failed("could not load the model");
  const size_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (;;) {
    std::vector<llama_token> tokens = numbers();
    if (tokens.empty()) break;
    llama_memory_clear(llama_get_memory(ctx), true);
    int at = 0;
    for (const int end : numbers()) {
      if (end <= at || static_cast<size_t>(end) > tokens.size()) return failed("a bad piece");
      // A batch without flags yields the logits after its last token.
      if (llama_decode(ctx, llama_batch_get_one(tokens.data() + at, end - at)) != 0)
        return failed("llama_decode failed");
      std::fwrite(llama_get_logits_ith(ctx, -1), sizeof(float), vocab, stdout);
      at = end;
    }
  }
  llama_free(ctx);
  llama_model_free(model);
  return std::fflush(stdout) == 0 ? 0 : failed("could not write");
}
