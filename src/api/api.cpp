// Functions of riffle.h, riffle_steps.h and riffle_tools.h: contexts, memory plans, sessions,
// generation and statistics. Other files of this folder have the rest.
#include <algorithm>

#include "api/api_handles.h"
#include "engine/generate.h"
#include "engine/plan/sharing.h"
#include "engine/prefill_pieces.h"
#include "import/read_config.h"
#include "model/finite_weights.h"
#include "util/cpu_limits.h"
#include "util/memory_limits.h"
#include "util/settings.h"

using namespace riffle;

extern "C" {

const char* riffle_version(void) { return RIFFLE_VERSION; }
int32_t riffle_usable_cpus(void) {
  try {
    return CpuLimits().processors();
  } catch (...) {  // no memory to read the files with the limits
    return 1;
  }
}

const char* riffle_status_name(riffle_status status) {
  switch (status) {
    case RIFFLE_OK: return "ok";
    case RIFFLE_BAD_ARGUMENT: return "bad argument";
    case RIFFLE_BAD_MODEL: return "bad model";
    case RIFFLE_UNSUPPORTED: return "unsupported";
    case RIFFLE_IO: return "i/o error";
    case RIFFLE_OUT_OF_MEMORY: return "out of memory";
    case RIFFLE_CONTEXT_FULL: return "context full";
    case RIFFLE_NO_SLOT: return "no slot";
    case RIFFLE_ABORTED: return "aborted";
    case RIFFLE_BAD_TEXT: return "bad text";
    case RIFFLE_BUFFER_TOO_SMALL: return "buffer too small";
    case RIFFLE_INTERNAL: return "internal error";
    case RIFFLE_DEVICE_LOST: return "device lost";
    case RIFFLE_BAD_SESSION: return "bad session";
    case RIFFLE_FILE_CHANGED: return "file changed";
  }
  return "unknown status";
}

// ---- context

riffle_status riffle_plan_memory(riffle_model* model, const riffle_options* options,
                                 riffle_info** plan, char* err, size_t err_size) {
  if (plan) *plan = nullptr;
  const ContextOptions& o = options_or_defaults(options).context;
  const auto planned = [&] {
    require(model, "model");
    require(plan, "plan");
    ResolvedOptions resolved = resolve_options(model->model->config, o);
    MemoryPlan all;
    const auto hand_over = [&] {
      const Sharing sharing = plan_sharing(*model->model, o, all);
      all.usual_sessions = sharing.sessions;
      all.shared_host_mem = sharing.host_mem;
      all.context_note = name_settings(all.context_note, o.setting_name);
      *plan = std::make_unique<riffle_info>(facts_of(all)).release();
    };
    try {
      plan_memory(*model->model, resolved, all);
    } catch (const Error& e) {  // a plan that does not fit is returned too
      if (e.status() == RIFFLE_OUT_OF_MEMORY || e.status() == RIFFLE_NO_SLOT) hand_over();
      throw;
    }
    hand_over();
  };
  return guarded(err, err_size, planned, o.setting_name);
}

// Creates the engine. The first time, it also checks all weights for infinities and NaN. A GPU may
// read the weights during the check. A CPU may measure its kernels then, so the check ends first.
// Weights that memory cannot hold are not checked, since they would be read from the disk twice.
// With them, only logits that are not finite show the damage.
static std::unique_ptr<Engine> engine_of(riffle_model& model, ResolvedOptions resolved) {
  const bool check =
      !model.weights_checked && model.model->resident_bytes() <= MemoryLimits().available();
  std::optional<FiniteCheck> finite;
  if (check) finite.emplace(*model.model, resolved.options.n_threads);
  if (check && !resolved.device_memory) finite->finish();
  auto engine = std::make_unique<Engine>(*model.model, std::move(resolved));
  if (check) finite->finish();
  model.weights_checked |= check;
  return engine;
}

riffle_status riffle_context_create(riffle_model* model, const riffle_options* options,
                                    riffle_context** context, char* err, size_t err_size) {
  if (context) *context = nullptr;
  const ContextOptions& o = options_or_defaults(options).context;
  const auto create = [&] {
    require(model, "model");
    require(context, "context");
    auto c = std::make_unique<riffle_context>();
    c->model = model;
    // Weights without data get their bytes here, if the device reads them from host memory and the
    // plan allows it.
    const std::lock_guard<std::mutex> lock(model->weights_lock);
    ResolvedOptions resolved = resolve_options(model->model->config, o);
    MemoryPlan plan;
    plan_memory(*model->model, resolved, plan);
    if (!resolved.device_memory || resolved.host_expert_layers > 0) materialize(*model->model);
    c->setting_name = o.setting_name;
    c->engine = engine_of(*model, std::move(resolved));
    *context = c.release();
  };
  return guarded(err, err_size, create, o.setting_name);
}

void riffle_context_free(riffle_context* context) { delete context; }

const char* riffle_context_error(const riffle_context* context) {
  return context ? context->error : "context is NULL";
}

size_t riffle_context_length(const riffle_context* context) {
  return context ? static_cast<size_t>(context->engine->n_ctx()) : 0;
}

const char* riffle_context_notice(const riffle_context* context) {
  const char* text = "";
  if (context)
    guarded(nullptr, 0, [&] {
      context->notice = name_settings(context->engine->notice(), context->setting_name);
      text = context->notice.c_str();
    });
  return text;
}

static void set_selection(riffle_context& context, const Selection& selection) {
  if (context.scheduler)
    fail(RIFFLE_BAD_ARGUMENT,
         "the context has a scheduler, which runs with the current selection: free it first");
  context.engine->set_selection(selection);
}

riffle_status riffle_context_set(riffle_context* context, const char* name, const char* value) {
  return on_context(context, [&] {
    const Setting& s = known_setting(name);
    if (s.options != OptionsKind::SELECTION) {
      const char* when = "each answer takes it (riffle_generate, riffle_scheduler_submit)";
      if (s.options == OptionsKind::CONTEXT) when = "set it before riffle_context_create";
      if (s.options == OptionsKind::MODEL) when = "set it before riffle_model_load";
      if (s.options == OptionsKind::SCHEDULER) when = "set it before riffle_scheduler_create";
      if (s.options == OptionsKind::CHAT) when = "each prompt takes it (riffle_chat_prompt)";
      if (s.options == OptionsKind::QUANTIZE) when = "riffle_quantize takes it";
      fail(RIFFLE_BAD_ARGUMENT, "`%s` cannot be changed in a context: %s", s.id, when);
    }
    require(value, "value");
    Selection selection = context->engine->selection();
    set_setting_text(s, &selection, value);
    set_selection(*context, selection);
  });
}

riffle_status riffle_context_select(riffle_context* context, const riffle_options* options) {
  return on_context(
      context, [&] { set_selection(*context, options_or_defaults(options).context.selection); });
}

void riffle_abort(riffle_context* context, bool abort) {
  if (context) context->engine->request_abort(abort);
}

// ---- sessions

riffle_status riffle_session_create(riffle_context* context, riffle_session** session) {
  if (session) *session = nullptr;
  return on_context(context, [&] {
    require(session, "session");
    auto s = std::make_unique<riffle_session>();
    s->context = context;
    s->sequence = context->engine->create();
    s->sequence->session = s.get();
    *session = s.release();
  });
}

riffle_status riffle_session_fork(const riffle_session* session, size_t n_tokens,
                                  riffle_session** fork) {
  if (fork) *fork = nullptr;
  if (!session) return RIFFLE_BAD_ARGUMENT;
  return on_context(session->context, [&] {
    require(fork, "fork");
    require_length(*session, n_tokens);
    auto s = std::make_unique<riffle_session>();
    s->context = session->context;
    s->sequence =
        session->context->engine->fork(*session->sequence, static_cast<int64_t>(n_tokens));
    s->sequence->session = s.get();
    *fork = s.release();
  });
}

void riffle_session_free(riffle_session* session) {
  if (!session) return;
  session->context->engine->destroy(*session->sequence);
  delete session;
}

size_t riffle_session_length(const riffle_session* session) {
  return session ? session->sequence->tokens.size() : 0;
}

size_t riffle_session_reach(const riffle_session* session, size_t n_tokens) {
  if (!session) return 0;
  const size_t most = std::min(n_tokens, session->sequence->tokens.size());
  return static_cast<size_t>(
      session->context->engine->reach(*session->sequence, static_cast<int64_t>(most)));
}

riffle_status riffle_session_truncate(riffle_session* session, size_t n_tokens) {
  return on_session(session, [&] {
    require_length(*session, n_tokens);
    session->context->engine->truncate(*session->sequence, static_cast<int64_t>(n_tokens));
  });
}

riffle_status riffle_prefill(riffle_session* session, const int32_t* tokens, size_t n_tokens,
                             riffle_progress_fn progress, void* user) {
  return on_session(session, [&] {
    require(tokens || !n_tokens, "tokens");
    session->context->engine->prefill(*session->sequence, {tokens, n_tokens}, nullptr,
                                      progress_of(RIFFLE_PHASE_PREFILL, progress, user));
  });
}

riffle_status riffle_prefill_to(riffle_session* session, const int32_t* tokens, size_t n_tokens,
                                riffle_progress_fn progress, void* user) {
  return on_session(session, [&] {
    require(tokens || !n_tokens, "tokens");
    Engine& engine = *session->context->engine;
    Sequence& s = *session->sequence;
    size_t same = 0;
    while (same < n_tokens && same < s.tokens.size() && s.tokens[same] == tokens[same]) ++same;
    if (same == n_tokens && !engine.has_logits(s, static_cast<int64_t>(same)))
      --same;  // logits come from running a token
    // Checked before the session is cut, so that a refused prompt changes nothing. A prompt that
    // the session holds needs no run, so a scheduler's run does not stop it.
    if (same < n_tokens || n_tokens == 0) engine.require_prompt(0, {tokens, n_tokens});
    same = static_cast<size_t>(engine.reach(s, static_cast<int64_t>(same)));
    engine.truncate(s, static_cast<int64_t>(same));
    if (same < n_tokens)
      prefill_in_pieces(engine, s, {tokens + same, n_tokens - same},
                        progress_of(RIFFLE_PHASE_PREFILL, progress, user));
  });
}

riffle_status riffle_step(riffle_context* context, riffle_session* const* sessions,
                          const int32_t* tokens, size_t n_sessions) {
  return on_context(context, [&] {
    require(tokens, "tokens");
    const auto sequences = sequences_of(context, sessions, n_sessions);
    if (context->engine->take_abort()) fail(RIFFLE_ABORTED, "aborted before the step");
    context->engine->step(sequences, {tokens, n_sessions});
  });
}

const float* riffle_logits(const riffle_session* session) {
  if (!session || !session->sequence->logits.any()) return nullptr;
  riffle_context& c = *session->context;
  const float* logits = nullptr;
  ErrorText error = "";
  const riffle_status status = guarded(
      error, sizeof error, [&] { logits = c.engine->own_logits(*session->sequence).data(); },
      c.setting_name);
  if (status != RIFFLE_OK) copy_text(c.error, sizeof c.error, error);
  return logits;
}

// ---- generation

riffle_status riffle_generate(riffle_session* session, const riffle_options* options,
                              riffle_token_fn callback, void* user, riffle_result* result) {
  if (!session) return RIFFLE_BAD_ARGUMENT;
  return riffle_generate_many(session->context, &session, &options, 1, callback, user, result);
}

riffle_status riffle_generate_many(riffle_context* context, riffle_session* const* sessions,
                                   const riffle_options* const* options, size_t n_sessions,
                                   riffle_token_fn callback, void* user, riffle_result* results) {
  return on_context(context, [&] {
    (void)tokenizer_of(*context->model);
    const auto sequences = sequences_of(context, sessions, n_sessions);
    std::vector<GenerateOptions> all;
    for (size_t i = 0; i < n_sessions; ++i) {
      all.push_back(options_or_defaults(options ? options[i] : nullptr).answer);
      check_generate_options(all.back());
    }
    std::vector<riffle_result> out(n_sessions);
    generate(*context->engine, sequences, all, callback, user, out);
    if (results) std::copy(out.begin(), out.end(), results);
  });
}

// ---- statistics

const riffle_info* riffle_context_stats(riffle_context* context) {
  const bool filled = on_context(context, [&] {
                        context->stats = facts_of(context->engine->stats());
                      }) == RIFFLE_OK;
  return filled ? &context->stats : nullptr;
}

const riffle_info* riffle_session_stats(riffle_session* session) {
  const bool filled = on_session(session, [&] {
                        session->stats =
                            facts_of(session->context->engine->stats(*session->sequence));
                      }) == RIFFLE_OK;
  return filled ? &session->stats : nullptr;
}

void riffle_reset_stats(riffle_context* context) {
  if (context) context->engine->reset_stats();
}

}  // extern "C"
