// riffle.h: many requests at once.
#include "api/api_handles.h"
#include "api/generate_options.h"
#include "api/struct_sizes.h"
#include "util/settings.h"

using namespace riffle;

template <class Body>
static riffle_status on_scheduler(riffle_scheduler* s, Body&& body) {
  if (!s) return RIFFLE_BAD_ARGUMENT;
  return on_context(s->context, body);
}

namespace {

// A call of the scheduler's may call back; what may not be done from there asks for this.
class Running {
 public:
  explicit Running(riffle_scheduler* s) : s_(s) {
    if (s->running)
      fail(RIFFLE_BAD_ARGUMENT, "the scheduler is inside a call: its callbacks may only submit");
    s->running = true;
  }
  ~Running() { s_->running = false; }

 private:
  riffle_scheduler* s_;
};

SchedulerHooks hooks_of(riffle_context* context, const riffle_scheduler_options& o) {
  SchedulerHooks hooks;
  if (o.on_begin)
    hooks.begin = [=](uint64_t id, size_t n_shared) -> std::shared_ptr<const SessionFile> {
      const riffle_session_file* file = o.on_begin(o.user, id, n_shared);
      return file ? file->file : nullptr;
    };
  if (o.on_prompt)
    hooks.prompt_read = [=](uint64_t id, const PromptRead& read) {
      riffle_request_prompt prompt{};
      prompt.reuse_unit = static_cast<size_t>(context->engine->reuse_unit());
      prompt.loaded_tokens = read.loaded;
      const std::string text =
          read.load_error ? read.load_error->text(context->engine->setting_name()) : "";
      if (read.load_error) prompt.load_status = read.load_error->status();
      prompt.load_error = text.c_str();
      riffle_session lent{context, std::move(read.sequence)};
      prompt.session = &lent;
      o.on_prompt(o.user, id, &prompt);
      read.sequence = std::move(lent.sequence);
    };
  return hooks;
}

}  // namespace

extern "C" {

void riffle_scheduler_defaults_sized(riffle_scheduler_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_scheduler_options& all) {
    set_defaults(RIFFLE_OPTIONS_SCHEDULER, &all);
  });
}

riffle_status riffle_scheduler_create(riffle_context* context,
                                      const riffle_scheduler_options* options,
                                      riffle_scheduler** scheduler) {
  if (scheduler) *scheduler = nullptr;
  return on_context(context, [&] {
    require(scheduler, "scheduler");
    if (context->scheduler)
      fail(RIFFLE_BAD_ARGUMENT, "the context has a scheduler already: free it first");
    const auto o = known(options, riffle_scheduler_defaults_sized, "scheduler options");
    auto s = std::make_unique<riffle_scheduler>();
    s->context = context;
    s->scheduler = std::make_unique<Scheduler>(*context->engine, std::bit_cast<SchedulerOptions>(o),
                                               hooks_of(context, o));
    context->scheduler = s.get();
    *scheduler = s.release();
  });
}

void riffle_scheduler_free(riffle_scheduler* scheduler) {
  if (!scheduler) return;
  scheduler->context->scheduler = nullptr;
  delete scheduler;
}

riffle_status riffle_scheduler_submit(riffle_scheduler* scheduler, const int32_t* tokens,
                                      size_t n_tokens, const riffle_generate_options* options,
                                      uint64_t* id) {
  return on_scheduler(scheduler, [&] {
    require(tokens || !n_tokens, "tokens");
    const uint64_t number =
        scheduler->scheduler->submit({tokens, n_tokens}, known_generate_options(options));
    if (id) *id = number;
  });
}

riffle_status riffle_scheduler_cancel(riffle_scheduler* scheduler, uint64_t id) {
  return on_scheduler(scheduler, [&] {
    const Running running(scheduler);
    scheduler->scheduler->cancel(id);
  });
}

riffle_status riffle_scheduler_step(riffle_scheduler* scheduler, riffle_iteration* iteration) {
  return on_scheduler(scheduler, [&] {
    if (iteration) check_size<riffle_iteration>(iteration->struct_size, "iteration");
    const Running running(scheduler);
    Iteration all{};
    scheduler->scheduler->step(&all);
    if (iteration) give(iteration, std::bit_cast<riffle_iteration>(all), "iteration");
  });
}

}  // extern "C"
