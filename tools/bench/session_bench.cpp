// Times saving and loading a session, compared with copying the same file.
//
//   session_bench MODEL TOKENS FILE [cpu|cuda]
//
// MODEL: a model's file, or the name of a shape (synthetic weights and attention). FILE is written,
// and FILE.copy. Prints a line for each of: reading the tokens, saving, saving again after 100
// steps, copying the file by read and write, loading it, and two steps after that. "warm": the file
// is in the page cache.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "riffle_measure.h"
#include "tests/given_options.h"

using namespace riffle;
using namespace riffle::test;

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void check(riffle_status status, const char* text) {
  if (status == RIFFLE_OK) return;
  std::fprintf(stderr, "session_bench: %s: %s\n", riffle_status_name(status), text);
  std::exit(1);
}

static double copy(const std::string& from, const std::string& to) {
  const double start = now();
  const int in = open(from.c_str(), O_RDONLY),
            out = open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::vector<char> buffer(4 << 20);
  for (ssize_t n; (n = read(in, buffer.data(), buffer.size())) > 0;)
    if (write(out, buffer.data(), n) != n) std::exit(1);
  fdatasync(out);
  close(in), close(out);
  return now() - start;
}

static void drop_cache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  fdatasync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string model_name = argv[1], path = argv[3];
  const int n = std::atoi(argv[2]);
  riffle_model* model = nullptr;
  char err[512];
  struct stat info;
  const bool real = stat(model_name.c_str(), &info) == 0;
  check(real ? riffle_model_load(model_name.c_str(), nullptr, &model, err, sizeof err)
             : riffle_model_synthetic(model_name.c_str(), "q8_0", &model, err, sizeof err),
        err);
  ContextOptions o;
  o.n_ctx = n + 256;
  o.block_size = 32;
  o.device = argc > 4 && !std::strcmp(argv[4], "cuda") ? DeviceKind::CUDA : DeviceKind::CPU;
  if (!real) o.synthetic_attention = SyntheticAttention();
  riffle_context* context = nullptr;
  check(context_create(model, &o, &context, err, sizeof err), err);
  std::vector<int32_t> tokens(n);
  for (int i = 0; i < n; ++i) tokens[i] = 300 + (i * 7919) % 7000;
  riffle_session* session = nullptr;
  check(riffle_session_create(context, &session), riffle_context_error(context));
  const auto step = [&](riffle_session* s) {
    const int32_t token = 301;
    const double start = now();
    check(riffle_step(context, &s, &token, 1), riffle_context_error(context));
    return now() - start;
  };
  double start = now();
  check(riffle_prefill(session, tokens.data(), tokens.size(), nullptr, nullptr),
        riffle_context_error(context));
  std::printf("read %d tokens: %.3f s\n", n, now() - start);
  const double first = step(session);
  std::printf("first steps: %.3f and %.3f s\n", first, step(session));
  unlink(path.c_str());
  const auto save = [&](const char* what) {
    start = now();
    check(riffle_session_save(session, path.c_str(), 0, nullptr, 0, nullptr, nullptr),
          riffle_context_error(context));
    const double seconds = now() - start;
    stat(path.c_str(), &info);
    std::printf("%s: %.3f s, file of %.3f GB, %.2f GB/s\n", what, seconds, info.st_size / 1e9,
                info.st_size / 1e9 / seconds);
  };
  save("save");
  for (int i = 0; i < 100; ++i) step(session);
  save("save after 100 steps");
  const auto copied = [&](const char* what) {
    const double seconds = copy(path, path + ".copy");
    std::printf("copy, %s: %.3f s, %.2f GB/s\n", what, seconds, info.st_size / 1e9 / seconds);
  };
  copied("warm");
  copied("warm");
  riffle_session_free(session);
  const auto load = [&](const char* what) {
    start = now();
    riffle_session_file* file = nullptr;
    check(riffle_session_file_open(path.c_str(), &file, err, sizeof err), err);
    check(riffle_session_load(context, file, &session, nullptr, nullptr),
          riffle_context_error(context));
    const double seconds = now() - start;
    const double first = step(session), next = step(session);
    std::printf("load, %s: %.3f s, %.2f GB/s; then steps: %.3f and %.3f s\n", what, seconds,
                info.st_size / 1e9 / seconds, first, next);
    riffle_session_file_free(file);
    riffle_session_free(session);
  };
  load("warm");
  load("warm");
  load("warm");
  drop_cache(path);
  load("cold");
  drop_cache(path);
  copied("cold");
  riffle_context_free(context);
  riffle_model_free(model);
  unlink((path + ".copy").c_str());
  unlink(path.c_str());
}
