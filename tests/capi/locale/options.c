/* Options, settings, and functions that need no model. */
#include "locale.h"
#include "riffle_grammar.h"
#include "riffle_measure.h"
#include "riffle_request.h"
#include "riffle_steps.h"
#include "riffle_text.h"
#include "riffle_tools.h"

/* Every setting with values inside and outside of its range, and the words of a plan with them. */
void settings(FILE* out) {
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

void sampling(FILE* out) {
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
void facts(FILE* out) {
  const char* name;
  fprintf(out, "%s %d\n", riffle_version(), riffle_usable_cpus());
  for (int i = 0; i <= RIFFLE_FILE_CHANGED + 1; ++i)
    fprintf(out, "%s\n", riffle_status_name((riffle_status)i));
  for (size_t i = 0; (name = riffle_weight_type_name(i)); ++i) fprintf(out, "%s\n", name);
  for (size_t i = 0; (name = riffle_chat_template_name(i)); ++i) fprintf(out, "%s\n", name);
  fprintf(out, "%d\n", (int)riffle_utf8_error("\xc4\xb0\xfd", 3));
  char err[128] = "", id[29] = "";
  static const char* const json[] = {"[0.5]", "[0,5", "{\"a\":0.5 \"b\"}", "1e999"};
  for (size_t i = 0; i < sizeof json / sizeof *json; ++i)
    fprintf(out, "%d %s\n", riffle_check_json(json[i], strlen(json[i]), err, sizeof err), err);
  riffle_random_id(id, sizeof id);
  fprintf(out, "%d\n", strlen(id) >= 26 && strspn(id, "0123456789abcdef") == strlen(id));
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

/* Sets the parts of options that riffle_options_set cannot set, and asks with them. */
void asking(FILE* out) {
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
