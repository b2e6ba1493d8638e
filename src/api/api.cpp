// riffle.h over the engine: the border that no exception crosses.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>

#include "api/api_handles.h"
#include "engine/generate.h"
#include "model/chat/chat_template.h"
#include "model/config.h"
#include "model/quantize/quantize_model.h"
#include "model/synthetic_model.h"
#include "model/text/tokenizer.h"
#include "select/selection_fields.h"
#include "util/error.h"

using namespace riffle;

namespace {

const Tokenizer& tokenizer_of(const riffle_model& m) {
  if (!m.model->tokenizer) fail(RIFFLE_UNSUPPORTED, "this model has no tokenizer");
  return *m.model->tokenizer;
}

void name_parts(riffle_model& m) {
  const Weights& w = m.model->weights;
  m.weight_type = dtype_info(w.layers.empty() ? w.embedding.type : w.layers[0].wq.type).name;
  m.rope_scaling = rope_scaling_text(m.model->config.rope);
}

riffle_context_options or_defaults(const riffle_context_options* options) {
  riffle_context_options o;
  riffle_context_defaults(&o);
  if (options) {
    require_size(*options,
                 "context options");  // before it is copied: the caller's struct may be shorter
    o = *options;
  }
  return o;
}

std::function<bool(double, double)> progress_of(riffle_phase phase, riffle_progress_fn progress,
                                                void* user) {
  if (!progress) return {};
  return [=](double done, double total) {
    const riffle_progress p{phase, done, total};
    return progress(user, &p);
  };
}

}  // namespace

extern "C" {

const char* riffle_version(void) { return RIFFLE_VERSION; }

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
  }
  return "unknown status";
}

// ---- defaults

void riffle_model_defaults(riffle_model_options* o) {
  if (!o) return;
  *o = {};
  o->struct_size = sizeof *o;
}

// Chosen by measurement: tools/bench/results/shipped-model.md.
void riffle_selection_defaults(riffle_selection* s) {
  if (!s) return;
  *s = {};
  s->struct_size = sizeof *s;
  s->selector = RIFFLE_SELECTOR_SHARE;
  s->digest = RIFFLE_DIGEST_CUBOID_MEAN;
  s->gqa = RIFFLE_GQA_MEAN;
  s->stop = RIFFLE_STOP_PAPER;
  s->epsilon = 0.9f;
  s->microbatch = 16;
  s->budget = 0.1f;
  s->sink_blocks = 1;
  s->window_blocks = 2;
  s->base = RIFFLE_BASE_TOPK;
  s->base_budget = 0.25f;
  s->top_p = 0.95f;
  s->share = 0.002f;
  s->select_tokens = 2048;
  s->init_tokens = 128;
  s->local_tokens = 512;
  s->vote_scale = 1;
  s->cache_threshold = 0.9f;
  s->top_tokens = 0.02f;
  s->alpha = 0.2f;
  s->decay = 0.95f;
  s->bypass = 0.85f;
}

riffle_status riffle_selection_get_field(size_t index, riffle_selection_field* field) {
  if (!field || field->struct_size != sizeof *field || index >= selection_fields().size())
    return RIFFLE_BAD_ARGUMENT;
  return guarded(nullptr, 0, [&] {
    const SelectionField& f = selection_fields()[index];
    field->name = f.name;
    field->whole = f.whole;
    field->low = f.low;
    field->high = f.high;
    field->above_low = f.above_low;
    field->below_high = f.below_high;
    snprintf(field->range, sizeof field->range, "%s", f.range().c_str());
    field->selectors = f.selectors;
    field->bases = f.bases;
  });
}

void riffle_attention_trace_defaults(riffle_attention_trace* t) {
  if (!t) return;
  *t = {};
  t->struct_size = sizeof *t;
  t->sparsity = 0.05f;
  t->weight = 0.95f;
  t->overlap = 0.88f;
}

