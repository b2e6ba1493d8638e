// The structs behind the handles of riffle.h, and the boundary that no exception crosses.
#pragma once
#include <cstring>
#include <mutex>
#include <new>
#include <optional>

#include "api/info.h"
#include "api/options.h"
#include "engine/engine.h"
#include "engine/schedule/scheduler.h"
#include "grammar/token_tries.h"
#include "requests/grammar_cache.h"
#include "riffle_batch.h"
#include "riffle_session_file.h"
#include "riffle_steps.h"
#include "riffle_text.h"
#include "riffle_tools.h"
#include "util/c_locale.h"
#include "util/error.h"

// Long enough for every message; of fixed size, so that reporting "out of memory" allocates
// nothing.
using ErrorText = char[512];

struct riffle_model {
  std::unique_ptr<riffle::Model> model;
  riffle_info info;
  std::mutex error_lock;         // several threads may fail at once
  std::mutex weights_lock;       // several threads may create contexts at once
  bool weights_checked = false;  // for infinities and NaN
  std::mutex tokens_lock;        // several threads may create grammars at once
  std::shared_ptr<const riffle::grammar::TokenTries>
      tokens;  // tries for grammars; null before the first grammar
  std::shared_ptr<const riffle::grammar::TokenTries> marked_tokens;  // for those of calls; null
  riffle::requests::GrammarCache grammars;                           // grammars of requests
  ErrorText error = "";
};

struct riffle_context {
  riffle_model* model = nullptr;
  std::unique_ptr<riffle::Engine> engine;
  riffle_scheduler* scheduler = nullptr;  // at most one
  riffle_setting_name_fn setting_name = nullptr;
  mutable std::string notice;  // the text that riffle_context_notice returned last
  riffle_info stats, timing;
  ErrorText error = "";
};

struct riffle_session {
  riffle_context* context = nullptr;
  std::unique_ptr<riffle::Sequence> sequence;
  riffle_info stats;  // the facts that riffle_session_stats returned last
};

struct riffle_session_file {
  std::shared_ptr<const riffle::SessionFile> file;
  std::string data;
  riffle_info info;
};

struct riffle_scheduler {
  riffle_context* context = nullptr;
  std::unique_ptr<riffle::Scheduler> scheduler;
  bool running = false;  // true inside a call that may run callbacks
  void* user = nullptr;
  riffle_request_token_fn on_token = nullptr;
  riffle_request_end_fn on_end = nullptr;
  riffle_request_begin_fn on_begin = nullptr;
  riffle_request_prompt_fn on_prompt = nullptr;
  riffle_info iteration;
};

struct riffle_prefix_cache {
  riffle::PrefixCache cache;
  riffle_info info;
};

namespace riffle {

template <class Body>
riffle_status guarded(char* err, size_t err_size, Body&& body,
                      riffle_setting_name_fn name = nullptr) {
  const auto say = [&](const char* text) {
    if (err) copy_text(err, err_size, text);
  };
  try {
    say("");
    body();
    return RIFFLE_OK;
  } catch (const Error& e) {
    say(e.what());
    try {
      say(e.text(name).c_str());
    } catch (...) {  // no memory to replace the ids by names
    }
    return e.status();
  } catch (const std::bad_alloc&) {
    say("out of memory");
    return RIFFLE_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    say(e.what());
    return RIFFLE_INTERNAL;
  } catch (...) {
    say("unknown error");
    return RIFFLE_INTERNAL;
  }
}

template <class Body>
riffle_status on_context(riffle_context* c, Body&& body) {
  if (!c) return RIFFLE_BAD_ARGUMENT;
  return guarded(c->error, sizeof c->error, body, c->setting_name);
}

template <class Body>
riffle_status on_session(riffle_session* s, Body&& body) {
  if (!s) return RIFFLE_BAD_ARGUMENT;
  return on_context(s->context, body);
}

template <class Body>
riffle_status on_model(riffle_model* m, Body&& body) {
  if (!m) return RIFFLE_BAD_ARGUMENT;
  ErrorText text = "";
  const riffle_status status = guarded(text, sizeof text, body);
  const std::lock_guard<std::mutex> lock(m->error_lock);
  memcpy(m->error, text, sizeof text);
  return status;
}

inline void require(bool ok, const char* what) {
  if (!ok) fail(RIFFLE_BAD_ARGUMENT, "%s is NULL", what);
}

// Refuses n_tokens beyond the session's length.
inline void require_length(const riffle_session& session, size_t n_tokens) {
  const size_t length = session.sequence->tokens.size();
  if (n_tokens > length)
    fail(RIFFLE_BAD_ARGUMENT, "n_tokens is %zu, expected at most the session's length, %zu",
         n_tokens, length);
}

// The (out, capacity, n_out) rule of riffle.h.
template <class T>
void hand_out(const T* values, size_t n, T* out, size_t capacity, size_t* n_out) {
  *n_out = n;
  if (n > capacity)
    fail(RIFFLE_BUFFER_TOO_SMALL, "capacity is %zu, expected at least %zu", capacity, n);
  if (n) require(out, "the output buffer");
  std::copy_n(values, n, out);
}

// Compiles a grammar for the model. tokens_of: the tries that its grammars share.
std::shared_ptr<const riffle_grammar> compiled(riffle_model* model, riffle_grammar_kind kind,
                                               std::string_view text);
std::shared_ptr<const grammar::TokenTries> tokens_of(riffle_model* model);
// Does the same for grammars of calls (grammar::marked_tries).
std::shared_ptr<const grammar::TokenTries> tokens_of(riffle_model* model,
                                                     std::span<const std::string_view> markers);

// The model's tokenizer; a model without one is RIFFLE_UNSUPPORTED.
const Tokenizer& tokenizer_of(const riffle_model& model);

std::function<bool(double, double)> progress_of(riffle_phase phase, riffle_progress_fn progress,
                                                void* user);

// Returns the sequences of the sessions. Throws RIFFLE_BAD_ARGUMENT unless all belong to this
// context and are different.
std::vector<Sequence*> sequences_of(const riffle_context* context, riffle_session* const* sessions,
                                    size_t n);

}  // namespace riffle
