// Times llama.cpp while it saves and loads a sequence, for comparison with session_bench. Not part
// of the build: link it against a libllama of your own, as peer_logits.cpp says. usage:
// peer_session MODEL TOKENS THREADS FILE Reads TOKENS tokens, saves the sequence to FILE, loads it
// three times into empty contexts, and steps after each. Times in seconds. FILE is in the page
// cache. Seen with build 11434 (November 2026).
#include <fcntl.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static int failed(const char* what) {
  std::fprintf(stderr, "peer_session: %s\n", what);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 5) return failed("usage: peer_session MODEL TOKENS THREADS FILE");
  const int n = std::atoi(argv[2]);
  const char* const path = argv[4];
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return failed("could not load the model");
  llama_context_params p = llama_context_default_params();
  p.n_ctx = n + 256;
  p.n_batch = 2048;
  p.n_threads = p.n_threads_batch = std::atoi(argv[3]);
  llama_context* ctx = llama_init_from_model(model, p);
  if (!ctx) return failed("could not create a context");
  std::vector<llama_token> tokens(n);
  for (int i = 0; i < n; i++) tokens[i] = 300 + (i * 7919) % 7000;
  double start = now();
  for (int at = 0; at < n; at += 2048)
    if (llama_decode(ctx, llama_batch_get_one(tokens.data() + at, std::min(2048, n - at))) != 0)
      return failed("llama_decode failed");
  std::printf("reading %d tokens %.3f\n", n, now() - start);
  for (int i = 0; i < 3; i++) {
    start = now();
    const size_t bytes = llama_state_seq_save_file(ctx, path, 0, tokens.data(), tokens.size());
    if (!bytes) return failed("could not save");
    const double saved = now() - start;
    const int fd = open(path, O_RDONLY);
    fdatasync(fd);
    close(fd);
    std::printf("save %.3f, and fdatasync %.3f (%.3f GB)\n", saved, now() - start, bytes / 1e9);
  }
  llama_free(ctx);
  for (int i = 0; i < 3; i++) {
    ctx = llama_init_from_model(model, p);
    std::vector<llama_token> read(n);
    size_t n_read = 0;
    start = now();
    if (!llama_state_seq_load_file(ctx, path, 0, read.data(), read.size(), &n_read) ||
        read != tokens)
      return failed("could not load");
    const double loaded = now() - start;
    start = now();
    llama_token next = tokens[0];
    if (llama_decode(ctx, llama_batch_get_one(&next, 1)) != 0 || !llama_get_logits_ith(ctx, -1))
      return failed("llama_decode failed");
    std::printf("load %.3f, a step %.3f\n", loaded, now() - start);
    llama_free(ctx);
  }
  llama_model_free(model);
  return 0;
}
