/* Sessions in memory and on disk, and converted models. */
#include <unistd.h>

#include "locale.h"
#include "riffle_measure.h"
#include "riffle_session_file.h"
#include "riffle_steps.h"
#include "riffle_tools.h"

void logits(FILE* out, const riffle_session* session) {
  const float* const all = riffle_logits(session);
  fprintf(out, "%zu tokens, reach %zu\n", riffle_session_length(session),
          riffle_session_reach(session, 3));
  for (int i = 0; all && i < vocab_size; ++i) bits(out, all[i]);
}

void prompt_of(int32_t* ids) {
  for (int i = 0; i < kPrompt; ++i) ids[i] = 3 + i * 7 % 256;
}

static void on_row(void* user, const riffle_row_report* report) {
  fprintf(user, "row %d: %d of %d blocks\n", report->position, report->n_read, report->n_blocks);
  for (int i = 0; report->coverage && i < report->n_group; ++i) bits(user, report->coverage[i]);
}

/* Steps, cuts and forks by several selections, and what they report. */
void sessions(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  riffle_context* const context = context_of(out, model);
  uint64_t fingerprint = 0;
  outcome(out, "fingerprint", riffle_context_fingerprint(context, &fingerprint),
          riffle_context_error(context));
  fprintf(out, "%016llx\n", (unsigned long long)fingerprint);
  fprintf(out, "%zu %s\n", riffle_context_length(context), riffle_context_notice(context));
  int32_t ids[kPrompt];
  prompt_of(ids);
  riffle_session *session = NULL, *fork = NULL;
  riffle_session_create(context, &session);
  riffle_score scores[kPrompt];
  outcome(out, "scored", riffle_prefill_scored(session, ids, kPrompt, scores, NULL, NULL),
          riffle_context_error(context));
  for (int i = 0; i < kPrompt; ++i) bits(out, scores[i].next_logprob);
  outcome(out, "share of tiles", riffle_set_prefill_share(context, 0.5f),
          riffle_context_error(context));
  riffle_set_row_report(context, on_row, out, true);
  static const char* const selectors[] = {"dense", "psa",   "topk", "twilight", "tokenselect",
                                          "lfps",  "share", "auto", "I.5"};
  for (size_t i = 0; i < sizeof selectors / sizeof *selectors; ++i) {
    outcome(out, "selection", riffle_context_set(context, "selector", selectors[i]),
            riffle_context_error(context));
    fprintf(out, "%s\n", riffle_context_notice(context));
    outcome(out, "cut", riffle_session_truncate(session, kPrompt), riffle_context_error(context));
    outcome(out, "fork", riffle_session_fork(session, kPrompt - 1, &fork),
            riffle_context_error(context));
    riffle_session* const both[] = {session, fork};
    outcome(out, "step", riffle_step(context, both, ids, fork ? 2 : 1),
            riffle_context_error(context));
    logits(out, session);
    riffle_session_free(fork);
  }
  riffle_set_row_report(context, NULL, NULL, false);
  const riffle_info* timing = NULL;
  outcome(out, "profile", riffle_profile_step(context, &session, ids, 1, &timing),
          riffle_context_error(context));
  double rate = -1;
  outcome(out, "rate", riffle_product_rate(context, &rate), riffle_context_error(context));
  fprintf(out, "known: %d\n", rate > 0);
  const riffle_operations operations = riffle_prompt_operations(model, kPrompt);
  bits(out, operations.products);
  bits(out, operations.attention);
  bits(out, operations.window_attention);
  outcome(out, "cut", riffle_session_truncate(session, 4096), riffle_context_error(context));
  outcome(out, "prefill", riffle_prefill(session, &(int32_t){vocab_size}, 1, NULL, NULL),
          riffle_context_error(context));
  riffle_abort(context, true);
  outcome(out, "abort", riffle_step(context, &session, ids, 1), riffle_context_error(context));
  info(out, riffle_session_stats(session));
  riffle_reset_stats(context);
  info(out, riffle_context_stats(context));
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
  char err[512] = "";
  riffle_model* synthetic = NULL;
  outcome(out, "synthetic", riffle_model_synthetic("1.5B", "q8_0", &synthetic, err, sizeof err),
          err);
}

/* A converted model, a session on disk, and texts of the system's errors. */
void files(FILE* out) {
  char path[96], saved[96], err[512] = "";
  snprintf(path, sizeof path, "%s.gguf", folder);
  snprintf(saved, sizeof saved, "%s.kv", folder);
  riffle_options* q = options_of((const char*[]){"weights", "BF16", "overwrite", "true", NULL});
  riffle_info* result = NULL;
  outcome(out, "quantize", riffle_quantize(folder, path, q, &result, err, sizeof err), err);
  info(out, result);
  riffle_info_free(result);
  riffle_options_free(q);
  riffle_model* const model = model_of(out, path);
  riffle_context* const context = context_of(out, model);
  outcome(out, "open", riffle_session_check_path("/proc/no/such", err, sizeof err), err);
  riffle_session *session = NULL, *loaded = NULL;
  riffle_session_create(context, &session);
  int32_t ids[kPrompt], held[kPrompt] = {0};
  prompt_of(ids);
  riffle_prefill(session, ids, kPrompt, NULL, NULL);
  outcome(out, "save", riffle_session_save(session, "/proc/no/such", 0, NULL, 0, NULL, NULL),
          riffle_context_error(context));
  outcome(out, "save", riffle_session_save(session, saved, 0, "0.5", 3, NULL, NULL),
          riffle_context_error(context));
  riffle_session_file* file = NULL;
  outcome(out, "no file", riffle_session_file_open("/proc/no/such", &file, err, sizeof err), err);
  outcome(out, "a model", riffle_session_file_open(path, &file, err, sizeof err), err);
  outcome(out, "file", riffle_session_file_open(saved, &file, err, sizeof err), err);
  fprintf(out, "%d\n", riffle_session_file_save_id(file) != 0);
  const char* name;
  const riffle_info* const facts = riffle_session_file_info(file);
  for (size_t i = 0; (name = riffle_info_name(facts, i)); ++i) /* all except the times */
    if (riffle_info_text(facts, name)) fprintf(out, "%s\n", riffle_info_text(facts, name));
    else if (!strstr(name, "created") && !strstr(name, "saved"))
      bits(out, riffle_info_number(facts, name));
  size_t size = 0;
  const char* const data = riffle_session_file_data(file, &size);
  fprintf(out, "%.*s\n", (int)size, data ? data : "");
  size_t n = 0;
  outcome(out, "tokens", riffle_session_file_tokens(file, held, kPrompt, &n), "");
  fprintf(out, "%zu %d\n", n, memcmp(ids, held, sizeof ids));
  outcome(out, "load", riffle_session_load(context, file, &loaded, NULL, NULL),
          riffle_context_error(context));
  if (loaded) logits(out, loaded);
  riffle_session_free(loaded);
  riffle_session_file_free(file);
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
  unlink(saved);
  unlink(path);
}
