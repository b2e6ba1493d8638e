#include "engine/generate.h"

#include "engine/step_rows.h"
#include "util/error.h"

namespace riffle {

std::optional<int32_t> draw(Engine& engine, const Sequence& s, Answer& answer, int32_t sampled,
                            const Answer::Show& show) {
  try {
    return answer.advance(
        sampled, [&] { return engine.logits(s); }, engine.n_ctx() - s.kv.n_tokens, show);
  } catch (const Error& e) {
    if (e.status() == RIFFLE_BAD_MODEL) engine.check_loaded(s);
    throw;
  }
}

void generate(Engine& engine, std::span<Sequence* const> sequences,
              std::span<const GenerateOptions> options, riffle_token_fn callback, void* user,
              std::span<riffle_result> results) {
  std::vector<Answer> answers;
  answers.reserve(sequences.size());
  std::vector<Answer::Show> shows;
  std::vector<std::unique_ptr<Proposer>> proposers;
  std::vector<size_t> active;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i]->logits.any())
      fail(RIFFLE_BAD_ARGUMENT, "session %zu has no logits: prefill it before generating", i);
    require_room(options[i], sequences[i]->tokens.size(), engine.n_ctx());
    answers.emplace_back(engine.model(), options[i], sequences[i]->tokens);
    Engine::drop_ahead(*sequences[i]);
    proposers.push_back(make_proposer(engine.lookup()));
    shows.push_back(
        [=](const riffle_token& token) { return !callback || callback(user, i, &token); });
    active.push_back(i);
  }

  // Draws tokens of an answer up to one that is not computed yet. Returns nothing if the answer has
  // ended. An abort between two draws acts as one between two steps.
  bool aborted = false;
  const auto next_token = [&](size_t i, int32_t& sampled) {
    Sequence& s = *sequences[i];
    for (;;) {
      const auto token = draw(engine, s, answers[i], sampled, shows[i]);
      if (!token || !engine.accept(s, *token, sampled)) return token;
      if ((aborted = engine.take_abort())) return std::optional<int32_t>();
    }
  };

  // The token that the device drew for each active answer.
  std::vector<int32_t> sampled(active.size(), kNotSampled), tokens;
  StepRows rows;
  while (!active.empty() && !aborted && !(aborted = engine.take_abort())) {
    tokens.clear();
    std::vector<size_t> next;
    for (size_t at = 0; at < active.size() && !aborted; ++at) {
      const size_t i = active[at];
      const auto token = next_token(i, sampled[at]);
      if (token) {
        next.push_back(i);
        tokens.push_back(*token);
      } else if (answers[i].result().finish == RIFFLE_FINISH_ABORTED && sequences.size() == 1) {
        engine.take_abort();  // the callback may have asked for it as well
      }
    }
    if (aborted) break;
    active.swap(next);
    if (active.empty()) continue;
    rows.begin(active.size(), engine.rows_ahead());
    for (size_t at = 0; at < active.size(); ++at)
      rows.add(engine, *sequences[active[at]], answers[active[at]], proposers[active[at]].get(),
               tokens[at]);
    rows.run(engine);
    sampled.resize(active.size());
    for (size_t at = 0; at < active.size(); ++at) sampled[at] = rows.sampled(at);
  }
  for (const size_t i : active)
    if (aborted && answers[i].result().finish == RIFFLE_FINISH_NONE)
      answers[i].end(RIFFLE_FINISH_ABORTED, shows[i]);
  for (Sequence* s : sequences) Engine::drop_ahead(*s);
  for (size_t i = 0; i < answers.size(); ++i) results[i] = answers[i].result();
}

}  // namespace riffle
