// The functions of riffle.h that take options or give reports, for tests that hold these as the
// library does (util/options.h).
#pragma once
#include <bit>
#include <vector>

#include "engine/plan/memory_plan.h"
#include "engine/schedule/scheduler.h"
#include "riffle.h"
#include "tests/option_text.h"
#include "util/options.h"
#include "util/stats.h"

namespace riffle::test {

namespace given {

// `struct_size` is the first member of each public struct.
template <class Public, class Internal>
Public as(const Internal& options) {
  Public out = std::bit_cast<Public>(options);
  out.struct_size = sizeof out;
  return out;
}
inline riffle_context_options as_public(const ContextOptions& o) {
  riffle_context_options out = as<riffle_context_options>(o);
  out.selection.struct_size = sizeof out.selection;
  return out;
}
inline riffle_generate_options as_public(const GenerateOptions& o) {
  riffle_generate_options out = as<riffle_generate_options>(o);
  out.sampling.struct_size = sizeof out.sampling;
  return out;
}

}  // namespace given

inline riffle_status context_create(riffle_model* model, const ContextOptions* options,
                                    riffle_context** context, char* err, size_t err_size) {
  const riffle_context_options o = given::as_public(*options);
  return riffle_context_create(model, &o, context, err, err_size);
}

inline riffle_status plan_memory(riffle_model* model, const ContextOptions* options,
                                 MemoryPlan* plan, char* err, size_t err_size) {
  const riffle_context_options o = given::as_public(*options);
  riffle_plan out{};
  out.struct_size = sizeof out;
  const riffle_status status = riffle_plan_memory(model, &o, &out, err, err_size);
  *plan = std::bit_cast<MemoryPlan>(out);
  return status;
}

inline riffle_status set_selection(riffle_context* context, const Selection* selection) {
  const auto s = given::as<riffle_selection>(*selection);
  return riffle_set_selection(context, &s);
}

inline riffle_status scheduler_create(riffle_context* context, const SchedulerOptions* options,
                                      riffle_scheduler** scheduler) {
  const auto o = given::as<riffle_scheduler_options>(options ? *options : SchedulerOptions());
  return riffle_scheduler_create(context, &o, scheduler);
}

inline riffle_status scheduler_submit(riffle_scheduler* scheduler, const int32_t* tokens,
                                      size_t n_tokens, const GenerateOptions* options,
                                      uint64_t* id) {
  const riffle_generate_options o = given::as_public(options ? *options : GenerateOptions());
  return riffle_scheduler_submit(scheduler, tokens, n_tokens, &o, id);
}

inline riffle_status scheduler_step(riffle_scheduler* scheduler, Iteration* iteration) {
  riffle_iteration out{};
  out.struct_size = sizeof out;
  const riffle_status status = riffle_scheduler_step(scheduler, iteration ? &out : nullptr);
  if (iteration) *iteration = std::bit_cast<Iteration>(out);
  return status;
}

inline riffle_status generate_many(riffle_context* context, riffle_session* const* sessions,
                                   const GenerateOptions* options, size_t n_sessions,
                                   riffle_token_fn callback, void* user, riffle_result* results) {
  std::vector<riffle_generate_options> all;
  for (size_t i = 0; i < n_sessions; ++i)
    all.push_back(given::as_public(options ? options[i] : GenerateOptions()));
  return riffle_generate_many(context, sessions, all.data(), n_sessions, callback, user, results);
}

inline riffle_status generate(riffle_session* session, const GenerateOptions* options,
                              riffle_token_fn callback, void* user, riffle_result* result) {
  const riffle_generate_options o = given::as_public(options ? *options : GenerateOptions());
  return riffle_generate(session, &o, callback, user, result);
}

inline riffle_status get_stats(const riffle_context* context, Stats* stats) {
  riffle_stats out{};
  out.struct_size = sizeof out;
  const riffle_status status = riffle_get_stats(context, &out);
  *stats = std::bit_cast<Stats>(out);
  return status;
}

inline riffle_status session_get_stats(const riffle_session* session, Stats* stats) {
  riffle_stats out{};
  out.struct_size = sizeof out;
  const riffle_status status = riffle_session_get_stats(session, &out);
  *stats = std::bit_cast<Stats>(out);
  return status;
}

}  // namespace riffle::test
