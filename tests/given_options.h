// The functions of riffle.h that take options or give reports, for tests that hold these as the
// library does (util/options.h).
#pragma once
#include <vector>

#include "api/api_handles.h"
#include "engine/plan/memory_plan.h"
#include "engine/schedule/scheduler.h"
#include "tests/option_text.h"
#include "util/options.h"
#include "util/stats.h"

namespace riffle::test {

inline riffle_options given(const ContextOptions& options) {
  riffle_options out;
  out.context = options;
  return out;
}
inline riffle_options given(const GenerateOptions& options) {
  riffle_options out;
  out.answer = options;
  return out;
}

inline riffle_status context_create(riffle_model* model, const ContextOptions* options,
                                    riffle_context** context, char* err, size_t err_size) {
  const riffle_options o = given(*options);
  return riffle_context_create(model, &o, context, err, err_size);
}

// The plan itself, of which riffle_plan_memory hands over the facts.
inline riffle_status plan_memory(riffle_model* model, const ContextOptions* options,
                                 MemoryPlan* plan, char* err, size_t err_size) {
  *plan = MemoryPlan();
  const auto planned = [&] {
    ResolvedOptions resolved = resolve_options(model->model->config, *options);
    riffle::plan_memory(*model->model, resolved, *plan);
  };
  const riffle_status status = guarded(err, err_size, planned, options->setting_name);
  plan->context_note = name_settings(plan->context_note, options->setting_name);
  return status;
}

inline riffle_status set_selection(riffle_context* context, const Selection* selection) {
  riffle_options o;
  o.context.selection = *selection;
  return riffle_context_select(context, &o);
}

inline riffle_status scheduler_create(riffle_context* context, const SchedulerOptions* options,
                                      void* user, riffle_scheduler** scheduler) {
  riffle_options o;
  if (options) o.scheduler = *options;
  return riffle_scheduler_create(context, &o, user, scheduler);
}

inline riffle_status scheduler_submit(riffle_scheduler* scheduler, const int32_t* tokens,
                                      size_t n_tokens, const GenerateOptions* options,
                                      uint64_t* id) {
  const riffle_options o = options ? given(*options) : riffle_options();
  return riffle_scheduler_submit(scheduler, tokens, n_tokens, &o, id);
}

inline riffle_status scheduler_step(riffle_scheduler* scheduler, Iteration* iteration) {
  const riffle_status status = riffle_scheduler_step(scheduler);
  if (!iteration) return status;
  const riffle_info* const info = riffle_scheduler_iteration(scheduler);
  const auto number = [&](const char* name, auto& out) {
    out = static_cast<std::remove_reference_t<decltype(out)>>(riffle_info_number(info, name));
  };
  number("n_waiting", iteration->n_waiting);
  number("n_prefilling", iteration->n_prefilling);
  number("n_decoding", iteration->n_decoding);
  number("decode_rows", iteration->decode_rows);
  number("skipped", iteration->skipped);
  number("prefill_token_layers", iteration->prefill_token_layers);
  number("prefill_pairs", iteration->prefill_pairs);
  number("prefill_kv_blocks", iteration->prefill_kv_blocks);
  number("working_set", iteration->working_set);
  number("available", iteration->available);
  number("blocks_loaded", iteration->blocks_loaded);
  number("blocks_read", iteration->blocks_read);
  number("seconds", iteration->seconds);
  number("decode_seconds", iteration->decode_seconds);
  return status;
}

inline riffle_status generate_many(riffle_context* context, riffle_session* const* sessions,
                                   const GenerateOptions* options, size_t n_sessions,
                                   riffle_token_fn callback, void* user, riffle_result* results) {
  std::vector<riffle_options> all;
  for (size_t i = 0; i < n_sessions; ++i)
    all.push_back(options ? given(options[i]) : riffle_options());
  std::vector<const riffle_options*> pointers;
  for (const riffle_options& o : all) pointers.push_back(&o);
  return riffle_generate_many(context, sessions, pointers.data(), n_sessions, callback, user,
                              results);
}

inline riffle_status generate(riffle_session* session, const GenerateOptions* options,
                              riffle_token_fn callback, void* user, riffle_result* result) {
  const riffle_options o = options ? given(*options) : riffle_options();
  return riffle_generate(session, &o, callback, user, result);
}

inline riffle_status get_stats(const riffle_context* context, Stats* stats) {
  *stats = context->engine->stats();
  return RIFFLE_OK;
}

inline riffle_status session_get_stats(const riffle_session* session, Stats* stats) {
  *stats = session->context->engine->stats(*session->sequence);
  return RIFFLE_OK;
}

inline int32_t model_number(const riffle_model* model, const char* name) {
  return static_cast<int32_t>(riffle_info_number(riffle_model_info(model), name));
}
inline std::string model_text(const riffle_model* model, const char* name) {
  return riffle_info_text(riffle_model_info(model), name);
}

}  // namespace riffle::test
