/* locale.c: the interface does not depend on the locale of the program that uses it. Each part runs
 * in the C locale and then in others, and must give the same numbers, answers and texts. The others
 * write decimal commas (de_DE), have letters whose lower case is not English (tr_TR in ISO-8859-9)
 * or a decimal point of two bytes (ps_AF). localedef makes them in a temporary folder.
 *
 * usage: capi_locale
 *
 * tools/check_locale.py checks that every function of the interface is called here.
 *
 * Prints "ok", "not ok" or "skip" for each locale and part. */
#define _GNU_SOURCE
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "riffle_batch.h"
#include "riffle_grammar.h"
#include "riffle_measure.h"
#include "riffle_request.h"
#include "riffle_steps.h"
#include "riffle_text.h"
#include "riffle_tools.h"
#include "tiny_folder.h"

static char folder[64], place[64]; /* the model's; the locales' */

/* ---- what a part gives: text without numbers that printf writes by the locale */

static void bits(FILE* out, double value) {
  uint64_t all;
  memcpy(&all, &value, sizeof all);
  fprintf(out, "%016llx\n", (unsigned long long)all);
}

static void outcome(FILE* out, const char* what, riffle_status status, const char* text) {
  fprintf(out, "%s: %s: %s\n", what, riffle_status_name(status), text ? text : "");
}

static bool on_token(void* user, size_t index, const riffle_token* token) {
  FILE* const out = user;
  (void)index;
  fprintf(out, "%d %.*s\n", token->id, (int)token->text_len, token->text);
  bits(out, token->logprob);
  return true;
}

static riffle_model* model_of(FILE* out, const char* path) {
  char err[512] = "";
  riffle_model* model = NULL;
  outcome(out, "load", riffle_model_load(path, NULL, &model, err, sizeof err), err);
  return model;
}

static riffle_options* options_of(const char* const* pairs) {
  riffle_options* o = riffle_options_create();
  for (; *pairs; pairs += 2) riffle_options_set(o, pairs[0], pairs[1]);
  return o;
}

static riffle_context* context_of(FILE* out, riffle_model* model) {
  char err[512] = "";
  riffle_options* o =
      options_of((const char*[]){"ctx", "512", "threads", "1", "isa", "scalar", NULL});
  riffle_context* context = NULL;
  outcome(out, "context", riffle_context_create(model, o, &context, err, sizeof err), err);
  riffle_options_free(o);
  return context;
}

/* Facts that time or the process's other memory decides are left out. */
static void info(FILE* out, const riffle_info* facts) {
  const char* name;
  for (size_t i = 0; (name = riffle_info_name(facts, i)); ++i) {
    if (strstr(name, "seconds") || strstr(name, "rss") || strstr(name, "host_memory") ||
        strncmp(name, "chat_", 5) == 0)
      continue;
    const char* const text = riffle_info_text(facts, name);
    fprintf(out, "%s %d %s", name, (int)riffle_info_kind_of(facts, name), text ? text : "");
    if (!text) bits(out, riffle_info_number(facts, name));
    else fputc('\n', out);
  }
}

/* ---- the parts */

static void loading(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  info(out, riffle_model_info(model));
  riffle_model_free(model);
  model_of(out, "/no/such/model");
  riffle_options* o = riffle_options_create();
  outcome(out, "weights", riffle_options_set(o, "weights", "Q4_I"), riffle_options_error(o));
  riffle_options_free(o);
  /* A number out of range is shown. */
  static const char* const wrong[] = {"\"rms_norm_eps\":-1.5", "\"rope_theta\":0.25",
                                      "\"rope_theta\":1e999", "\"num_hidden_layers\":1.5"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    char config[1024];
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_act\":\"silu\",\"hidden_size\":%d,"
             "\"intermediate_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
             "\"vocab_size\":%d,\"max_position_embeddings\":512,\"tie_word_embeddings\":true,%s}",
             kDim, kHidden, kHeads, kKvHeads, kVocab, wrong[i]);
    char spoilt[96];
    snprintf(spoilt, sizeof spoilt, "%s-%zu", folder, i);
    if (write_tiny_folder(spoilt, false) && tiny_text(spoilt, 0, config))
      riffle_model_free(model_of(out, spoilt));
    remove_tiny_folder(spoilt);
  }
}

