#include "engine/generate.h"

#include "util/error.h"

namespace riffle {

void generate(Engine& engine, std::span<Sequence* const> sequences,
              std::span<const riffle_generate_options> options, riffle_token_fn callback,
              void* user, std::span<riffle_result> results) {
  std::vector<Answer> answers;
  answers.reserve(sequences.size());
  std::vector<Answer::Show> shows;
  std::vector<size_t> active;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->logits.empty())
      fail(RIFFLE_BAD_ARGUMENT, "session %zu has no logits: prefill it before generating", i);
    answers.emplace_back(engine.model(), options[i]);
    shows.push_back([=](int32_t token, const std::string& text) {
      return !callback || callback(user, i, token, text.data(), text.size());
    });
    active.push_back(i);
  }

  std::vector<Sequence*> stepping;
  std::vector<int32_t> tokens;
  // The draw that comes next for each of the active, and its token where the device made it.
  std::vector<SampleRequest> requests;
  std::vector<int32_t> sampled(active.size(), Backend::kNotSampled);
  while (!active.empty()) {
    if (engine.take_abort()) {
      for (const size_t i : active) answers[i].end(RIFFLE_FINISH_ABORTED, shows[i]);
      break;
    }
    stepping.clear();
    tokens.clear();
    requests.clear();
    std::vector<size_t> next;
    for (size_t at = 0; at < active.size(); ++at) {
      const size_t i = active[at];
      Sequence& s = *sequences[i];
      const auto token =
          answers[i].advance(sampled[at], s.logits, engine.n_ctx() - s.kv.n_tokens, shows[i]);
      if (!token) {
        // The callback may have asked for it as well.
        if (answers[i].result().finish == RIFFLE_FINISH_ABORTED && sequences.size() == 1)
          engine.take_abort();
        continue;
      }
      next.push_back(i);
      stepping.push_back(&s);
      tokens.push_back(*token);
      requests.push_back(answers[i].request());
    }
    active.swap(next);
    if (stepping.empty()) continue;
    sampled.assign(active.size(), Backend::kNotSampled);
    engine.step(stepping, tokens, requests.data(), sampled.data());
  }
  for (size_t i = 0; i < answers.size(); ++i) results[i] = answers[i].result();
}

}  // namespace riffle
