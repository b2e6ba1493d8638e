/* Requests in OpenAI's form, and the scheduler. */
#include "locale.h"
#include "riffle_batch.h"
#include "riffle_grammar.h"
#include "riffle_request.h"
#include "riffle_steps.h"

/* A request with numbers and a tool, and its answers as JSON. */
void bodies(FILE* out) {
  static const char body[] =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"i "
      "1.5\"}],\"stream\":true,\"temperature\":0.5,"
      "\"stream_options\":{\"include_usage\":true},\"logprobs\":true,\"tools\":[{\"type\":"
      "\"function\","
      "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"default\":0.5}}}]}";
  static const char text[] = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1.5}}</tool_call>";
  if (!write_tokenizer_config(
          "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":\"{{ tools }}<tool_call>"
          "{% for m in messages %}{{ m.content }}{% endfor %}\"}"))
    return;
  riffle_model* const model = model_of(out, folder);
  for (size_t i = 0; i < 2; ++i) {
    char err[512] = "";
    riffle_request* r = NULL;
    outcome(out, "create",
            riffle_request_create(i ? RIFFLE_REQUEST_COMPLETION : RIFFLE_REQUEST_CHAT, body,
                                  sizeof body - 1, NULL, 0, &r, err, sizeof err),
            err);
    if (riffle_request_refusal(r)) {
      info(out, riffle_request_refusal(r));
      fprintf(out, "%s\n", riffle_request_error(r));
      riffle_request_free(r);
      continue;
    }
    outcome(out, "prepare", riffle_request_prepare(r, model, err, sizeof err), err);
    info(out, riffle_request_info(r));
    size_t n = 0;
    const int32_t* const ids = riffle_request_tokens(r, 0, &n);
    for (size_t t = 0; t < n; ++t) fprintf(out, "%d ", ids[t]);
    fprintf(out, "%s\n", riffle_options_get(riffle_request_options(r, 0), "temp"));
    riffle_request_drop_prompts(r);
    riffle_request_set_names(r, "m", NULL);
    const riffle_token token = {5, text, sizeof text - 1, -0.25f, NULL, 0};
    const riffle_result result = {RIFFLE_FINISH_STOP, 2};
    riffle_json json[4] = {{NULL, 0}};
    riffle_tool_call call = {"", "", "", ""};
    /* Ids and times differ; the rest begins with the model. */
    for (int step = 0; step < 4; ++step) {
      const riffle_status status = step == 0   ? riffle_request_token(r, 0, &token, &json[0])
                                   : step == 1 ? riffle_request_end(r, 0, &result, 1, &json[1])
                                   : step == 2 ? riffle_request_usage(r, &json[2])
                                               : riffle_request_response(r, &json[3]);
      const char* const from = json[step].data ? strstr(json[step].data, "\"logprobs\"") : NULL;
      outcome(out, "json", status, from);
      riffle_answer_part part;
      outcome(out, "part", riffle_request_part(r, &part), NULL);
      fprintf(out, "%.*s|%.*s\n", (int)part.content_len, part.content, (int)part.reasoning_len,
              part.reasoning);
    }
    if (riffle_request_call(r, 0, 0, &call)) fprintf(out, "%s %s\n", call.name, call.arguments);
    info(out, riffle_request_answer(r, 0));
    riffle_request_free(r);
  }
  riffle_answer* answer = NULL;
  riffle_answer_part part = {NULL, 0, NULL, 0};
  const riffle_token token = {5, "1.5", 3, 0, NULL, 0};
  riffle_answer_create(model, false, &answer, NULL, 0);
  outcome(out, "answer", riffle_answer_token(answer, &token, &part), NULL);
  fprintf(out, "%.*s\n", (int)part.content_len, part.content);
  riffle_answer_free(answer);
  fprintf(out, "%llx %d\n", (unsigned long long)riffle_derived_seed(7, 3),
          riffle_random_seed() >> 53 == 0);
  riffle_model_free(model);
}

static bool on_request_token(void* user, uint64_t id, const riffle_token* token) {
  return on_token(user, id, token);
}

static void on_end(void* user, uint64_t id, riffle_status status, const riffle_info* end) {
  fprintf(user, "request %d: ", (int)id);
  outcome(user, "ended", status, riffle_info_text(end, "error"));
  info(user, end);
}