static void templates(FILE* out) {
  static const char* const texts[] = {
      "{{ 2.5 }} {{ 1e3 }} {{ 0.1 + 0.25 }} {{ 7 / 2 }}",
      "{{ '1.5'|float }} {{ '1,5'|float }} {{ '2.75'|int }} {{ '0x1f'|int(0, 16) }}",
      "{{ 2.675|round(2) }} {{ 3.14159|round(3) }}",
      "{{ '%.2f' % 0.125 }} {{ '%e' % 12345.678 }} {{ '%5.1f|%g' % (2.25, 0.5) }}",
      "{{ '{:.3f} {:,.2f} {:.1%}'.format(0.5, 1234.5, 0.25) }}",
      "{{ [0.5, 1.25, {'a': -2.5e-7}]|tojson }} {{ [1.5, 'I']|string }}",
      "{{ 'TITLE I'|lower }} {{ 'title i'|upper }} {{ 'i'|capitalize }} {{ 'I'.lower() }}",
      "{{ '%s' % 1.5 }} {{ 1.5 ~ '' }} {{ [3.5, 0.5]|sort }} {{ 0.5 in [0.5] }}",
      "{{ raise_exception('at ' ~ 0.5) }}",
      "{{ 1.5 | nothing }}",
      "{% if 0.5 %"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    char config[1024];
    snprintf(config, sizeof config,
             "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":\"%s"
             "{%% for m in messages %%}{{ m.content }}{%% endfor %%}\"}",
             texts[i]);
    if (!tiny_text(folder, 2, config)) return;
    riffle_model* const model = model_of(out, folder);
    const riffle_message message = {"user", "x", NULL};
    int32_t ids[512];
    size_t n = 0, length = 0;
    char text[1024] = "";
    outcome(out, "chat", riffle_chat_prompt(model, &message, 1, NULL, ids, 512, &n, NULL),
            riffle_model_error(model));
    riffle_detokenize(model, ids, n, text, sizeof text - 1, &length);
    fprintf(out, "%.*s\n", (int)length, text);
    riffle_model_free(model);
  }
}

struct form {
  riffle_grammar_kind kind;
  const char* text;
};
static const struct form forms[] = {
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":0.1,\"maximum\":0.35}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":-1.5e-2,\"maximum\":0}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"default\":0.5,\"type\":\"boolean\"}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"enum\":[0.5,1.25,1e2,{\"a\":2.5}]}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"const\":0.125}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":12.5,"
     "\"multipleOf\":3.0}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.5}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":2.5}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":1.5,\"maximum\":0.5}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA,
     "{\"$ref\":\"#/$defs/a%25I\",\"$defs\":{\"a%I\":{\"const\":0.5}}}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}"},
    {RIFFLE_GRAMMAR_JSON_SCHEMA, "{\"type\":0,5}"},
    {RIFFLE_GRAMMAR_GBNF, "root ::= \"0.5\" | \"1.25\" [0-9]{1,3}"},
    {RIFFLE_GRAMMAR_GBNF, "root ::= [0-9]{0.5}"},
    {RIFFLE_GRAMMAR_REGEX, "[0-9]\\.[0-9]{1,2}I?"},
    {RIFFLE_GRAMMAR_REGEX, "(?i:ID)[\\w]\\s?"},
};