void riffle_context_defaults(riffle_context_options* o) {
  if (!o) return;
  *o = {};
  o->struct_size = sizeof *o;
  o->block_size = 16;
  riffle_selection_defaults(&o->selection);
}

void riffle_sampling_defaults(riffle_sampling* s) {
  if (!s) return;
  *s = {};
  s->struct_size = sizeof *s;
  s->temperature = 0.8f;
  s->top_k = 40;
  s->top_p = 0.95f;
  s->min_p = 0.05f;
}

void riffle_generate_defaults(riffle_generate_options* o) {
  if (!o) return;
  *o = {};
  o->struct_size = sizeof *o;
  o->max_tokens = -1;
  riffle_sampling_defaults(&o->sampling);
}

// ---- model

riffle_status riffle_model_load(const char* path, const riffle_model_options* options,
                                riffle_model** model, char* err, size_t err_size) {
  if (model) *model = nullptr;
  return guarded(err, err_size, [&] {
    require(path, "path");
    require(model, "model");
    riffle_model_options o;
    riffle_model_defaults(&o);
    if (options) {
      require_size(*options, "model options");
      o = *options;
    }
    auto m = std::make_unique<riffle_model>();
    // Bad names are found before the work of loading.
    if (o.chat_template) m->chat = chat_format_named(o.chat_template);
    const WeightMix* mix = o.weights ? &weight_mix_named(o.weights) : nullptr;
    m->model = load_model(path, progress_of(RIFFLE_PHASE_LOAD, o.progress, o.progress_user));
    if (mix)
      quantize_weights(*m->model, *mix, o.n_threads,
                       progress_of(RIFFLE_PHASE_QUANTIZE, o.progress, o.progress_user));
    if (const Tokenizer* tokenizer = m->model->tokenizer.get()) {
      if (!o.chat_template) m->chat = recognise_chat_template(m->model->chat_template, *tokenizer);
      if (m->chat)
        for (const int32_t id : chat_end_ids(*tokenizer, *m->chat))
          add_end_token(id, &m->model->config);
    }
    name_parts(*m);
    *model = m.release();
  });
}

riffle_status riffle_model_synthetic(const char* shape, const char* weight_type,
                                     riffle_model** model, char* err, size_t err_size) {
  if (model) *model = nullptr;
  return guarded(err, err_size, [&] {
    require(shape, "shape");
    require(weight_type, "weight_type");
    require(model, "model");
    auto m = std::make_unique<riffle_model>();
    m->model = synthetic_model(shape, weight_type_of(weight_type));
    name_parts(*m);
    *model = m.release();
  });
}

const char* riffle_weight_type_name(size_t index) {
  return index < weight_mixes().size() ? weight_mixes()[index].name : nullptr;
}

void riffle_quantize_defaults(riffle_quantize_options* o) {
  if (!o) return;
  *o = {};
  o->struct_size = sizeof *o;
}

riffle_status riffle_quantize(const char* path, const char* out,
                              const riffle_quantize_options* options,
                              riffle_quantize_result* result, char* err, size_t err_size) {
  return guarded(err, err_size, [&] {
    require(path, "path");
    require(out, "out");
    riffle_quantize_options o;
    riffle_quantize_defaults(&o);
    if (options) {
      require_size(*options, "quantize options");
      o = *options;
    }
    if (result) require_size(*result, "quantize result");
    const QuantizedFile q =
        quantize_file(path, out, weight_mix_named(o.type ? o.type : "q4_k_m"), o.n_threads,
                      o.overwrite, progress_of(RIFFLE_PHASE_QUANTIZE, o.progress, o.progress_user));
    if (!result) return;
    result->n_params = q.n_params;
    result->weight_bytes_in = q.weight_bytes_in;
    result->weight_bytes_out = q.weight_bytes_out;
    result->file_bytes = q.file_bytes;
    result->n_fallback = q.sums.n_fallback;
    result->relative_error = q.sums.norm > 0 ? std::sqrt(q.sums.error / q.sums.norm) : 0;
  });
}