/* The same requests at once, by riffle_generate_many and by a scheduler. */
void requests(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  riffle_context* const context = context_of(out, model);
  int32_t ids[kPrompt];
  prompt_of(ids);
  char err[512] = "";
  const char* const text = "{\"a\":0.5,\"b\":[1.25,\"I\"]}";
  riffle_grammar *grammar = NULL, *rest = NULL;
  outcome(
      out, "grammar",
      riffle_grammar_create(model, RIFFLE_GRAMMAR_JSON_SCHEMA, "{}", 2, &grammar, err, sizeof err),
      err);
  outcome(out, "rest", riffle_grammar_continue(grammar, text, 6, &rest, err, sizeof err), err);
  riffle_grammar_free(rest);
  outcome(out, "rest", riffle_grammar_continue(grammar, "0,5", 3, &rest, err, sizeof err), err);
  outcome(out, "rest", riffle_grammar_continue(grammar, "1.", 2, &rest, err, sizeof err), err);
  riffle_options* o[3];
  riffle_session* all[3] = {NULL};
  riffle_result results[3];
  for (int i = 0; i < 3; ++i) {
    static const char *const seeds[] = {"0", "1", "2"}, *const temps[] = {"0", "0.5", "1"};
    o[i] = options_of((const char*[]){"max-tokens", "12", "seed", seeds[i], "temp", temps[i],
                                      "logprobs", "true", "max-seqs", "2", NULL});
    riffle_session_create(context, &all[i]);
    riffle_prefill(all[i], ids, (size_t)(kPrompt - i), NULL, NULL);
  }
  riffle_options_set_grammar(o[2], rest);
  outcome(out, "many",
          riffle_generate_many(context, all, (const riffle_options* const*)o, 3, on_token, out,
                               results),
          riffle_context_error(context));
  for (int i = 0; i < 3; ++i) {
    fprintf(out, "%d %d\n", results[i].finish, results[i].n_tokens);
    riffle_session_free(all[i]);
  }
  riffle_scheduler* scheduler = NULL;
  outcome(out, "scheduler", riffle_scheduler_create(context, o[0], out, &scheduler),
          riffle_context_error(context));
  riffle_scheduler_on_token(scheduler, on_request_token);
  riffle_scheduler_on_end(scheduler, on_end);
  riffle_scheduler_on_begin(scheduler, NULL);
  riffle_scheduler_on_prompt(scheduler, NULL);
  uint64_t id = 0;
  for (int i = 0; i < 3; ++i)
    outcome(out, "submit",
            riffle_scheduler_submit(scheduler, ids, (size_t)(kPrompt - i), o[i], &id),
            riffle_context_error(context));
  riffle_options_set_logit_bias(o[0], &(riffle_logit_bias){3, -100.5f}, 1);
  outcome(out, "submit", riffle_scheduler_submit(scheduler, ids, kPrompt, o[0], NULL),
          riffle_context_error(context));
  outcome(out, "cancel", riffle_scheduler_cancel(scheduler, id), riffle_context_error(context));
  outcome(out, "cancel", riffle_scheduler_cancel(scheduler, 12345), riffle_context_error(context));
  while (riffle_scheduler_pending(scheduler) > 0) {
    outcome(out, "iteration", riffle_scheduler_step(scheduler), riffle_context_error(context));
    info(out, riffle_scheduler_iteration(scheduler));
  }
  riffle_scheduler_free(scheduler);
  outcome(out, "scheduler", riffle_options_set(o[0], "max-skips", "0"), riffle_options_error(o[0]));
  for (int i = 0; i < 3; ++i) riffle_options_free(o[i]);
  riffle_grammar_free(rest);
  riffle_grammar_free(grammar);
  riffle_context_free(context);
  riffle_model_free(model);
}

/* A scheduler's plan, and a folder of beginnings of prompts. */
void prefixes(FILE* out) {
  char path[96], err[512] = "";
  snprintf(path, sizeof path, "%s.prefixes", folder);
  riffle_model* const model = model_of(out, folder);
  riffle_options* const o = options_of((const char*[]){"device", "cpu", "ctx", "64", NULL});
  outcome(out, "plan", riffle_plan_scheduler(model, o, 2), riffle_model_error(model));
  fprintf(out, "%s %s\n", riffle_options_get(o, "sessions"), riffle_options_get(o, "max-seqs"));
  riffle_options_free(o);
  riffle_context* const context = context_of(out, model);
  riffle_prefix_cache* cache = NULL;
  outcome(out, "no folder", riffle_prefix_cache_open("/proc/no/such", 0, &cache, err, sizeof err),
          err);
  outcome(out, "folder", riffle_prefix_cache_open(path, 1 << 20, &cache, err, sizeof err), err);
  riffle_scheduler* scheduler = NULL;
  riffle_scheduler_create(context, NULL, NULL, &scheduler);
  outcome(out, "use", riffle_scheduler_use_prefix_cache(scheduler, cache, RIFFLE_KEEP_ALL),
          riffle_context_error(context));
  info(out, riffle_prefix_cache_info(cache));
  riffle_scheduler_free(scheduler);
  riffle_prefix_cache_free(cache);
  riffle_context_free(context);
  riffle_model_free(model);
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", path);
  if (system(command) != 0) exit(2);
}