static void grammars(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  riffle_context* const context = context_of(out, model);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i) {
    char err[512] = "";
    riffle_grammar* grammar = NULL;
    outcome(out, forms[i].text,
            riffle_grammar_create(model, forms[i].kind, forms[i].text, strlen(forms[i].text),
                                  &grammar, err, sizeof err),
            err);
    if (!grammar) continue;
    const int32_t ids[] = {1, 100, 101};
    riffle_session* session = NULL;
    riffle_session_create(context, &session);
    riffle_prefill(session, ids, 3, NULL, NULL);
    for (uint64_t seed = 1; seed < 4; ++seed) {
      const char digit[] = {(char)('0' + seed), '\0'};
      riffle_options* g = options_of((const char*[]){"max-tokens", "24", "seed", digit, "temp", "1",
                                                     "logprobs", "true", NULL});
      riffle_options_set_grammar(g, grammar);
      riffle_prefill_to(session, ids, 3, NULL, NULL);
      outcome(out, "answer", riffle_generate(session, g, on_token, out, NULL),
              riffle_context_error(context));
      riffle_options_free(g);
    }
    riffle_session_free(session);
    riffle_grammar_free(grammar);
  }
  riffle_context_free(context);
  riffle_model_free(model);
}

/* Every setting with values inside and outside of its range, and the words of a plan with them. */
static void settings(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  const riffle_info* s;
  for (size_t i = 0; (s = riffle_setting_at(i)); ++i) {
    info(out, s);
    const char* const name = riffle_info_text(s, "name");
    const double low = riffle_info_number(s, "low"), high = riffle_info_number(s, "high");
    char values[5][64] = {"0.5", "0,5", "", "", ""};
    snprintf(values[2], sizeof values[2], "%.0f", low - 1);
    snprintf(values[3], sizeof values[3], "%.0f", high * 2 + 1);
    snprintf(values[4], sizeof values[4], "%.0f", (low + high) / 2);
    for (size_t v = 0; v < 5; ++v) {
      riffle_options* o = options_of((const char*[]){"ctx", "512", NULL});
      outcome(out, name, riffle_options_set(o, name, values[v]), riffle_options_error(o));
      fprintf(out, "%s\n", riffle_options_get(o, name));
      riffle_info* plan = NULL;
      char err[512] = "";
      outcome(out, name, riffle_plan_memory(model, o, &plan, err, sizeof err), err);
      info(out, plan);
      riffle_info_free(plan);
      riffle_options_free(o);
    }
  }
  riffle_model_free(model);
}

static void sampling(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  riffle_context* const context = context_of(out, model);
  riffle_session* session = NULL;
  riffle_session_create(context, &session);
  const int32_t ids[] = {1, 100, 101};
  riffle_prefill(session, ids, 3, NULL, NULL);
  const riffle_logit_bias bias[] = {{5, -0.5f}, {5, -200.5f}};
  static const char* const members[] = {"temp",
                                        "top-p",
                                        "min-p",
                                        "repeat-penalty",
                                        "xtc-threshold",
                                        "xtc-probability",
                                        "dry-multiplier",
                                        "dry-base",
                                        "frequency-penalty",
                                        "presence-penalty"};
  for (size_t i = 0; i < sizeof members / sizeof *members; ++i) {
    for (int wrong = 0; wrong < 2; ++wrong) {
      riffle_options* one = options_of((const char*[]){"max-tokens", "4", NULL});
      outcome(out, members[i], riffle_options_set(one, members[i], wrong ? "-2.5" : "1"),
              riffle_options_error(one));
      riffle_options_set_logit_bias(one, &bias[wrong], 1);
      riffle_prefill_to(session, ids, 3, NULL, NULL);
      outcome(out, "generate", riffle_generate(session, one, on_token, out, NULL),
              riffle_context_error(context));
      riffle_options_free(one);
    }
  }
  riffle_session_free(session);
  riffle_context_free(context);
  riffle_model_free(model);
}