void riffle_model_free(riffle_model* model) { delete model; }

const char* riffle_model_error(const riffle_model* model) {
  return model ? model->error : "model is NULL";
}

riffle_status riffle_model_get_info(const riffle_model* model, riffle_model_info* info) {
  if (!model || !info || info->struct_size != sizeof *info) return RIFFLE_BAD_ARGUMENT;
  const Model& m = *model->model;
  const Config& c = m.config;
  info->name = c.name.c_str();
  info->architecture = c.architecture.c_str();
  info->format = m.format.c_str();
  info->weight_type = model->weight_type.c_str();
  info->dim = c.dim;
  info->hidden_dim = c.hidden_dim;
  info->head_dim = c.head_dim;
  info->n_layers = c.n_layers;
  info->n_heads = c.n_heads;
  info->n_kv_heads = c.n_kv_heads;
  info->vocab_size = c.vocab_size;
  info->n_ctx_train = c.n_ctx;
  info->rope_theta = c.rope_theta;
  info->norm_eps = c.norm_eps;
  info->tied_output = c.tied_output;
  info->bos_id = c.bos_id;
  info->eos_id = c.eos_id;
  info->n_params = m.n_params;
  info->weight_bytes = m.weight_bytes;
  info->chat_template = m.chat_template.c_str();
  info->rope_scaling = model->rope_scaling.c_str();
  info->sliding_window = c.sliding_window;
  info->chat_template_name = model->chat ? model->chat->family->name : "";
  return RIFFLE_OK;
}

// ---- tokens

