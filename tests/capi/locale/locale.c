/* locale.c: the interface does not depend on the locale of the program that uses it. Each part runs
 * in the C locale and then in others, and must give the same numbers, answers and texts. The others
 * write decimal commas (de_DE), have letters whose lower case is not English (tr_TR in ISO-8859-9)
 * or a decimal point of two bytes (ps_AF). localedef makes them in a temporary folder. The parts
 * are in the other files of this folder.
 *
 * usage: capi_locale
 *
 * tools/check_locale.py checks that every function of the interface is called in this folder.
 *
 * Prints "ok", "not ok" or "skip" for each locale and part. */
#define _GNU_SOURCE
#include "locale.h"

#include <errno.h>
#include <locale.h>
#include <unistd.h>

#include "../tiny_folder.h"

char folder[64];
static char place[64]; /* the locales' */
const int vocab_size = kVocab;

bool write_tokenizer_config(const char* text) { return tiny_text(folder, 2, text); }

void bits(FILE* out, double value) {
  uint64_t all;
  memcpy(&all, &value, sizeof all);
  fprintf(out, "%016llx\n", (unsigned long long)all);
}

void outcome(FILE* out, const char* what, riffle_status status, const char* text) {
  fprintf(out, "%s: %s: %s\n", what, riffle_status_name(status), text ? text : "");
}

bool on_token(void* user, size_t index, const riffle_token* token) {
  FILE* const out = user;
  (void)index;
  fprintf(out, "%d %.*s\n", token->id, (int)token->text_len, token->text);
  bits(out, token->logprob);
  return true;
}

riffle_model* model_of(FILE* out, const char* path) {
  char err[512] = "";
  riffle_model* model = NULL;
  outcome(out, "load", riffle_model_load(path, NULL, &model, err, sizeof err), err);
  return model;
}

riffle_options* options_of(const char* const* pairs) {
  riffle_options* o = riffle_options_create();
  for (; *pairs; pairs += 2) riffle_options_set(o, pairs[0], pairs[1]);
  return o;
}

riffle_context* context_of(FILE* out, riffle_model* model) {
  char err[512] = "";
  riffle_options* o =
      options_of((const char*[]){"ctx", "512", "threads", "1", "isa", "scalar", NULL});
  riffle_context* context = NULL;
  outcome(out, "context", riffle_context_create(model, o, &context, err, sizeof err), err);
  riffle_options_free(o);
  return context;
}

void info(FILE* out, const riffle_info* facts) {
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

void loading(FILE* out) {
  riffle_model* const model = model_of(out, folder);
  info(out, riffle_model_info(model));
  riffle_model_free(model);
  model_of(out, "/no/such/model");
  riffle_options* o = riffle_options_create();
  outcome(out, "weights", riffle_options_set(o, "weights", "Q4_I"), riffle_options_error(o));
  riffle_options_free(o);
  /* An error about a number that is out of range shows the number. */
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