/* Prints the results of functions that need no model, and the defaults. */
static void facts(FILE* out) {
  const char* name;
  fprintf(out, "%s %d\n", riffle_version(), riffle_usable_cpus());
  for (int i = 0; i <= RIFFLE_FILE_CHANGED + 1; ++i)
    fprintf(out, "%s\n", riffle_status_name((riffle_status)i));
  for (size_t i = 0; (name = riffle_weight_type_name(i)); ++i) fprintf(out, "%s\n", name);
  for (size_t i = 0; (name = riffle_chat_template_name(i)); ++i) fprintf(out, "%s\n", name);
  fprintf(out, "%d\n", (int)riffle_utf8_error("\xc4\xb0\xfd", 3));
  riffle_synthetic_attention attention;
  riffle_synthetic_attention_defaults(&attention);
  bits(out, attention.weight);
  static const char* const sizes[] = {"1.5G", "1,5G", "32K", "12gib", "\xd9\xa3"};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    uint64_t size = 0;
    fprintf(out, "%d ", riffle_read_size(sizes[i], true, &size));
    fprintf(out, "%llu\n", (unsigned long long)size);
  }
  static const char* const words[] = {"min-p", "threads", "title"};
  name = riffle_nearest_word("tItle", words, 3);
  fprintf(out, "%s\n", name ? name : "none");
}

static bool go_on(void* user, const riffle_progress* progress) {
  return (void)user, progress->done >= 0;
}
static const char* own_name(const char* name) { return strcmp(name, "temp") ? NULL : "warmth"; }
static bool on_text(void* user, const char* text, size_t text_len) {
  return fwrite(text, 1, text_len, user) == text_len;
}

/* Asks with everything that options hold besides texts. */
static void asking(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  riffle_options* const o =
      options_of((const char*[]){"max-tokens", "3", "ctx", "256", "chat-template", "llama2", NULL});
  static const char* const texts[] = {"1.5", "1,5"};
  riffle_synthetic_attention attention;
  riffle_synthetic_attention_defaults(&attention);
  outcome(out, "stop", riffle_options_set_stop(o, texts, 2), riffle_options_error(o));
  outcome(out, "breakers", riffle_options_set_breakers(o, texts, 2), riffle_options_error(o));
  riffle_options_set_progress(o, go_on, NULL);
  riffle_options_set_names(o, own_name);
  outcome(out, "temp", riffle_options_set(o, "temp", "-1.5"), riffle_options_error(o));
  riffle_options* const copy = riffle_options_copy(o);
  outcome(out, "synthetic", riffle_options_set_synthetic_attention(copy, &attention),
          riffle_options_error(copy));
  const riffle_message message = {"user", "i 1.5", NULL};
  char err[512] = "";
  outcome(out, "ask", riffle_ask(model, &message, 1, o, on_text, out, err, sizeof err), err);
  riffle_context* const context = context_of(out, model);
  outcome(out, "select", riffle_context_select(context, o), riffle_context_error(context));
  riffle_context_free(context);
  riffle_options_free(copy);
  riffle_options_free(o);
  riffle_model_free(model);
}

static void tokens(FILE* out) {
  static const char* const texts[] = {"the code is 1.5, not 1,5", "Il\xc4\xb1k \xc4\xb0I i", "</s>",
                                      "\xfd", "\xd9\xab \t\xc2\xa0x"};
  riffle_model* const model = model_of(out, folder);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
    for (uint32_t flags = 0; flags < 4; ++flags) {
      int32_t ids[64];
      size_t n = 0;
      const riffle_status status =
          riffle_tokenize(model, texts[i], strlen(texts[i]), flags, ids, 64, &n);
      outcome(out, "tokenize", status, riffle_model_error(model));
      if (status != RIFFLE_OK) continue;
      for (size_t t = 0; t < n; ++t) fprintf(out, "%d ", ids[t]);
      char text[128];
      size_t length = 0;
      outcome(out, "detokenize", riffle_detokenize(model, ids, n, text, sizeof text, &length),
              riffle_model_error(model));
      fprintf(out, "%.*s\n", (int)length, text);
    }
  for (int32_t id = -1; id <= kVocab; ++id) {
    char bytes[64];
    size_t n = 0;
    const char* const piece = riffle_token_piece(model, id);
    const riffle_status status = riffle_token_bytes(model, id, bytes, sizeof bytes, &n);
    outcome(out, piece ? piece : "none", status, riffle_model_error(model));
    fprintf(out, "%d ", riffle_is_end_token(model, id));
    if (status == RIFFLE_OK) fwrite(bytes, 1, n, out);
  }
  riffle_model_free(model);
}

