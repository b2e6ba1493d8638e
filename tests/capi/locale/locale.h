/* The interface does not depend on the locale of the program that uses it: see locale.c. A part
 * calls functions of the interface and writes what they give to a text, without numbers that printf
 * writes by the locale. Each file has the parts of one subject. */
#ifndef LOCALE_PARTS_H
#define LOCALE_PARTS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "riffle.h"

/* The folder of the model: one layer whose weights are zero (tiny_folder.h). */
extern char folder[64];
extern const int vocab_size;
bool write_tokenizer_config(const char* text);

/* ---- what parts write */

void bits(FILE* out, double value);
void outcome(FILE* out, const char* what, riffle_status status, const char* text);
/* A riffle_token_fn; user is the text. */
bool on_token(void* user, size_t index, const riffle_token* token);
/* Writes all facts except those that time or the process's other memory decides. */
void info(FILE* out, const riffle_info* facts);
void logits(FILE* out, const riffle_session* session);

/* ---- what parts use */

riffle_model* model_of(FILE* out, const char* path);
/* pairs: names and values, and NULL at the end. */
riffle_options* options_of(const char* const* pairs);
riffle_context* context_of(FILE* out, riffle_model* model);
enum { kPrompt = 100 };
void prompt_of(int32_t* ids);

/* ---- the parts */

void facts(FILE* out);
void loading(FILE* out);
void tokens(FILE* out);
void templates(FILE* out);
void chats(FILE* out);
void grammars(FILE* out);
void settings(FILE* out);
void sampling(FILE* out);
void asking(FILE* out);
void sessions(FILE* out);
void requests(FILE* out);
void files(FILE* out);
void bodies(FILE* out);
void prefixes(FILE* out);

#endif
