// Gives bytes to tensors that have none.
#include <algorithm>

#include "model/model.h"
#include "model/weights.h"
#include "util/cpu_limits.h"
#include "util/memory_limits.h"
#include "util/thread_pool.h"

namespace riffle {

static std::vector<Tensor*> tensors_of(Weights& w) {
  std::vector<Tensor*> all = {&w.embedding};
  for (Tensor* t : {&w.layer_embedding, &w.layer_projection})
    if (t->rows > 0) all.push_back(t);
  for (LayerWeights& l : w.layers) {
    for (Tensor* t : {&l.wq_a, &l.wq, &l.wk, &l.wv, &l.wgate, &l.wo, &l.w1, &l.w3, &l.w2, &l.router,
                      &l.embedding_gate, &l.embedding_out})
      if (t->rows > 0) all.push_back(t);
    for (std::vector<Tensor>* list : {&l.mix, &l.k_b, &l.v_b})
      for (Tensor& t : *list) all.push_back(&t);
    for (Tensor* t : {&l.shared.w1, &l.shared.w3, &l.shared.w2})
      if (t->rows > 0) all.push_back(t);
    for (ExpertWeights& e : l.experts)
      for (Tensor* t : {&e.w1, &e.w3, &e.w2}) all.push_back(t);
  }
  all.push_back(&w.output);
  return all;
}

void materialize(Model& model) {
  std::vector<Tensor*> missing;
  for (Tensor* t : tensors_of(model.weights))
    if (!t->data && !(t == &model.weights.output && model.config.tied_output)) missing.push_back(t);
  if (missing.empty()) return;
  uint64_t taken = 0;
  for (const Tensor* t : missing) taken += static_cast<uint64_t>(t->bytes());
  require_memory("weights without a file", taken, MemoryLimits());
  std::vector<Buffer> buffers;
  for (const Tensor* t : missing) buffers.emplace_back(static_cast<size_t>(t->bytes()));
  model.generated.reserve(model.generated.size() + buffers.size());  // from here on nothing fails
  ThreadPool threads(default_threads());
  constexpr int64_t kRows = 64;  // rows of one item: about a hundred microseconds
  for (size_t i = 0; i < missing.size(); ++i) {
    const Tensor& t = *missing[i];
    std::byte* const out = buffers[i].as<std::byte>();
    threads.parallel_for((t.rows + kRows - 1) / kRows, [&](int64_t item, int) {
      for (int64_t r = item * kRows; r < std::min(t.rows, (item + 1) * kRows); ++r)
        t.source->row(t, r, out + r * row_bytes(t.type, t.cols));
    });
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    missing[i]->data = buffers[i].data();
    model.generated.push_back(std::move(buffers[i]));
  }
  if (model.config.tied_output) model.weights.output.data = model.weights.embedding.data;
  take_layer_projections(model.weights);
}

}  // namespace riffle