/* A template that reads all that riffle_chat_prompt tells it. */
static void chats(FILE* out) {
  static const char* const dates[] = {"2026-11-23", "23.11.2026"};
  if (!tiny_text(folder, 2,
                 "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":\""
                 "{{ strftime_now('%A %d %B %Y') }} {{ enable_thinking }} {{ reasoning_effort }}"
                 "{% for m in messages %}{{ m.content|title }}{{ m.reasoning_content }}"
                 "{% endfor %}\"}"))
    return;
  riffle_model* const model = model_of(out, folder);
  const riffle_message messages[] = {
      {"user", "i 1.5", NULL}, {"assistant", "ID", "0.5"}, {"user", "\xc4\xb1", NULL}};
  for (size_t i = 0; i < 2; ++i) {
    riffle_options* o =
        options_of((const char*[]){"thinking", "on", "reasoning-effort", "high", NULL});
    outcome(out, "date", riffle_options_set(o, "date", dates[i]), riffle_options_error(o));
    int32_t ids[512];
    size_t n = 0, length = 0;
    char text[1024] = "";
    bool begun = false;
    outcome(out, "prompt", riffle_chat_prompt(model, messages, 3, o, ids, 512, &n, &begun),
            riffle_model_error(model));
    riffle_detokenize(model, ids, n, text, sizeof text, &length);
    fprintf(out, "%d %.*s\n", begun, (int)length, text);
    char joined[16] = "";
    outcome(out, "question", riffle_document_question("I\n", 2, "i?", 2, joined, 15, &length),
            NULL);
    outcome(out, "document",
            riffle_document_tokens(model, joined, length, "ID", true, o, ids, 512, &n),
            riffle_model_error(model));
    riffle_detokenize(model, ids, n, text, sizeof text, &length);
    fprintf(out, "%s %.*s\n", joined, (int)length, text);
    riffle_options_free(o);
  }
  riffle_model_free(model);
}

