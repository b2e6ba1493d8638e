// Functions of riffle_batch.h: many requests at once.
#include "api/api_handles.h"
#include "riffle_batch.h"

using namespace riffle;

template <class Body>
static riffle_status on_scheduler(riffle_scheduler* s, Body&& body) {
  if (!s) return RIFFLE_BAD_ARGUMENT;
  return on_context(s->context, body);
}

namespace {

// Marks a call of the scheduler, which may run callbacks. Functions that a callback must not call
// create one.
class Running {
 public:
  explicit Running(riffle_scheduler* s) : s_(s) {
    if (s->running)
      fail(RIFFLE_BAD_ARGUMENT,
           "the scheduler is inside a call: its callbacks may only submit requests");
    s->running = true;
  }
  ~Running() { s_->running = false; }

 private:
  riffle_scheduler* s_;
};

SchedulerHooks hooks_of(riffle_scheduler* s) {
  SchedulerHooks hooks;
  hooks.token = [s](uint64_t id, const riffle_token& token) {
    return !s->on_token || s->on_token(s->user, id, &token);
  };
  hooks.ended = [s](uint64_t id, const RequestEnd& end) {
    if (!s->on_end) return;
    const riffle_info info = facts_of(end);
    s->on_end(s->user, id, end.status, &info);
  };
  hooks.begin = [s](uint64_t id, size_t n_shared) -> std::shared_ptr<const SessionFile> {
    const riffle_session_file* file = s->on_begin ? s->on_begin(s->user, id, n_shared) : nullptr;
    return file ? file->file : nullptr;
  };
  hooks.prompt_read = [s](uint64_t id, const PromptRead& read) {
    if (!s->on_prompt) return;
    const Engine& engine = *s->context->engine;
    riffle_info info;
    info.add("reuse_unit", engine.reuse_unit());
    info.add("loaded_tokens", read.loaded);
    info.add("load_status",
             static_cast<int>(read.load_error ? read.load_error->status() : RIFFLE_OK));
    info.add("load_error", read.load_error ? read.load_error->text(engine.setting_name()) : "");
    riffle_session lent{s->context, std::move(read.sequence), {}};
    s->on_prompt(s->user, id, &lent, &info);
    read.sequence = std::move(lent.sequence);
  };
  return hooks;
}

}  // namespace

