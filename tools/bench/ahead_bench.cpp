// Times decode steps that compute tokens ahead, and the guesses of an MTP layer.
//
//   ahead_bench SHAPE WEIGHTS TOKENS [THREADS [cuda]]
//
// SHAPE: a shape of riffle bench whose layers keep recurrent states; its weights are synthetic, and
// the MTP layer has those of a layer that attends. For 1 to 5 rows it prints the median time of 15
// steps, and of making the guesses for their rows, on the CPU or a GPU. Guesses of random weights
// are wrong, so nothing is said of how many an answer takes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/draft_head.h"
#include "engine/engine.h"
#include "engine/plan/draft_plan.h"
#include "measure/synthetic_model.h"

using namespace riffle;

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Gives the model an MTP layer.
static void add_head(Model& m) {
  Weights& w = m.weights;
  DraftWeights& head = w.draft;
  const auto attends =
      std::find_if(w.layers.begin(), w.layers.end(), [](const auto& l) { return l.wq.rows > 0; });
  head.layer = *attends;
  head.embedding = w.embedding;
  head.output = w.output;
  head.embed_norm = head.hidden_norm = head.final_norm = w.final_norm;
  // Any elements do, and the output's are enough.
  head.proj = w.output;
  head.proj.rows = m.config.dim;
  head.proj.cols = 2 * int64_t{m.config.dim};
  m.config.draft_head = true;
}

static void run(const char* shape, const char* weights, int n_tokens, int n_threads, bool gpu) {
  const auto model = synthetic_model(shape, weight_type_of(weights));
  if (!gpu) materialize(*model);
  add_head(*model);
  ContextOptions o;
  o.device = gpu ? DeviceKind::CUDA : DeviceKind::CPU;
  o.n_ctx = n_tokens + 1024;
  o.n_threads = n_threads;
  o.block_size = 64;
  o.selection.selector = SelectorKind::DENSE;
  o.draft = DraftKind::MTP;
  ResolvedOptions resolved = resolve_options(model->config, o);
  MemoryPlan plan;
  plan_memory(*model, resolved, plan);
  Engine engine(*model, resolved);
  const auto session = engine.create();
  Sequence* const s = session.get();
  std::vector<int32_t> tokens(n_tokens);
  for (int i = 0; i < n_tokens; ++i) tokens[i] = (i * 7919 + 13) % model->config.vocab_size;
  engine.prefill(*s, tokens, nullptr, {});
  for (int rows = 1; rows <= 1 + kMostGuesses; ++rows) {
    std::vector<double> steps, guesses;
    for (int i = 0; i < 15; ++i) {
      for (const int32_t token = 5; engine.room_ahead(*s) < rows - 1;)
        engine.step({&s, 1}, {&token, 1});
      DraftRequest request;
      request.next = 100 + i;
      request.most = rows - 1;
      request.draw = [](std::span<const float> logits, size_t) {
        return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                                    logits.begin());
      };
      request.request = [](size_t) { return SampleRequest{}; };
      double start = now();
      if (rows > 1) engine.guess({&s, 1}, {&request, 1});
      guesses.push_back(now() - start);
      std::vector<int32_t> next = {request.next};
      next.insert(next.end(), request.guesses.begin(), request.guesses.end());
      const std::vector<Sequence*> sequences(next.size(), s);
      start = now();
      engine.step(sequences, next);
      steps.push_back(now() - start);
    }
    std::printf("%d rows: step %.2f ms, guesses %.2f ms\n", rows, 1e3 * median(steps),
                1e3 * median(guesses));
  }
  engine.destroy(*s);
}

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: ahead_bench SHAPE WEIGHTS TOKENS [THREADS [cuda]]\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], std::atoi(argv[3]), argc > 4 ? std::atoi(argv[4]) : 0,
        argc > 5 && std::strcmp(argv[5], "cuda") == 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ahead_bench: %s\n", e.what());
    return 1;
  }
}