riffle_status riffle_tokenize(riffle_model* model, const char* text, size_t text_len,
                              uint32_t flags, int32_t* tokens, size_t capacity, size_t* n_tokens) {
  return on_model(model, [&] {
    require(text || !text_len, "text");
    require(n_tokens, "n_tokens");
    const auto ids = tokenizer_of(*model).encode(
        {text ? text : "", text_len}, flags & RIFFLE_TOKENIZE_BOS, flags & RIFFLE_TOKENIZE_SPECIAL);
    hand_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

riffle_status riffle_detokenize(riffle_model* model, const int32_t* tokens, size_t n_tokens,
                                char* text, size_t capacity, size_t* text_len) {
  return on_model(model, [&] {
    require(tokens || !n_tokens, "tokens");
    require(text_len, "text_len");
    const Tokenizer& tokenizer = tokenizer_of(*model);
    for (size_t i = 0; i < n_tokens; ++i)
      if (!tokenizer.piece(tokens[i]))
        fail(RIFFLE_BAD_ARGUMENT, "tokens[%zu] is %d, which is not in the vocabulary", i,
             tokens[i]);
    const std::string out = tokenizer.decode(tokens, n_tokens);
    hand_out(out.data(), out.size(), text, capacity, text_len);
  });
}

const char* riffle_token_piece(const riffle_model* model, int32_t token) {
  return model && model->model->tokenizer ? model->model->tokenizer->piece(token) : nullptr;
}

bool riffle_is_end_token(const riffle_model* model, int32_t token) {
  return model && model->model->config.ends_answer(token);
}

const char* riffle_chat_template_name(size_t index) {
  return index < chat_families().size() ? chat_families()[index].name : nullptr;
}

riffle_status riffle_chat_tokens(riffle_model* model, const riffle_message* messages,
                                 size_t n_messages, int32_t* tokens, size_t capacity,
                                 size_t* n_tokens) {
  return on_model(model, [&] {
    require(messages || !n_messages, "messages");
    require(n_tokens, "n_tokens");
    std::vector<ChatMessage> list;
    for (size_t i = 0; i < n_messages; ++i) {
      require(messages[i].role, "a message's role");
      require(messages[i].content, "a message's content");
      list.push_back({messages[i].role, messages[i].content});
    }
    const Tokenizer& tokenizer = tokenizer_of(*model);
    if (!model->chat) {
      fail(RIFFLE_UNSUPPORTED,
           "%s; --chat-template NAME (riffle_model_options.chat_template) sets one: %s",
           model->model->chat_template.empty()
               ? "the model carries no chat template"
               : "the model's chat template is none that riffle knows",
           chat_format_names().c_str());
    }
    const auto ids = chat_tokens(tokenizer, *model->chat, list);
    hand_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

// ---- context

riffle_status riffle_plan_memory(riffle_model* model, const riffle_context_options* options,
                                 riffle_plan* plan, char* err, size_t err_size) {
  return guarded(err, err_size, [&] {
    require(model, "model");
    require(plan, "plan");
    require_size(*plan, "plan");
    ResolvedOptions resolved = resolve_options(model->model->config, or_defaults(options));
    plan_memory(*model->model, resolved, *plan);
  });
}

riffle_status riffle_context_create(riffle_model* model, const riffle_context_options* options,
                                    riffle_context** context, char* err, size_t err_size) {
  if (context) *context = nullptr;
  return guarded(err, err_size, [&] {
    require(model, "model");
    require(context, "context");
    auto c = std::make_unique<riffle_context>();
    c->model = model;
    // Synthetic weights get their bytes here, if the device reads them from host memory and the
    // plan allows it.
    const std::lock_guard<std::mutex> lock(model->weights_lock);
    ResolvedOptions resolved = resolve_options(model->model->config, or_defaults(options));
    riffle_plan plan{};
    plan_memory(*model->model, resolved, plan);
    if (resolved.options.device == RIFFLE_DEVICE_CPU ||
        resolved.options.device == RIFFLE_DEVICE_EMU)
      materialize(*model->model);
    c->engine = std::make_unique<Engine>(*model->model, std::move(resolved));
    *context = c.release();
  });
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
  if (context) guarded(nullptr, 0, [&] { text = context->engine->notice(); });
  return text;
}

riffle_status riffle_set_selection(riffle_context* context, const riffle_selection* selection) {
  return on_context(context, [&] {
    require(selection, "selection");
    require_size(*selection, "selection");
    if (context->scheduler)
      fail(RIFFLE_BAD_ARGUMENT,
           "the context's scheduler runs with the selection in force: free it first");
    context->engine->set_selection(*selection);
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
    const size_t length = session->sequence->tokens.size();
    if (n_tokens > length)
      fail(RIFFLE_BAD_ARGUMENT, "n_tokens is %zu, but the session holds only %zu", n_tokens,
           length);
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

riffle_status riffle_session_truncate(riffle_session* session, size_t n_tokens) {
  return on_session(session, [&] {
    const size_t length = session->sequence->tokens.size();
    if (n_tokens > length)
      fail(RIFFLE_BAD_ARGUMENT, "n_tokens is %zu, but the session holds only %zu", n_tokens,
           length);
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
    if (n_tokens == 0)
      fail(RIFFLE_BAD_ARGUMENT, "the prompt is empty, expected at least one token");
    if (static_cast<int64_t>(n_tokens) > engine.n_ctx())
      fail(RIFFLE_CONTEXT_FULL, "the prompt has %zu tokens, but the context holds %lld", n_tokens,
           static_cast<long long>(engine.n_ctx()));
    engine.check_tokens({tokens, n_tokens});
    size_t same = 0;
    while (same < n_tokens && same < s.tokens.size() && s.tokens[same] == tokens[same]) ++same;
    if (same == n_tokens && (same < s.tokens.size() || s.logits.empty()))
      --same;  // logits come from running a token
    engine.truncate(s, static_cast<int64_t>(same));
    if (same < n_tokens)
      engine.prefill(s, {tokens + same, n_tokens - same}, nullptr,
                     progress_of(RIFFLE_PHASE_PREFILL, progress, user));
  });
}

riffle_status riffle_prefill_scored(riffle_session* session, const int32_t* tokens, size_t n_tokens,
                                    riffle_score* scores, riffle_progress_fn progress, void* user) {
  return on_session(session, [&] {
    require(tokens || !n_tokens, "tokens");
    require(scores, "scores");
    session->context->engine->prefill(*session->sequence, {tokens, n_tokens}, scores,
                                      progress_of(RIFFLE_PHASE_PREFILL, progress, user));
  });
}

// The sequences of sessions, which must be of this context and all different.
static std::vector<Sequence*> sequences_of(const riffle_context* context,
                                           riffle_session* const* sessions, size_t n) {
  require(sessions, "sessions");
  if (n == 0) fail(RIFFLE_BAD_ARGUMENT, "n_sessions is 0, expected at least 1");
  std::vector<Sequence*> out;
  for (size_t i = 0; i < n; ++i) {
    require(sessions[i], "a session");
    if (sessions[i]->context != context)
      fail(RIFFLE_BAD_ARGUMENT, "sessions[%zu] is of another context", i);
    out.push_back(sessions[i]->sequence.get());
  }
  std::vector<Sequence*> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail(RIFFLE_BAD_ARGUMENT, "a session is given twice");
  return out;
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
  return session && !session->sequence->logits.empty() ? session->sequence->logits.data() : nullptr;
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
    std::vector<riffle_generate_options> all(n_sessions);
    for (size_t i = 0; i < n_sessions; ++i) {
      if (options) {
        require_size(options[i], "generate options");
        all[i] = options[i];
      } else {
        riffle_generate_defaults(&all[i]);
      }
      check_generate_options(all[i]);
    }
    std::vector<riffle_result> out(n_sessions);
    generate(*context->engine, sequences, all, callback, user, out);
    if (results) std::copy(out.begin(), out.end(), results);
  });
}

// ---- statistics

riffle_status riffle_get_stats(const riffle_context* context, riffle_stats* stats) {
  if (!context || !stats || stats->struct_size != sizeof *stats) return RIFFLE_BAD_ARGUMENT;
  *stats = context->engine->stats();
  return RIFFLE_OK;
}

riffle_status riffle_session_get_stats(const riffle_session* session, riffle_stats* stats) {
  if (!session || !stats || stats->struct_size != sizeof *stats) return RIFFLE_BAD_ARGUMENT;
  *stats = session->context->engine->stats(*session->sequence);
  return RIFFLE_OK;
}

void riffle_reset_stats(riffle_context* context) {
  if (context) context->engine->reset_stats();
}

riffle_status riffle_profile_step(riffle_context* context, riffle_session* const* sessions,
                                  const int32_t* tokens, size_t n_sessions, riffle_timing* timing) {
  return on_context(context, [&] {
    require(tokens, "tokens");
    require(timing, "timing");
    require_size(*timing, "timing");
    const auto sequences = sequences_of(context, sessions, n_sessions);
    context->engine->profile_step(sequences, {tokens, n_sessions}, *timing);
  });
}

riffle_status riffle_set_trace(riffle_context* context, riffle_trace_fn trace, void* user,
                               bool with_coverage) {
  return on_context(context, [&] {
    if (!trace) {
      context->engine->set_trace({}, false);
      return;
    }
    const Config& config = context->model->model->config;
    const int group = config.n_heads / config.n_kv_heads;
    context->engine->set_trace(
        [=](const riffle_session* session, const Sequence& s, int layer, int kv_head,
            const RowReport& r) {
          const riffle_trace t{session,       static_cast<int32_t>(s.kv.n_tokens),
                               layer,         kv_head,
                               r.n_blocks,    r.n_read,
                               r.n_tokens,    r.tokens_read,
                               r.index_bytes, group,
                               r.coverage,    r.blocks};
          trace(user, &t);
        },
        with_coverage);
  });
}

}  // extern "C"
