// riffle_measure.h: synthetic models and attention, scores, timers and row reports.
#include <algorithm>

#include "api/api_handles.h"
#include "measure/synthetic_model.h"
#include "model/operations.h"
#include "riffle_measure.h"

using namespace riffle;

extern "C" {

riffle_status riffle_model_synthetic(const char* shape, const char* weight_type,
                                     riffle_model** model, char* err, size_t err_size) {
  if (model) *model = nullptr;
  return guarded(err, err_size, [&] {
    require(shape, "shape");
    require(weight_type, "weight_type");
    require(model, "model");
    auto m = std::make_unique<riffle_model>();
    m->model = synthetic_model(shape, weight_type_of(weight_type));
    m->info = facts_of(*m->model);
    *model = m.release();
  });
}

void riffle_synthetic_attention_defaults(riffle_synthetic_attention* t) {
  const SyntheticAttention standard;
  if (t)
    *t = {standard.sparsity, standard.weight, standard.overlap, standard.seed,
          standard.run_prompts};
}

riffle_status riffle_options_set_synthetic_attention(riffle_options* options,
                                                     const riffle_synthetic_attention* t) {
  if (!options) return RIFFLE_BAD_ARGUMENT;
  options->context.synthetic_attention.reset();
  if (t)
    options->context.synthetic_attention =
        SyntheticAttention{t->sparsity, t->weight, t->overlap, t->seed, t->run_prompts};
  return RIFFLE_OK;
}

riffle_status riffle_prefill_scored(riffle_session* session, const int32_t* tokens, size_t n_tokens,
                                    riffle_score* scores, riffle_progress_fn progress, void* user) {
  return on_session(session, [&] {
    require(tokens || !n_tokens, "tokens");
    require(scores, "scores");
    std::vector<TokenScore> all(n_tokens);
    session->context->engine->prefill(*session->sequence, {tokens, n_tokens}, all.data(),
                                      progress_of(RIFFLE_PHASE_PREFILL, progress, user));
    std::transform(all.begin(), all.end(), scores, [](const TokenScore& s) {
      return riffle_score{s.logsumexp, s.next_logprob, s.argmax};
    });
  });
}

riffle_operations riffle_prompt_operations(const riffle_model* model, size_t n_tokens) {
  PromptOperations o;
  if (model) o = prompt_operations(*model->model, static_cast<int64_t>(n_tokens));
  return {o.products, o.attention, o.window_attention};
}

riffle_status riffle_product_rate(riffle_context* context, double* rate) {
  if (rate) *rate = 0;
  return on_context(context, [&] {
    require(rate, "rate");
    *rate = context->engine->product_rate();
  });
}

riffle_status riffle_set_prefill_share(riffle_context* context, float share) {
  return on_context(context, [&] { context->engine->set_prefill_share(share); });
}

riffle_status riffle_profile_step(riffle_context* context, riffle_session* const* sessions,
                                  const int32_t* tokens, size_t n_sessions,
                                  const riffle_info** timing) {
  if (timing) *timing = nullptr;
  return on_context(context, [&] {
    require(tokens, "tokens");
    require(timing, "timing");
    const auto sequences = sequences_of(context, sessions, n_sessions);
    StepTiming all;
    context->engine->profile_step(sequences, {tokens, n_sessions}, all);
    context->timing = facts_of(all);
    *timing = &context->timing;
  });
}

riffle_status riffle_set_row_report(riffle_context* context, riffle_row_report_fn report,
                                    void* user, bool with_coverage) {
  return on_context(context, [&] {
    if (!report) {
      context->engine->set_row_report({}, false);
      return;
    }
    const Config* const config = &context->model->model->config;
    context->engine->set_row_report(
        [=](const riffle_session* session, const Sequence& s, int layer, int kv_head,
            const RowReport& r) {
          const int group = config->heads(layer) / config->kv_heads(layer);
          const riffle_row_report t{session,       static_cast<int32_t>(s.kv.n_tokens),
                                    layer,         kv_head,
                                    r.n_blocks,    r.n_read,
                                    r.n_tokens,    r.tokens_read,
                                    r.index_bytes, group,
                                    r.coverage,    r.blocks};
          report(user, &t);
        },
        with_coverage);
  });
}

}  // extern "C"