/* A request with numbers and a tool, and its answers as JSON. */
static void bodies(FILE* out) {
  static const char body[] =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"i "
      "1.5\"}],\"stream\":true,\"temperature\":0.5,"
      "\"stream_options\":{\"include_usage\":true},\"logprobs\":true,\"tools\":[{\"type\":"
      "\"function\","
      "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"default\":0.5}}}]}";
  static const char text[] = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1.5}}</tool_call>";
  if (!tiny_text(
          folder, 2,
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

static void logits(FILE* out, const riffle_session* session) {
  const float* const all = riffle_logits(session);
  fprintf(out, "%zu tokens, reach %zu\n", riffle_session_length(session),
          riffle_session_reach(session, 3));
  for (int i = 0; all && i < kVocab; ++i) bits(out, all[i]);
}

static void on_row(void* user, const riffle_row_report* report) {
  fprintf(user, "row %d: %d of %d blocks\n", report->position, report->n_read, report->n_blocks);
  for (int i = 0; report->coverage && i < report->n_group; ++i) bits(user, report->coverage[i]);
}

enum { kPrompt = 100 };
static void prompt_of(int32_t* ids) {
  for (int i = 0; i < kPrompt; ++i) ids[i] = 3 + i * 7 % 256;
}

/* Steps, cuts and forks by several selections, and what they report. */
static void sessions(FILE* out) {
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
  outcome(out, "cut", riffle_session_truncate(session, 4096), riffle_context_error(context));
  outcome(out, "prefill", riffle_prefill(session, &(int32_t){kVocab}, 1, NULL, NULL),
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

static bool on_request_token(void* user, uint64_t id, const riffle_token* token) {
  return on_token(user, id, token);
}

static void on_end(void* user, uint64_t id, riffle_status status, const riffle_info* end) {
  fprintf(user, "request %d: ", (int)id);
  outcome(user, "ended", status, riffle_info_text(end, "error"));
  info(user, end);
}

/* The same requests at once, by riffle_generate_many and by a scheduler. */
static void requests(FILE* out) {
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
static void prefixes(FILE* out) {
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

/* A converted model, a session on disk, and texts of the system's errors. */
static void files(FILE* out) {
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

/* ---- running them */

static const struct part {
  const char* name;
  void (*run)(FILE* out);
} parts[] = {{"facts", facts},        {"loading", loading},
             {"tokens", tokens},      {"chat templates", templates},
             {"chat options", chats}, {"grammars", grammars},
             {"settings", settings},  {"sampling", sampling},
             {"asking", asking},      {"sessions", sessions},
             {"requests", requests},  {"files", files},
             {"bodies", bodies},      {"prefixes", prefixes}};
enum { kParts = sizeof parts / sizeof *parts };

static char* given(const struct part* part) {
  char* text = NULL;
  size_t size;
  FILE* const out = open_memstream(&text, &size);
  if (!out) exit(2);
  part->run(out);
  fclose(out);
  return text;
}

/* The first line of each that differs from the other's. */
static void show_difference(const char* want, const char* got) {
  while (*want && *got) {
    const char *a = strchrnul(want, '\n'), *b = strchrnul(got, '\n');
    if (a - want != b - got || memcmp(want, got, (size_t)(a - want)) != 0) break;
    want = a + (*a != 0), got = b + (*b != 0);
  }
  printf("in the C locale '%.*s', here '%.*s'\n", (int)strcspn(want, "\n"), want,
         (int)strcspn(got, "\n"), got);
}

static bool make_locale(const char* name, const char* charset) {
  char command[256];
  snprintf(command, sizeof command, "localedef -c -i %s -f %s %s/%s >%s/log 2>&1", name, charset,
           place, name, place);
  if (system(command) < 0) return false;
  return setlocale(LC_ALL, name) != NULL;
}

int main(void) {
  static const char* const locales[][2] = {
      {"de_DE", "UTF-8"}, {"tr_TR", "ISO-8859-9"}, {"ps_AF", "UTF-8"}};
  snprintf(folder, sizeof folder, "/tmp/riffle-locale-%ld", (long)getpid());
  snprintf(place, sizeof place, "/tmp/riffle-locales-%ld", (long)getpid());
  if (mkdir(place, 0700) != 0 || !write_tiny_folder(folder, false)) {
    printf("not ok locale: cannot write to /tmp: %s\n", strerror(errno));
    return 1;
  }
  setenv("LOCPATH", place, 1);
  char* want[kParts];
  int failures = 0;
  for (int p = 0; p < kParts; ++p) want[p] = given(&parts[p]);
  for (size_t l = 0; l < sizeof locales / sizeof *locales; ++l) {
    const char* const name = locales[l][0];
    if (!make_locale(name, locales[l][1])) {
      printf("skip locale %s: localedef does not make it\n", name);
      continue;
    }
    char comma[16];
    snprintf(comma, sizeof comma, "%.1f", 0.5);
    if (strcmp(comma, "0.5") == 0) {
      printf("not ok locale %s: printf writes 0.5, so nothing is tested\n", name);
      ++failures;
    }
    for (int p = 0; p < kParts; ++p) {
      char* const got = given(&parts[p]);
      const bool equal = strcmp(got, want[p]) == 0;
      printf("%s locale %s: %s%s", equal ? "ok" : "not ok", name, parts[p].name,
             equal ? "\n" : ": ");
      if (!equal) show_difference(want[p], got), ++failures;
      free(got);
    }
    setlocale(LC_ALL, "C");
  }
  for (int p = 0; p < kParts; ++p) free(want[p]);
  remove_tiny_folder(folder);
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", place);
  return system(command) != 0 || failures ? 1 : 0;
}
