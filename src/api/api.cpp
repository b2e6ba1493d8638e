// riffle.h: selections, contexts, sessions, generation and statistics. The other files of this
// folder have the rest.
#include <algorithm>

#include "api/api_handles.h"
#include "api/generate_options.h"
#include "api/struct_sizes.h"
#include "engine/generate.h"
#include "engine/prefill_pieces.h"
#include "import/read_config.h"
#include "model/finite_weights.h"
#include "util/cpu_limits.h"
#include "util/memory_limits.h"
#include "util/settings.h"

using namespace riffle;

namespace {

ContextOptions or_defaults(const riffle_context_options* options) {
  const auto o = known(options, riffle_context_defaults_sized, "context options");
  check_member(o.selection, "selection");
  return std::bit_cast<ContextOptions>(o);
}

// What the texts call settings; nothing for options of a size that is refused.
riffle_setting_name_fn names_of(const riffle_context_options* options) {
  return options && options->struct_size >= kFirstSize<riffle_context_options>
             ? options->setting_name
             : nullptr;
}

}  // namespace

extern "C" {

const char* riffle_version(void) { return RIFFLE_VERSION; }
int32_t riffle_usable_cpus(void) {
  try {
    return CpuLimits().processors();
  } catch (...) {  // no memory for the files that tell
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

// ---- selection

void riffle_selection_defaults_sized(riffle_selection* s, size_t struct_size) {
  give_defaults(s, struct_size,
                [](riffle_selection& all) { set_defaults(RIFFLE_OPTIONS_SELECTION, &all); });
}

// ---- context

void riffle_context_defaults_sized(riffle_context_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_context_options& all) {
    set_defaults(RIFFLE_OPTIONS_CONTEXT, &all);
    riffle_selection_defaults(&all.selection);
  });
}

riffle_status riffle_plan_memory(riffle_model* model, const riffle_context_options* options,
                                 riffle_plan* plan, char* err, size_t err_size) {
  const riffle_setting_name_fn name = names_of(options);
  return guarded(
      err, err_size,
      [&] {
        require(model, "model");
        require(plan, "plan");
        check_size<riffle_plan>(plan->struct_size, "plan");
        ResolvedOptions resolved = resolve_options(model->model->config, or_defaults(options));
        MemoryPlan all{};
        try {
          plan_memory(*model->model, resolved, all);
        } catch (...) {
          give(plan, std::bit_cast<riffle_plan>(all), "plan");  // what does not fit is told too
          throw;
        }
        const std::string note = name_settings(all.context_note, name);
        copy_text(all.context_note, sizeof all.context_note, note);
        give(plan, std::bit_cast<riffle_plan>(all), "plan");
      },
      name);
}

// Creates the engine. The first time, it also checks all weights for infinities and NaN. A GPU may
// read the weights during the check. A CPU may measure its kernels then, so the check ends first.
// Weights that memory cannot hold are not checked, since they would be read from the disk twice.
// With them, only logits that are not finite show the damage.
static std::unique_ptr<Engine> engine_of(riffle_model& model, ResolvedOptions resolved) {
  const bool check =
      !model.weights_checked && model.model->weight_bytes <= MemoryLimits().available();
  std::optional<FiniteCheck> finite;
  if (check) finite.emplace(*model.model, resolved.options.n_threads);
  if (check && resolved.options.device != DeviceKind::CUDA) finite->finish();
  auto engine = std::make_unique<Engine>(*model.model, std::move(resolved));
  if (check) finite->finish();
  model.weights_checked |= check;
  return engine;
}

riffle_status riffle_context_create(riffle_model* model, const riffle_context_options* options,
                                    riffle_context** context, char* err, size_t err_size) {
  if (context) *context = nullptr;
  const riffle_setting_name_fn name = names_of(options);
  const auto create = [&] {
    require(model, "model");
    require(context, "context");
    auto c = std::make_unique<riffle_context>();
    c->model = model;
    // Weights without data get their bytes here, if the device reads them from host memory and the
    // plan allows it.
    const std::lock_guard<std::mutex> lock(model->weights_lock);
    ResolvedOptions resolved = resolve_options(model->model->config, or_defaults(options));
    MemoryPlan plan{};
    plan_memory(*model->model, resolved, plan);
    if (resolved.options.device == DeviceKind::CPU || resolved.options.device == DeviceKind::EMU ||
        resolved.host_expert_layers > 0)
      materialize(*model->model);
    c->setting_name = name;
    c->engine = engine_of(*model, std::move(resolved));
    *context = c.release();
  };
  return guarded(err, err_size, create, name);
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

riffle_status riffle_set_selection(riffle_context* context, const riffle_selection* selection) {
  return on_context(context, [&] {
    require(selection, "selection");
    const riffle_selection s = known(selection, riffle_selection_defaults_sized, "selection");
    check_member(s, "selection");
    if (context->scheduler)
      fail(RIFFLE_BAD_ARGUMENT,
           "the context's scheduler runs with the selection in force: free it first");
    context->engine->set_selection(std::bit_cast<Selection>(s));
  });
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
    if (same == n_tokens && (same < s.tokens.size() || !s.logits.any()))
      --same;  // logits come from running a token
    // Before the session is cut: a prompt that is refused changes nothing. One that the session
    // holds needs no run, so a scheduler's does not stop it.
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

void riffle_sampling_defaults_sized(riffle_sampling* s, size_t struct_size) {
  give_defaults(s, struct_size,
                [](riffle_sampling& all) { set_defaults(RIFFLE_OPTIONS_SAMPLING, &all); });
}

void riffle_generate_defaults_sized(riffle_generate_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_generate_options& all) {
    set_defaults(RIFFLE_OPTIONS_GENERATE, &all);
    riffle_sampling_defaults(&all.sampling);
  });
}

riffle_status riffle_generate(riffle_session* session, const riffle_generate_options* options,
                              riffle_token_fn callback, void* user, riffle_result* result) {
  if (!session) return RIFFLE_BAD_ARGUMENT;
  return riffle_generate_many(session->context, &session, options, 1, callback, user, result);
}

riffle_status riffle_generate_many(riffle_context* context, riffle_session* const* sessions,
                                   const riffle_generate_options* options, size_t n_sessions,
                                   riffle_token_fn callback, void* user, riffle_result* results) {
  return on_context(context, [&] {
    (void)tokenizer_of(*context->model);
    const auto sequences = sequences_of(context, sessions, n_sessions);
    std::vector<GenerateOptions> all(n_sessions);
    // The caller's structs are as far apart as its header makes them large.
    const char* next = reinterpret_cast<const char*>(options);
    for (GenerateOptions& one : all) {
      one = known_generate_options(reinterpret_cast<const riffle_generate_options*>(next));
      check_generate_options(one);
      if (next) next += options->struct_size;
    }
    std::vector<riffle_result> out(n_sessions);
    generate(*context->engine, sequences, all, callback, user, out);
    if (results) std::copy(out.begin(), out.end(), results);
  });
}

// ---- statistics

riffle_status riffle_get_stats(const riffle_context* context, riffle_stats* stats) {
  if (!context || !stats) return RIFFLE_BAD_ARGUMENT;
  return guarded(nullptr, 0, [&] {
    give(stats, std::bit_cast<riffle_stats>(context->engine->stats()), "stats");
  });
}

riffle_status riffle_session_get_stats(const riffle_session* session, riffle_stats* stats) {
  if (!session || !stats) return RIFFLE_BAD_ARGUMENT;
  return guarded(nullptr, 0, [&] {
    give(stats, std::bit_cast<riffle_stats>(session->context->engine->stats(*session->sequence)),
         "stats");
  });
}

void riffle_reset_stats(riffle_context* context) {
  if (context) context->engine->reset_stats();
}

}  // extern "C"
