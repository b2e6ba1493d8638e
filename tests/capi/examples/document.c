/* A text file that is read once and asked in this and later runs:
 *
 *   document MODEL.gguf FILE KEPT.kv QUESTION...
 *
 * The first run reads FILE and keeps what it has read in KEPT.kv. Later runs load KEPT.kv.
 *
 *   cc -D_POSIX_C_SOURCE=200809L document.c $(pkg-config --cflags --libs riffle) -o document */
#include <errno.h>
#include <riffle_session_file.h>
#include <riffle_steps.h>
#include <riffle_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* what, const char* why) {
  fprintf(stderr, "document: %s: %s\n", what, why);
  return 1;
}

static bool show(void* user, size_t index, const riffle_token* token) {
  (void)user, (void)index;
  fwrite(token->text, 1, token->text_len, stdout);
  return true;
}

/* A file's text, without line breaks at its end; the caller frees it. NULL: errno says why. */
static char* text_of(const char* path) {
  char *text = NULL, *larger;
  size_t size = 0, n;
  FILE* in = fopen(path, "rb");
  if (!in) return NULL;
  do {
    if (!(larger = realloc(text, size + 65537))) break;
    text = larger;
    size += n = fread(text + size, 1, 65536, in);
    text[size] = '\0';
  } while (n > 0);
  while (text && size > 0 && text[size - 1] == '\n') text[--size] = '\0';
  if (!larger || ferror(in)) free(text), text = NULL;
  fclose(in);
  return text;
}

/* The tokens of a user's message: the document and, on a line of its own, the question. The model's
 * chat template is evaluated on it. The caller frees them. NULL: riffle_model_error says why. */
static int32_t* prompt_of(riffle_model* model, const char* document, const char* question,
                          size_t* n) {
  const size_t size = strlen(document) + strlen(question) + 2;
  char* const text = calloc(size, 1);
  size_t length = 0;
  if (!text || riffle_document_question(document, strlen(document), question, strlen(question),
                                        text, size - 1, &length))
    abort();
  const riffle_message message = {"user", text, NULL};
  int32_t* tokens = NULL;
  if (riffle_chat_prompt(model, &message, 1, NULL, NULL, 0, n, NULL) == RIFFLE_BUFFER_TOO_SMALL) {
    if (!(tokens = malloc(*n * sizeof *tokens))) abort();
    if (riffle_chat_prompt(model, &message, 1, NULL, tokens, *n, n, NULL))
      free(tokens), tokens = NULL;
  }
  free(text);
  return tokens;
}

int main(int argc, char** argv) {
  char err[512];
  riffle_model* model;
  riffle_context* context;
  riffle_session *document = NULL, *question;
  riffle_session_file* file;
  size_t n;
  if (argc < 5) return fprintf(stderr, "usage: document MODEL.gguf FILE KEPT.kv QUESTION...\n"), 2;
  const char* const kept = argv[3];
  char* const text = text_of(argv[2]);
  if (!text) return failed(argv[2], strerror(errno));
  if (riffle_model_load(argv[1], NULL, &model, err, sizeof err)) return failed("load", err);
  if (riffle_context_create(model, NULL, &context, err, sizeof err)) return failed("context", err);

  const riffle_status opened = riffle_session_file_open(kept, &file, err, sizeof err);
  if (opened == RIFFLE_OK) {
    if (riffle_session_load(context, file, &document, NULL, NULL))
      return failed(kept, riffle_context_error(context));
    riffle_session_file_free(file);
    fprintf(stderr, "[%s is used: %zu tokens]\n", kept, riffle_session_length(document));
  } else if (opened == RIFFLE_IO) { /* most likely there is no such file yet */
    int32_t* const tokens = prompt_of(model, text, "", &n);
    if (!tokens) return failed(argv[2], riffle_model_error(model));
    if (riffle_session_create(context, &document) ||
        riffle_prefill(document, tokens, n, NULL, NULL) ||
        riffle_session_save(document, kept, 0, NULL, 0, NULL, NULL))
      return failed(argv[2], riffle_context_error(context));
    free(tokens);
    fprintf(stderr, "[%s: read and kept in %s: %zu tokens]\n", argv[2], kept, n);
  } else {
    return failed(kept, err);
  }

  riffle_options* options = riffle_options_create();
  if (riffle_options_set(options, "temp", "0") || riffle_options_set(options, "max-tokens", "24") ||
      riffle_options_set(options, "trim-start", "true"))
    return failed("options", riffle_options_error(options));
  for (int i = 4; i < argc; ++i) {
    int32_t* const tokens = prompt_of(model, text, argv[i], &n);
    if (!tokens) return failed(argv[i], riffle_model_error(model));
    /* A fork shares the document's blocks. riffle_prefill_to keeps all tokens up to the first that
     * differs: the document, unless FILE has changed since it was kept. It reads the question. */
    if (riffle_session_fork(document, riffle_session_length(document), &question) ||
        riffle_prefill_to(question, tokens, n, NULL, NULL) ||
        riffle_generate(question, options, show, NULL, NULL))
      return failed(argv[i], riffle_context_error(context));
    putchar('\n');
    riffle_session_free(question);
    free(tokens);
  }
  riffle_options_free(options);
  riffle_session_free(document);
  riffle_context_free(context);
  riffle_model_free(model);
  free(text);
  return 0;
}