extern "C" {

riffle_status riffle_scheduler_create(riffle_context* context, const riffle_options* options,
                                      void* user, riffle_scheduler** scheduler) {
  if (scheduler) *scheduler = nullptr;
  return on_context(context, [&] {
    require(scheduler, "scheduler");
    if (context->scheduler)
      fail(RIFFLE_BAD_ARGUMENT, "the context has a scheduler already: free it first");
    auto s = std::make_unique<riffle_scheduler>();
    s->context = context;
    s->user = user;
    s->iteration = facts_of(Iteration());
    s->scheduler = std::make_unique<Scheduler>(
        *context->engine, options_or_defaults(options).scheduler, hooks_of(s.get()));
    context->scheduler = s.get();
    *scheduler = s.release();
  });
}

riffle_status riffle_plan_scheduler(riffle_model* model, riffle_options* options,
                                    int32_t max_seqs) {
  constexpr int32_t kUsualSeqs = 8;
  if (!options) return RIFFLE_BAD_ARGUMENT;
  return guarded(options->error, sizeof options->error, [&] {
    require(model, "model");
    if (max_seqs < 0) fail(RIFFLE_BAD_ARGUMENT, "max_seqs is %d, expected 0 or more", max_seqs);
    options->context.n_sessions = max_seqs ? 1 : kUsualSeqs;
    riffle_info* made = nullptr;
    riffle_plan_memory(model, options, &made, nullptr, 0);
    const std::unique_ptr<riffle_info> plan(made);
    if (plan)
      options->context.host_mem =
          static_cast<uint64_t>(riffle_info_number(made, "shared_host_mem"));
    if (max_seqs == 0)
      max_seqs =
          plan ? std::max(1, static_cast<int>(riffle_info_number(made, "usual_sessions"))) : 1;
    options->context.n_sessions = options->scheduler.max_seqs = max_seqs;
  });
}

void riffle_scheduler_free(riffle_scheduler* scheduler) {
  if (!scheduler) return;
  scheduler->context->scheduler = nullptr;
  delete scheduler;
}

riffle_status riffle_scheduler_submit(riffle_scheduler* scheduler, const int32_t* tokens,
                                      size_t n_tokens, const riffle_options* options,
                                      uint64_t* id) {
  return on_scheduler(scheduler, [&] {
    require(tokens || !n_tokens, "tokens");
    const uint64_t number =
        scheduler->scheduler->submit({tokens, n_tokens}, options_or_defaults(options).answer);
    if (id) *id = number;
  });
}

riffle_status riffle_scheduler_cancel(riffle_scheduler* scheduler, uint64_t id) {
  return on_scheduler(scheduler, [&] {
    const Running running(scheduler);
    scheduler->scheduler->cancel(id);
  });
}

void riffle_scheduler_on_token(riffle_scheduler* scheduler, riffle_request_token_fn fn) {
  if (scheduler) scheduler->on_token = fn;
}
void riffle_scheduler_on_end(riffle_scheduler* scheduler, riffle_request_end_fn fn) {
  if (scheduler) scheduler->on_end = fn;
}
void riffle_scheduler_on_begin(riffle_scheduler* scheduler, riffle_request_begin_fn fn) {
  if (scheduler) scheduler->on_begin = fn;
}
void riffle_scheduler_on_prompt(riffle_scheduler* scheduler, riffle_request_prompt_fn fn) {
  if (scheduler) scheduler->on_prompt = fn;
}

riffle_status riffle_prefix_cache_open(const char* folder, uint64_t max_bytes,
                                       riffle_prefix_cache** cache, char* err, size_t err_size) {
  if (cache) *cache = nullptr;
  return guarded(err, err_size, [&] {
    require(folder, "folder");
    require(cache, "cache");
    *cache = new riffle_prefix_cache{PrefixCache(folder, max_bytes), {}};
  });
}

void riffle_prefix_cache_free(riffle_prefix_cache* cache) {
  if (!cache) return;
  guarded(nullptr, 0, [&] { cache->cache.trim(); });
  delete cache;
}

const riffle_info* riffle_prefix_cache_info(riffle_prefix_cache* cache) {
  if (!cache) return nullptr;
  const auto fill = [&] {
    riffle_info info;
    info.add("saved", cache->cache.saved());
    info.add("saved_tokens", cache->cache.saved_tokens());
    info.add("notice", cache->cache.notice());
    cache->info = std::move(info);
  };
  return guarded(nullptr, 0, fill) == RIFFLE_OK ? &cache->info : nullptr;
}

riffle_status riffle_scheduler_use_prefix_cache(riffle_scheduler* scheduler,
                                                riffle_prefix_cache* cache, riffle_keep keep) {
  return on_scheduler(scheduler, [&] {
    require(cache, "cache");
    scheduler->scheduler->use_prefix_cache(
        cache->cache, keep == RIFFLE_KEEP_ALL ? KeepPrefixes::ALL : KeepPrefixes::SHARED);
  });
}

riffle_status riffle_scheduler_step(riffle_scheduler* scheduler) {
  return on_scheduler(scheduler, [&] {
    const Running running(scheduler);
    Iteration all;
    scheduler->scheduler->step(&all);
    scheduler->iteration = facts_of(all);
  });
}

size_t riffle_scheduler_pending(const riffle_scheduler* scheduler) {
  return scheduler ? scheduler->scheduler->pending() : 0;
}

const riffle_info* riffle_scheduler_iteration(const riffle_scheduler* scheduler) {
  return scheduler ? &scheduler->iteration : nullptr;
}

}  // extern "C"
